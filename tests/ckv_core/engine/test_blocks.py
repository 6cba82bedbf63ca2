"""Eviction between blocks of the prompt: as a literal reference, within its budget, told whole."""

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
from transformers import DynamicCache

from ckv_core.engine import blocks
from ckv_core.engine import compare as comparing
from ckv_core.engine.compare import compare, prepare
from ckv_core.engine.memory import Sizes
from ckv_core.errors import ConfigError
from ckv_core.experiment.verdict import verdict_of
from ckv_core.methods import METHODS
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import RunResult, VariantFinished, VariantSelected
from ckv_core.records.passages import spans_of
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec
from tests.factories.events import folded
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference.agnostic_scores import key_difference, lag_relative, lagkv, lots
from tests.reference.forward import evictable_layers, forward
from tests.reference.report import report

BUDGET = 60
LAG = 8
# Methods that may evict between blocks of the prompt; each has its literal loop in `best`.
IN_BLOCKS = {"curdkv", "keydiff", "knorm", "lagkv", "random", "streaming_llm", "triattention"}


def run(*specs: str, arch: str = "llama", **changes: object) -> RunResult:
    asked = short_request(
        *specs, **{"context": report()[:200], "budgets": (str(BUDGET),)} | changes
    )
    return folded(compare(asked, tiny_model(arch)))


def literal(plain: PlainRun, method: str, size: int, sinks: int, protected: set[int]):
    """Read a prompt in blocks over a masked full cache: that, what is kept, and the last logits."""
    model, cache, tokens = plain.model, DynamicCache(config=plain.model.config), plain.compressed
    held = {at: [[] for _ in range(plain.info.kv_heads)] for at in evictable_layers(model)}
    for start in range(0, len(tokens), size):
        end = min(start + size, len(tokens))
        kept = masks(held, start, plain.info.layers)
        logits = forward(model, tokens[start:end], cache, kept=kept)
        for layer, heads in held.items():
            for head, row in enumerate(heads):
                row.extend(range(start, end))
                if len(row) > BUDGET:
                    states = cache.layers[layer]
                    pair = [s[0, head][row].double().tolist() for s in (states.keys, states.values)]
                    always = {p for p in row if p < sinks or p in protected}
                    heads[head] = best(method, row, pair, always, (layer, head, len(tokens)))
    return cache, masks(held, len(tokens), plain.info.layers), logits


def best(method: str, row: list[int], pair, always: set[int], place) -> list[int]:
    keys, values = pair
    if method == "lagkv":  # places in what is held, in order
        first = len([p for p in row if p < 16])
        scores = lag_relative(keys[first:], values[first:], LAG)
        kept = lagkv(scores, len(row) - first - len(scores) * LAG, BUDGET - first)
        return [p for at, p in enumerate(row) if at < first or at - first in kept]
    scores = {
        "keydiff": lambda: key_difference(keys),
        "streaming_llm": lambda: [float(p) for p in row],
        "random": lambda: [lots(0, place[0], place[1], place[2])[p] for p in row],
    }[method]()
    worth = dict(zip(row, scores, strict=True))
    order = sorted(row, key=lambda p: (p not in always, -worth[p], p))
    return sorted(order[:BUDGET])


def masks(held, length: int, layers: int):
    """As `forward` takes them; of no token there is none."""
    kept = [None] * layers
    for layer, heads in held.items() if length else ():
        kept[layer] = [[p in set(row) for p in range(length)] for row in heads]
    return kept


@pytest.mark.parametrize(
    ("arch", "method", "sinks", "size"),
    [
        ("llama", "keydiff", 0, 16),
        ("gemma3", "keydiff", 0, 33),
        ("llama", "streaming_llm", 4, 33),
        ("gemma3", "random", 0, 33),
        ("qwen3_next", "keydiff", 0, 33),
    ],
)
def test_it_equals_a_masked_full_cache_read_block_by_block(arch, method, sinks, size):
    spec, protect = f"{method}:prefill=blocks:{size}", (report()[80:100],)
    result = run(spec, arch=arch, scenario="regular", protect=protect)
    check(result, arch, method, sinks, size, protect)


