"""Rows of different prompts in one decode batch: every row as if it were alone."""

import pytest
import torch
from torch import Tensor

from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.rows import PromptRows
from ckv_core.engine.running_rows import next_tokens
from tests.ckv_core.compare.test_decode_equality import CLOSE
from tests.ckv_core.compare.test_policies import ROWS, rows_of
from tests.factories.models import LONGROPE_ORIGINAL, prompt_ids, tiny_model

STEPS = 6
PLAIN_ROWS = tuple(row for row in ROWS if row[1] is None)


def started(arch: str, rows: PromptRows, question: list[int], place: int) -> tuple[Decoder, Tensor]:
    """The rows from this place on after their question, and the logits that it ends with."""
    loaded = tiny_model(arch)
    parts = rows.start(len(question) + STEPS, place)
    decoder = Decoder(loaded, DecodeContext(loaded, parts, lambda: False))
    return decoder, decoder.read(question)


def greedy(decoder: Decoder, logits: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Logits [steps, rows, vocabulary] and the tokens chosen from them."""
    seen, chosen = [logits], [next_tokens(logits)]
    for _ in range(STEPS):
        seen.append(decoder.feed(torch.tensor(chosen[-1])[:, None]))
        chosen.append(next_tokens(seen[-1]))
    return torch.stack(seen), chosen


@pytest.mark.parametrize(
    ("arch", "lengths", "rows"),
    [
        pytest.param("llama", (90, 61), ROWS, id="llama"),
        pytest.param("gemma3", (90, 61), ROWS, id="sliding windows"),
        # One text passes the border of the factors while the other is far from it.
        pytest.param("longrope", (LONGROPE_ORIGINAL - 10, 61), PLAIN_ROWS, id="longrope"),
    ],
)
def test_prompts_of_different_lengths_share_a_batch(arch, lengths, rows):
    """Lengths of prompts, of questions and of what policies leave all differ."""
    loaded = tiny_model(arch)
    with torch.inference_mode():
        prompts = [rows_of(loaded, prompt_ids(n, n), rows) for n in lengths]
        questions = [prompt_ids(5, 1), prompt_ids(9, 2)]
        alone = [
            greedy(*started(arch, prompt, question, 0))
            for prompt, question in zip(prompts, questions, strict=True)
        ]
        halves = [
            started(arch, prompt, question, at * len(rows))
            for at, (prompt, question) in enumerate(zip(prompts, questions, strict=True))
        ]
        parts = [part for decoder, _ in halves for part in decoder.context.parts]
        together = Decoder(loaded, DecodeContext(loaded, parts, lambda: False))
        logits, chosen = greedy(together, torch.cat([logits for _, logits in halves]))
    expected = torch.cat([logits for logits, _ in alone], dim=1)
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert chosen == [
        one + other for one, other in zip(*(tokens for _, tokens in alone), strict=True)
    ]
