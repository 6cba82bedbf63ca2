"""Rows that evict while they generate equal a masked full cache; of other prompts too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from ckv_core.engine.cache.evicting import EvictingSlots
from ckv_core.engine.cache.slots import Keep, PromptSlots
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.generation import next_tokens
from ckv_core.engine.rows import Acting, PolicyRow, PromptRows, RowPlan, prompt_rows
from ckv_core.errors import EngineError
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.methods.parts.store import PLAIN, PlainSegment, ResidualSegment, Segment, Store
from ckv_core.models.loaded import LoadedModel
from tests.factories.decoding import CLOSE, masked, prefilled, selected, started
from tests.factories.models import LONGROPE_ORIGINAL, plain_model, prompt_ids, tiny_model
from tests.reference.forward import Held, LiteralPolicy, decode, forward

PROMPT_LEN, BUDGET, STEPS, CAPACITY = 90, 24, 7, 40
ONE_OF = 9  # entries goes, where they are scattered


class Scattered(StepPolicy):
    """Another number of entries in every head, prompt and generated; nothing in some steps."""

    name = "scattered"

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        if view.step % 3 == 0:
            return None
        heads = torch.arange(len(view.positions))[:, None]
        mixed = view.positions * 31 + heads * 7 + view.step * 13 + view.layer
        return (mixed % ONE_OF > 0) & (view.positions >= 0)


def scattered() -> LiteralPolicy:
    def policy(step: int, layer: int, held: Held, _attention: Tensor) -> Held:
        if step % 3 == 0:
            return held
        return [
            [i for i in row if (i * 31 + head * 7 + step * 13 + layer) % ONE_OF > 0]
            for head, row in enumerate(held)
        ]

    return policy


class Summed(StepPolicy):
    """Each head goes on with the entries that got most attention since generation began."""

    name = "summed"
    needs_probabilities = True

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        kv_heads, entries = view.positions.shape
        seen = view.probabilities.view(kv_heads, -1, entries).sum(1)
        total = view.carried.get("total", torch.zeros_like(seen)) + seen
        view.carried["total"] = total
        total = total.masked_fill(view.positions < 0, -1)
        keep = torch.zeros_like(view.positions, dtype=torch.bool)
        return keep.scatter(1, total.topk(min(BUDGET, entries), 1).indices, True)


def summed() -> LiteralPolicy:
    totals: dict[tuple[int, int, int], float] = {}

    def policy(_step: int, layer: int, held: Held, attention: Tensor) -> Held:
        group = len(attention) // len(held)
        kept = []
        for head, row in enumerate(held):
            for i in row:
                seen = sum(float(attention[head * group + g, i]) for g in range(group))
                totals[layer, head, i] = totals.get((layer, head, i), 0.0) + seen
            best = sorted(row, key=lambda i, head=head: -totals[layer, head, i])
            kept.append(sorted(best[:BUDGET]))
        return kept

    return policy


@dataclass(frozen=True, slots=True)
class _Turned(Segment):
    """Exact, but not plain: what is generated cannot join it."""

    inner: PlainSegment

    heads = property(lambda self: self.inner.heads)
    length = property(lambda self: self.inner.length)
    nbytes = property(lambda self: self.inner.nbytes)

    def decoded(self) -> tuple[Tensor, Tensor]:
        return -self.inner.keys, -self.inner.values

    def take(self, heads: Tensor) -> Segment:
        return _Turned(self.inner.take(heads))

    def keep(self, places: Tensor) -> Segment:
        return _Turned(self.inner.keep(places))


class Turned(Store):
    name = "turned"

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        early = keys.shape[1] - 3 * (keys.shape[1] % 4 > 0)  # of most counts the newest stay plain
        turned = _Turned(PLAIN.encode(-keys[:, :early], -values[:, :early], parameters))
        if early == keys.shape[1]:
            return turned
        return ResidualSegment(turned, PlainSegment(keys[:, early:], values[:, early:]))


POLICIES: dict[str, tuple[StepPolicy, Callable[[], LiteralPolicy]]] = {
    "scattered": (Scattered(), scattered),
    "summed": (Summed(), summed),
}
Row = tuple[str, str | None, Store]  # SPEC, policy, store
ROWS: tuple[Row, ...] = (
    ("full", None, PLAIN),
    ("snapkv:window=8", "summed", PLAIN),
    ("adakv:window=8", "summed", PLAIN),
    ("snapkv:window=8", None, PLAIN),
    ("full", "scattered", PLAIN),
    ("adakv:window=8", "scattered", Turned()),
    ("full", "summed", Turned()),
)
STEADY = tuple(row for row in ROWS if row[1] is None)


def rows_of(loaded: LoadedModel, token_ids: list[int], rows: tuple[Row, ...] = ROWS) -> PromptRows:
    result = prefilled(loaded, token_ids)
    plans, selections = [], selected(result, [spec for spec, *_ in rows], BUDGET)
    for (_, policy, store), selection in zip(rows, selections, strict=True):
        acting = None if policy is None else Acting(POLICIES[policy][0], {})
        plans.append(RowPlan([Keep(mask, store) for mask in selection.keep_masks], acting))
    return prompt_rows(result, plans)


def held_at_end(part: Any) -> list[Held | None]:
    return [
        [[i for i in row if i >= 0] for row in layer.positions().tolist()]
        if isinstance(layer, EvictingSlots)
        else None
        for layer in part.layers
    ]


def expected(
    arch: str, rows: PromptRows, row: int, policy: str | None, texts: tuple[list[int], ...]
) -> tuple[list[Tensor], list[Held | None]]:
    """Prompt, question and generated tokens through the masked full cache."""
    token_ids, question, generated = texts
    cache = DynamicCache(config=plain_model(arch).config)
    forward(plain_model(arch), token_ids, cache)
    masks = [keep.mask for keep in rows.plans[row].keeps]
    kept = masked(masks, tiny_model(arch), len(token_ids))
    literal = POLICIES[policy][1]() if policy else lambda _step, _layer, held, _attention: held
    return decode(plain_model(arch), cache, kept, question, generated, literal)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_logits_and_held_positions_are_those_of_the_masked_full_cache(arch):
    """Rows of all kinds in one batch: a question, then other tokens in every row."""
    loaded = tiny_model(arch)
    token_ids, question = prompt_ids(PROMPT_LEN), prompt_ids(5, 77)
    fed = [prompt_ids(STEPS, seed) for seed in range(len(ROWS))]
    with torch.inference_mode():
        rows = rows_of(loaded, token_ids)
        decoder = started(loaded, rows, CAPACITY)
        decoder.read(question)
        grown = [part.grown_bytes for part in decoder.context.parts]
        actual = [decoder.feed(torch.tensor(fed)[:, at : at + 1]) for at in range(STEPS)]
    beside = [0, *(_plain_beside(layers) for layers in rows.alone.values())]
    pairs = zip(decoder.context.parts, beside, strict=True)
    assert grown == [_grown(part, len(question)) + more for part, more in pairs]
    assert any(beside)
    parts = {part.places[0]: part for part in decoder.context.parts if isinstance(part, PolicyRow)}
    for row, (_, policy, _) in enumerate(ROWS):
        logits, held = expected(arch, rows, row, policy, (token_ids, question, fed[row]))
        torch.testing.assert_close(
            torch.stack([a[row] for a in actual]), torch.stack(logits), **CLOSE
        )
        if policy is not None:
            assert held_at_end(parts[row]) == held
            bytes_held = sum(len(each) for layer in held for each in layer or []) * 2 * 16 * 4
            assert parts[row].held[-1][1] == bytes_held


def _grown(part: Any, read: int) -> int:
    """Bytes beside the prompt: what was read where a row evicts, else each row's whole tail."""
    tails = [
        read if isinstance(layer, EvictingSlots) else len(part.places) * CAPACITY
        for layer in part.layers
    ]
    return sum(tails) * 2 * 2 * 16 * 4  # KV heads, keys and values, dimensions, float32