def test_lagkv_counts_partitions_in_what_is_held():
    check(run(f"lagkv:lag={LAG},prefill=blocks:33"), "llama", "lagkv", 16, 33, ())


def check(result: RunResult, arch: str, method: str, sinks: int, size: int, protect) -> None:
    plain, (variant,) = PlainRun(arch, result), result.variants
    protected = {
        p for text in protect for span in spans_of(result.prompt, text) for p in range(*span)
    }
    if variant.params.get("keep_question") == "on":
        protected |= set(result.prompt.question)
    cache, kept, logits = literal(plain, method, size, sinks, protected)
    mask, evictable = variant.retained.mask(), result.model.evictable_layers
    wanted = np.array([kept[layer] for layer in evictable])
    assert (mask[list(evictable)] == wanted).mean() > 0.995  # equal scores may change places
    assert mask[list(evictable)].sum() == wanted.size // len(plain.compressed) * BUDGET
    assert variant.receipt.retained_entries == variant.receipt.requested_entries
    if plain.question:
        logits = forward(plain.model, plain.question, cache, kept=kept)
    tokens = [int(logits.argmax())]
    while len(tokens) < len(variant.token_ids):
        tokens.append(int(forward(plain.model, tokens[-1:], cache, kept=kept).argmax()))
    assert tokens == list(variant.token_ids)


def test_blocks_change_nothing_where_the_score_knows_no_other_entry():
    """A number or a place is the same in every block; a block of all tokens is the whole prompt."""
    for method in ("random", "random:lots=alike", "streaming_llm", "keydiff"):
        joint = "," if ":" in method else ":"
        size = 65_536 if method == "keydiff" else 40
        whole, own = run(method, f"{method}{joint}prefill=blocks:{size}").variants
        assert whole.retained == own.retained
    assert whole.token_ids == own.token_ids


def test_a_long_block_is_read_in_several_passes(monkeypatch):
    once = run("keydiff:prefill=blocks:64").variants[0]
    monkeypatch.setattr(blocks, "chunk_tokens", lambda device: 24)
    again = run("keydiff:prefill=blocks:64").variants[0]
    assert (once.retained, once.token_ids) == (again.retained, again.token_ids)


def test_stores_policies_and_follow_up_questions_go_on_from_it():
    specs = ("knorm:store=int8", "keydiff:store=think", "streaming_llm:rolling=on")
    own = [f"{spec},prefill=blocks:32" for spec in specs]
    result = run("full", *own, follow_ups=("Who?",), analysis=("forced",))
    full, *others = result.variants
    assert full.memory is None
    for variant in others:
        assert len(variant.follow_ups) == 1
        assert {"forced_kl", "forced_top1"} <= set(variant.analysis)
        assert variant.perturbation is not None
        assert variant.timings_ms["prefill"] > 0
        assert any("prefill of its own" in each for each in variant.receipt.warnings)
        assert variant.memory.read[-1] == result.prompt.compressed_tokens
        assert set(variant.memory.held[2:]) == {
            full.receipt.cache_bytes // full.receipt.budget_tokens * BUDGET
        }
    assert others[2].held is not None
    assert from_json(to_json(result)).variants[1].memory == others[0].memory


@pytest.mark.parametrize("method", METHODS.by_name)
def test_methods_read_in_blocks_or_say_why_not(method):
    spec = f"{method}:prefill=blocks:1024"
    reason = METHODS.get(method).unfit_for_blocks()
    if reason:
        with pytest.raises(ConfigError, match=r"prefill") as refused:
            VariantSpec.parse(spec)
        assert reason in str(refused.value)
    else:
        assert VariantSpec.parse(spec).block == 1024
    assert (not reason) == (method in IN_BLOCKS), f"IN_BLOCKS here is wrong about {method}"


@pytest.mark.parametrize(
    "spec", ["random+critical:prefill=blocks:64", "knorm:layout=layer,prefill=blocks:64"]
)
def test_what_needs_one_prefill_is_refused(spec):
    with pytest.raises(ConfigError, match="prefill=blocks"):
        VariantSpec.parse(spec)
    with pytest.raises(ConfigError, match="whole or blocks"):
        VariantSpec.parse("knorm:prefill=blocks:3")
    with pytest.raises(ConfigError, match="protected texts would move"):
        run("lagkv:lag=8,prefill=blocks:32", protect=(report()[80:100],))


