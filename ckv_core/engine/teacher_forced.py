"""Teacher-forced fidelity: every variant reads the full cache's own continuation."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor

from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.first_step import kl_divergence
from ckv_core.engine.generation import check_finite
from ckv_core.engine.rows import PromptRows
from ckv_core.engine.run import Run
from ckv_core.records.events import Progress, RunEvent, VariantAnalysed
from ckv_core.records.records import Candidate, ForcedStep

_CANDIDATES = 5
_VOCABULARY_LOGITS = 2**22  # of all rows that exist at a time, 16 MiB of float32


def _candidates(logits: Tensor, text_of: Callable[[int], str]) -> list[tuple[Candidate, ...]]:
    """The most probable next tokens, best first, of one row's logits [positions, vocabulary]."""
    probabilities, ids = logits.softmax(-1).topk(min(_CANDIDATES, logits.shape[-1]), dim=-1)
    return [
        tuple(Candidate(token, text_of(token), share) for token, share in zip(*best, strict=True))
        for best in zip(ids.tolist(), probabilities.tolist(), strict=True)
    ]


def teacher_forced(run: Run, rows: PromptRows, continuation: Sequence[int]) -> Iterator[RunEvent]:
    """Agreement, KL and rank at every position of the full cache's continuation, at least one.

    Yields:
        Progress, then one VariantAnalysed per variant, `full` included.
    """
    rest = run.prompt.token_ids[run.prompt.compressed_tokens :]
    capacity = len(rest) + len(continuation)
    context = DecodeContext(run.loaded, rows.start(capacity), run.should_stop)
    decoder = Decoder(run.loaded, context)
    tokens = torch.tensor(continuation, device=run.loaded.device)
    text_of = cache(lambda token: str(run.loaded.tokenizer.decode([token])))
    figures: list[Tensor] = []
    best: list[list[tuple[Candidate, ...]]] = [[] for _ in range(run.rows)]
    with_candidates = run.request.kind == "compare"  # a sweep's points show no text
    yield Progress("analyse", 0.0, "the full cache's own text")
    with run.stopwatch.measure("forced"):
        logits = decoder.read(rest) if rest else cast(Tensor, rows.logits)
    logits = logits[:, None]
    # Logits predict the tokens from `done` on; those are read next, but for the very last one.
    chunk = teacher_forced_chunk(run.rows, logits.shape[-1])
    done = 0
    while True:
        with run.stopwatch.measure("forced"):
            end = done + logits.shape[1]
            full = logits[run.reference]
            top1 = (logits.argmax(-1) == full.argmax(-1)).float()
            # Row by row: that bounds what it holds.
            rank = torch.cat([token_rank(row[None], tokens[done:end]) for row in logits])
            figures.append(torch.stack([top1, kl_divergence(logits, full), rank.float()]))
            del full
            if with_candidates:
                for index, steps in enumerate(best):
                    steps.extend(_candidates(logits[index], text_of))  # no name outlives the logits
            read = tokens[end - 1 : min(end - 1 + chunk, len(tokens) - 1)]
            if not len(read):
                break
            del logits  # the next ones take as much room
            logits = decoder.feed_all(read.expand(run.rows, -1))
        done = end
        yield Progress("analyse", done / len(tokens), f"token {done:,} of {len(tokens):,}")
    top1s, kl, ranks = torch.cat(figures, dim=-1).cpu().numpy()
    check_finite(kl.ravel().tolist())
    for index in range(len(run.specs)):
        yield VariantAnalysed(
            index,
            {"forced_top1": top1s[index], "forced_kl": kl[index], "forced_rank": ranks[index]},
            tuple(map(ForcedStep, best[run.reference], best[index])) if with_candidates else None,
        )


def teacher_forced_chunk(rows: int, vocabulary: int) -> int:
    """Tokens that all rows read in one pass; each has logits of the whole vocabulary."""
    return max(1, _VOCABULARY_LOGITS // (rows * vocabulary))


def token_rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """Place of a token among all by logit, 1 = best; of equal logits the lower id is first.

    Of logits [rows, positions, vocabulary] and token ids [positions], [rows, positions] int64.
    """
    ids = tokens.expand(logits.shape[:2])[..., None]
    own = logits.gather(-1, ids)
    above = (logits > own).count_nonzero(-1)  # a sum would make int64 of every flag
    earlier = torch.arange(logits.shape[-1], device=logits.device) < ids
    return 1 + above + ((logits == own) & earlier).count_nonzero(-1)