def _plain_beside(layers: Sequence[PromptSlots]) -> int:
    """Bytes of the plain entries beside a store's own, which the generated ones join."""
    segments = [stack.segment for layer in layers for stack in layer.stacks]
    return sum(part.nbytes for each in segments for part in each.stretches[1:])


def _decoded(loaded: LoadedModel, rows: PromptRows, fed: Tensor) -> Tensor:
    """Logits after each token, fed one by one, [rows, tokens, vocabulary]."""
    decoder = started(loaded, rows)
    return torch.stack([decoder.feed(fed[:, at : at + 1]) for at in range(fed.shape[1])], 1)


@pytest.fixture(scope="module")
def llama_rows() -> PromptRows:
    with torch.inference_mode():
        return rows_of(tiny_model("llama"), prompt_ids(PROMPT_LEN))


@pytest.fixture(scope="module")
def whole(llama_rows) -> Tensor:
    """Logits of all rows after each of `fed_tokens()`."""
    with torch.inference_mode():
        return _decoded(tiny_model("llama"), llama_rows, fed_tokens())


def fed_tokens(seed: int = 3) -> Tensor:
    return torch.tensor([prompt_ids(STEPS, seed + row) for row in range(len(ROWS))])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.permutations(range(len(ROWS))))
def test_rows_that_leave_change_nothing_for_the_others(llama_rows, whole, order):
    """Whatever leaves first; what stays may be in another order."""
    loaded, fed = tiny_model("llama"), fed_tokens()
    with torch.inference_mode():
        decoder, rows = started(loaded, llama_rows), list(range(len(ROWS)))
        for step in range(len(ROWS)):
            logits = decoder.feed(fed[rows, step : step + 1])
            torch.testing.assert_close(logits, whole[rows, step], **CLOSE)
            going = [row for row in order[step + 1 :] if row in rows]
            decoder.context.keep_rows([rows.index(row) for row in going])
            rows = going
        assert not decoder.context.parts


