"""LU-KV's offline table: which heads lose least of what later tokens attend to, by a scorer.

As the authors' step1_llama.py and step2_compute_curve.py (arXiv:2602.08585). Here the tokens that
follow are the text's own, where theirs are 64 generated answers to questions about novels.
"""

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from ckv_core.base.stored_texts import stored_sentences
from ckv_core.engine.candidates import PromptCandidates, PromptLayer, protected_mask
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.head_tables import HeadTable, keep_table, written
from ckv_core.engine.needle_probe import counted
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.errors import ConfigError
from ckv_core.methods.lu_kv import LEVELS
from ckv_core.methods.parts.views import PromptTokens, Table
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Progress
from ckv_core.records.variants import VariantSpec

PIECE = 1_024  # tokens
_PIECES = 4
_LATER = 64  # last tokens of a piece, whose attention counts
_SHARE = 5  # a fifth of the entries is the budget of a scorer that looks at it


def pieces(loaded: LoadedModel) -> list[list[int]]:
    """Token ids of the example texts in pieces of equal length."""
    text = " ".join(sentence for each in stored_sentences() for sentence in each)
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    size = min(PIECE, loaded.info.context_limit, len(ids))
    return [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)][:_PIECES]


@torch.inference_mode()
def profile(
    loaded: LoadedModel,
    table: Table,
    spec: VariantSpec,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[Progress, None, HeadTable]:
    """Make and keep the curves of a variant's scorer; ConfigError where it protects all tokens."""
    info, texts = loaded.info, pieces(loaded)
    spec = spec.protecting((), PIECE)  # what a request protects lies in another text
    total = torch.zeros(LEVELS, info.layers, info.kv_heads, dtype=torch.float64)
    for done, ids in enumerate(texts):
        start = ids[:-_LATER]
        near = yield from _read(spec, loaded, start, (2 * done, 2 * len(texts)), should_stop)
        reading = prefill(loaded, ids, Needs(_LATER), should_stop)
        far = yield from counted(reading, "budget curves", 2 * done + 1, 2 * len(texts))
        candidates = PromptCandidates(spec, near, len(start) // _SHARE)
        columns = candidates.columns
        ranked = candidates.first().long().cpu()
        worth = torch.stack(
            [utility(near, far, layer)[:, columns] for layer in info.evictable_layers]
        )
        curves = gone(worth.gather(-1, ranked), candidates.protected)
        total[:, list(info.evictable_layers)] += curves
        del near, far, candidates  # the next ones take as much room
    return keep_table(info, table, written(total / len(texts)))


def _read(
    spec: VariantSpec,
    loaded: LoadedModel,
    ids: list[int],
    place: tuple[int, int],
    should_stop: Callable[[], bool],
) -> Generator[Progress, None, Prefill]:
    """The prefill of these tokens alone, with the statistics that the scorer reads."""
    if protected_mask(spec, len(ids)).all():
        raise ConfigError(
            f"{spec.spec!r} always keeps all {len(ids):,} tokens of the texts that its table is "
            "made of; lower what is always kept."
        )
    needs = Needs.of([spec])
    reading = prefill(loaded, ids, needs, should_stop)
    result = yield from counted(reading, "budget curves", *place)
    given = PromptTokens(tuple(ids), 0, (), loaded.tokenizer.encode)
    planned = [(each, each.passes(given)) for each in needs.passes]
    for _ in further_passes(result, planned, should_stop):
        pass
    return result


def utility(near: Prefill, far: Prefill, layer: int) -> Tensor:
    """The most that any later token gives an entry, [kv_heads, entries] float64 on the CPU.

    Attention times the L2 norm of V W_O over the layer's sum of norms; the largest of a group.

    Args:
        near: of the entries.
        far: of them and the later tokens.
        layer: index of the decoder layer.
    """
    norms = PromptLayer(near, layer).value_norms(2).double()
    rows = PromptLayer(far, layer).window_rows(_LATER)
    most = torch.stack([each[:, : norms.shape[1]].amax(0).double() for each in rows])
    weighed = most * norms / norms.sum()
    return weighed.view(near.loaded.info.kv_heads, -1, norms.shape[1]).amax(1).cpu()


def gone(worth: Tensor, always: int) -> Tensor:
    """The share of each head's entries that goes at each level, [levels, layers, kv_heads].

    Entries go in the order of the least slope of the lower convex hull of what a head loses, over
    all heads; a head keeps a hundredth of its entries in any case. Ties: the earlier head.

    Args:
        worth: [layers, kv_heads, entries] float64, best ranked first.
        always: protected entries of each head, which count as entries.
    """
    layers, heads, entries = worth.shape
    length = entries + always
    kept = max(round(length / 100) - always, 0)  # of the entries, the best
    slopes = torch.tensor(
        [[rising(head) for head in layer] for layer in worth.flip(-1).tolist()],
        dtype=torch.float64,
    )[..., : entries - kept]
    order = slopes.flatten().argsort(stable=True) // max(1, entries - kept)
    levels = []
    for level in range(1, LEVELS + 1):
        count = round(level / 100 * (layers * heads * length))
        levels.append(order[:count].bincount(minlength=layers * heads).double() / length)
    return torch.stack(levels).view(LEVELS, layers, heads)


def rising(losses: list[float]) -> list[float]:
    """Slopes of the lower convex hull of the sums of losses, one for each loss."""
    blocks: list[tuple[float, int]] = []
    for loss in losses:
        total, count = loss, 1
        while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:
            before, others = blocks.pop()
            total, count = total + before, count + others
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
