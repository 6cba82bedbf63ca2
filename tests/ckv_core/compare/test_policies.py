"""Rows that evict while they generate: step by step equal to a masked full cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from ckv_core.engine.cache.evicting import EvictingSlots
from ckv_core.engine.cache.prompt_slots import Keep
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.policy_row import Acting, PolicyRow
from ckv_core.engine.rows import PromptRows, RowPlan, prompt_rows
from ckv_core.engine.select import Selection, select
from ckv_core.errors import EngineError
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.methods.parts.store import PLAIN, PlainSegment, Segment, Store
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.variants import VariantSpec
from tests.ckv_core.compare.test_decode_equality import CLOSE, masked, prefilled
from tests.factories.models import plain_model, prompt_ids, tiny_model
from tests.reference.forward import forward
from tests.reference.stepwise import Held, LiteralPolicy, decode

PROMPT_LEN = 90
BUDGET = 24
STEPS = 7


class Scattered(StepPolicy):
    """Another number of entries in every head, prompt and generated; nothing in some steps."""

    name = "scattered"

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        if view.step % 3 == 0:
            return None
        heads = torch.arange(len(view.positions))[:, None]
        mixed = view.positions * 31 + heads * 7 + view.step * 13 + view.layer
        return (mixed % int(parameters["of"]) > 0) & (view.positions >= 0)


def scattered(parameters: Parameters) -> LiteralPolicy:
    def policy(step: int, layer: int, held: Held, _attention: Tensor) -> Held:
        if step % 3 == 0:
            return held
        of = int(parameters["of"])
        return [
            [i for i in row if (i * 31 + head * 7 + step * 13 + layer) % of > 0]
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
        return keep.scatter(1, total.topk(min(int(parameters["budget"]), entries), 1).indices, True)


def summed(parameters: Parameters) -> LiteralPolicy:
    totals: dict[tuple[int, int, int], float] = {}

    def policy(_step: int, layer: int, held: Held, attention: Tensor) -> Held:
        group = len(attention) // len(held)
        kept = []
        for head, row in enumerate(held):
            for i in row:
                seen = sum(float(attention[head * group + g, i]) for g in range(group))
                totals[layer, head, i] = totals.get((layer, head, i), 0.0) + seen
            best = sorted(row, key=lambda i, head=head: -totals[layer, head, i])
            kept.append(sorted(best[: int(parameters["budget"])]))
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
        return _Turned(PLAIN.encode(-keys, -values, parameters))


class Nothing(StepPolicy):
    name = "nothing"

    def after_step(self, view: StepView, parameters: Parameters) -> None:
        return None


def nothing(_parameters: Parameters) -> LiteralPolicy:
    return lambda _step, _layer, held, _attention: held


POLICIES: dict[str, tuple[StepPolicy, Callable[[Parameters], LiteralPolicy], Parameters]] = {
    "none": (Nothing(), nothing, {}),
    "scattered": (Scattered(), scattered, {"of": 9}),
    "summed": (Summed(), summed, {"budget": BUDGET}),
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


def rows_of(loaded: LoadedModel, token_ids: list[int], rows: tuple[Row, ...]) -> PromptRows:
    result = prefilled(loaded, token_ids)
    plans = []
    for spec, policy, store in rows:
        budget = result.prompt_len if spec == "full" else BUDGET
        selection = select(VariantSpec.parse(spec), result, budget)
        acting = None if policy is None else Acting(POLICIES[policy][0], POLICIES[policy][2])
        plans.append(RowPlan([Keep(mask, store) for mask in selection.keep_masks], acting))
    return prompt_rows(result, plans)


def decoder_of(loaded: LoadedModel, rows: PromptRows, capacity: int = 40) -> Decoder:
    return Decoder(loaded, DecodeContext(loaded, rows.start(capacity), lambda: False))


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
    masks = tuple(keep.mask for keep in rows.plans[row].keeps)
    kept = masked(Selection(0, masks, ()), tiny_model(arch), len(token_ids))
    _, literal, parameters = POLICIES[policy or "none"]
    return decode(plain_model(arch), cache, kept, question, generated, literal(parameters))


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_logits_and_held_positions_are_those_of_the_masked_full_cache(arch):
    """Rows of all kinds in one batch: a question, then other tokens in every row."""
    loaded = tiny_model(arch)
    token_ids, question = prompt_ids(PROMPT_LEN), prompt_ids(5, 77)
    fed = [prompt_ids(STEPS, seed) for seed in range(len(ROWS))]
    with torch.inference_mode():
        rows = rows_of(loaded, token_ids, ROWS)
        decoder = decoder_of(loaded, rows)
        decoder.read(question)
        actual = [decoder.feed(torch.tensor(fed)[:, at : at + 1]) for at in range(STEPS)]
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


def _decoded(loaded: LoadedModel, rows: PromptRows, fed: Tensor) -> Tensor:
    """Logits after each token, fed one by one, [rows, tokens, vocabulary]."""
    decoder = decoder_of(loaded, rows)
    return torch.stack([decoder.feed(fed[:, at : at + 1]) for at in range(fed.shape[1])], 1)


@pytest.fixture(scope="module")
def llama_rows() -> PromptRows:
    with torch.inference_mode():
        loaded = tiny_model("llama")
        return rows_of(loaded, prompt_ids(PROMPT_LEN), ROWS)


@pytest.fixture(scope="module")
def whole(llama_rows) -> Tensor:
    """Logits of all rows after each of `fed_tokens()`."""
    with torch.inference_mode():
        return _decoded(tiny_model("llama"), llama_rows, fed_tokens())


def fed_tokens(seed: int = 3) -> Tensor:
    return torch.tensor([prompt_ids(STEPS, seed + row) for row in range(len(ROWS))])


def test_a_text_read_in_one_go_is_as_if_fed_token_by_token(llama_rows, whole):
    """Rows with a policy take single tokens, the others chunks, and every row gets its own."""
    with torch.inference_mode():
        together = decoder_of(tiny_model("llama"), llama_rows).feed_all(fed_tokens())
    torch.testing.assert_close(together, whole, **CLOSE)


def test_a_later_decoding_starts_from_what_selection_left(llama_rows, whole):
    with torch.inference_mode():
        assert torch.equal(whole, _decoded(tiny_model("llama"), llama_rows, fed_tokens()))


def test_a_pass_that_is_not_kept_leaves_no_trace(llama_rows, whole):
    loaded, fed = tiny_model("llama"), fed_tokens()
    with torch.inference_mode():
        decoder = decoder_of(loaded, llama_rows)
        looked = decoder.feed(fed[:, :1], commit=False)
        assert torch.equal(looked, decoder.feed(fed[:, :1]))
        decoder.feed(fed[:, 2:3], commit=False)
        assert torch.equal(decoder.feed(fed[:, 1:2]), whole[:, 1])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.permutations(range(len(ROWS))))
def test_rows_that_leave_change_nothing_for_the_others(llama_rows, whole, order):
    """Whatever leaves first; what stays may be in another order."""
    loaded, fed = tiny_model("llama"), fed_tokens()
    with torch.inference_mode():
        decoder, rows = decoder_of(loaded, llama_rows), list(range(len(ROWS)))
        for step in range(len(ROWS)):
            logits = decoder.feed(fed[rows, step : step + 1])
            torch.testing.assert_close(logits, whole[rows, step], **CLOSE)
            going = [row for row in order[step + 1 :] if row in rows]
            decoder.context.keep_rows([rows.index(row) for row in going])
            rows = going
        assert not decoder.context.parts


class Wrong(StepPolicy):
    name = "wrong"

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor:
        return torch.ones(1, 1, dtype=torch.bool)


def test_an_answer_of_another_shape_is_refused(llama_rows):
    loaded = tiny_model("llama")
    plan = RowPlan(llama_rows.plans[0].keeps, Acting(Wrong(), {}))
    with torch.inference_mode():
        result = prefilled(loaded, prompt_ids(PROMPT_LEN))
        decoder = decoder_of(loaded, prompt_rows(result, [plan]))
        with pytest.raises(EngineError, match="'wrong' gave an answer of the wrong shape"):
            decoder.feed(torch.tensor([[5]]))