def test_the_peak_is_a_third_of_the_full_cache(monkeypatch):
    """8,000 tokens at 10 %: bytes of all that the prefill holds while a layer is cut down."""
    peaks = []

    class Counted(blocks._BlockReader):
        def _keep(self, layer, keys, values):
            made = [self.layers[at] for at in self.positions]
            rooms = {
                id(s.keys.untyped_storage()): s.keys.untyped_storage().nbytes() * 2 for s in made
            }
            peaks.append(max(rooms.values()) + 2 * (keys.nbytes + values.nbytes))
            super()._keep(layer, keys, values)

    monkeypatch.setattr(blocks, "_BlockReader", Counted)
    loaded = tiny_model("llama", max_position_embeddings=16_384, num_hidden_layers=8)
    context = (report() * 10)[:8_600]
    asked = RunRequest(
        context=context,
        variants=("keydiff:budget=10%,prefill=blocks:1024",),
        max_new_tokens=1,
        reference=False,
    )
    result = folded(compare(asked, loaded))
    full = result.variants[0].receipt.full_cache_bytes
    assert result.prompt.tokens > 8_000
    assert max(peaks) < 0.25 * full
    whole = Sizes.of(
        prepare(replace(asked, variants=("keydiff:budget=10%",)), loaded, lambda: False)
    )
    own = Sizes.of(prepare(asked, loaded, lambda: False))
    assert max(peaks) < own.prefill_peak < 0.6 * whole.prefill_peak


# --- without the full cache ------------------------------------------------------------------


def test_without_it_variants_write_the_same_and_nothing_is_measured_against_it():
    specs = ("full", "snapkv", "snapkv+critical", "knorm:prefill=blocks:32", "tova")
    settings = {"answer": "harbour", "follow_ups": ("Who?",)}
    beside, alone = run(*specs, **settings), run(*specs, reference=False, **settings)
    assert alone.floor is None
    peaks = [p for v in alone.variants for p in (v.memory.prefill_peak, v.memory.decode_peak)]
    assert alone.memory.get("measured_peak") == max(filter(None, peaks), default=None)
    for one, other in zip(beside.variants, alone.variants, strict=True):
        assert (one.text, one.retained) == (other.text, other.retained)
        assert replace(one.receipt, warnings=()) == replace(other.receipt, warnings=())
        assert [each.text for each in one.follow_ups] == [each.text for each in other.follow_ups]
        assert other.perturbation is other.agreement is other.first_difference is None
        assert other.answer_found is not None
        peaks = other.memory.prefill_peak, other.memory.decode_peak
        estimates = other.memory.prefill_estimate, other.memory.decode_estimate
        assert all(p is None or p <= e for p, e in zip(peaks, estimates, strict=True))
    assert from_json(to_json(alone)).variants[1].memory == alone.variants[1].memory
    assert verdict_of(alone).headline
    assert not math.isnan(alone.timings_ms["decode"])


def test_without_it_the_prefill_is_gone_before_a_variant_decodes(monkeypatch):
    read = []

    def watched(*arguments):
        prefilled = yield from reading(*arguments)
        read.append(weakref.ref(prefilled.layers[0].keys))
        return prefilled

    reading = comparing.read_prompt
    monkeypatch.setattr(comparing, "read_prompt", watched)
    events = compare(
        short_request("snapkv:budget=40", "full", reference=False), tiny_model("llama")
    )
    alive = []
    for event in events:
        if isinstance(event, VariantSelected | VariantFinished):
            gc.collect()
            alive.append(read[-1]() is not None)
    assert alive == [True, False, True, False]
    assert len(read) == 2


def test_what_needs_the_full_cache_is_refused_without_it():
    for changes in ({"analysis": ("bounds",)}, {"budgets": ("10%", "20%")}):
        asked = short_request("snapkv", reference=False, **changes)
        with pytest.raises(ConfigError, match="full cache"):
            asked.validate()