def test_an_answer_of_another_shape_is_refused(llama_rows):
    class Wrong(StepPolicy):
        name = "wrong"

        def after_step(self, view: StepView, parameters: Parameters) -> Tensor:
            return torch.ones(1, 1, dtype=torch.bool)

    loaded = tiny_model("llama")
    plan = RowPlan(llama_rows.plans[0].keeps, Acting(Wrong(), {}))
    with torch.inference_mode():
        rows = prompt_rows(prefilled(loaded, prompt_ids(PROMPT_LEN)), [plan])
        with pytest.raises(EngineError, match="'wrong' gave an answer of the wrong shape"):
            started(loaded, rows).feed(torch.tensor([[5]]))


# --- rows of different prompts in one batch: every row as if it were alone ------------------


def after_question(
    arch: str, rows: PromptRows, question: list[int], place: int
) -> tuple[Decoder, Tensor]:
    """The rows from this place on after their question, and the logits that it ends with."""
    decoder = started(tiny_model(arch), rows, len(question) + STEPS, place)
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
        pytest.param("longrope", (LONGROPE_ORIGINAL - 10, 61), STEADY, id="longrope"),
    ],
)
def test_prompts_of_different_lengths_share_a_batch(arch, lengths, rows):
    """Lengths of prompts, of questions and of what policies leave all differ."""
    loaded = tiny_model(arch)
    questions = [prompt_ids(5, 1), prompt_ids(9, 2)]
    with torch.inference_mode():
        asked = [
            (rows_of(loaded, prompt_ids(n, n), rows), q)
            for n, q in zip(lengths, questions, strict=True)
        ]
        alone = [greedy(*after_question(arch, *each, 0)) for each in asked]
        halves = [after_question(arch, *each, at * len(rows)) for at, each in enumerate(asked)]
        parts = [part for decoder, _ in halves for part in decoder.context.parts]
        together = Decoder(loaded, DecodeContext(loaded, parts, lambda: False))
        logits, chosen = greedy(together, torch.cat([logits for _, logits in halves]))
    expected = torch.cat([logits for logits, _ in alone], dim=1)
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert chosen == [one + other for one, other in zip(alone[0][1], alone[1][1], strict=True)]
