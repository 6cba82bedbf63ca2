"""`store=int8|int4|think`: as if a full cache had gone through them; bytes as receipted."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckv_core.engine.compare import compare
from ckv_core.engine.prefill import Needs, prefill
from ckv_core.experiment.sweep import curves
from ckv_core.methods import STORES
from ckv_core.methods.attention import written_out
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.records.byte_budget import budget_bytes, requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest
from tests.factories.events import folded
from tests.factories.models import drained, tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference.checks import kept_of
from tests.reference.evicting_methods import h2o, tova
from tests.reference.report import report
from tests.reference.stores import quarter_kept, round_kept, thin_kept

pytestmark = pytest.mark.slow

RESIDUAL, BUDGET = 8, 60
METHODS = ("snapkv:window=8", "adakv:window=8", "tova", "h2o")
LITERAL = {"tova": tova, "h2o": h2o}
DEFAULTS = {"residual": 32, "pruned": 0.4}


def run(arch: str, *specs: str, context: int = 150) -> RunResult:
    asked = short_request("full", *specs, context=report()[:context], max_new_tokens=8)
    return folded(compare(asked, tiny_model(arch)))


def with_keys(spec: str, *pairs: str) -> str:
    return f"{spec}{',' if ':' in spec else ':'}{','.join(pairs)}"


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_runs_write_what_an_encoded_masked_full_cache_writes(arch, store):
    """Whatever the method, also where it goes on evicting."""
    budget = 25 if store == "int8" else BUDGET
    residual = () if store == "int8" else (f"residual={RESIDUAL}",)
    own = (f"budget={budget}", f"store={store}", *residual)
    result = run(arch, *(with_keys(spec, *own) for spec in METHODS))
    plain = PlainRun(arch, result)
    for variant in result.variants[1:]:
        kept = kept_of(result, variant)
        cache, tap, _ = plain.read()
        begin, policy = LITERAL.get(variant.method, lambda _: (None, None))(budget)
        if begin:
            plain.begun(begin, tap)
        if store == "int8":
            round_kept(cache, kept)
        elif store == "int4":
            quarter_kept(cache, kept, RESIDUAL)
        else:
            thin_kept(cache, kept, RESIDUAL, 0.4, last_queries(arch, plain.compressed))
        plain.check_tokens(variant, cache, policy)
        counts = [sum(row) for heads in kept if heads is not None for row in heads]
        dim = plain.info.head_dim
        sizes = [STORES[store].head_bytes(n, dim, 4, variant.params) for n in counts]
        assert variant.receipt.cache_bytes == sum(sizes)
        if store == "int8":  # a scale per entry's values, and per channel of a head's keys
            assert sum(sizes) == sum(counts) * (2 * dim + 4) + len(counts) * dim * 4


def last_queries(arch: str, token_ids: list[int]) -> list[list[list[list[float]]]]:
    """Of the prompt, after RoPE."""
    with torch.inference_mode():
        found = drained(prefill(tiny_model(arch), token_ids, Needs(), lambda: False))
    return [states.queries[:, -32:].tolist() for states in found.layers]


@settings(deadline=None, max_examples=25)
@given(
    store=st.sampled_from([*STORES]),
    length=st.integers(1, 100),
    dim=st.sampled_from([6, 7, 32, 64]),
    spread=st.sampled_from([0.0, 0.1, 3.0]),
    seed=st.integers(0, 99),
)
def test_attention_over_an_encoded_cache_stays_within_its_bound(store, length, dim, spread, seed):
    """|p' - p| sums to at most e^(2 d) - 1 where no logit moves by more than d."""
    make = torch.Generator().manual_seed(seed)
    keys, values, queries = (
        torch.randn(2, n, dim, generator=make) * spread for n in (length, length, 3)
    )
    keys[..., 0] += 5  # channels of keys differ in size
    weights = queries.square().mean(1)
    segment = STORES[store].encode(keys, values, DEFAULTS | {"residual": 4}, weights)
    own_keys, own_values = segment.decoded()
    assert (segment.heads, segment.length) == (2, length)
    head_bytes = STORES[store].head_bytes(length, dim, 4, DEFAULTS | {"residual": 4})
    assert segment.nbytes == 2 * head_bytes
    key_moved, value_moved = (own_keys - keys).abs(), (own_values - values).abs()
    for moved, bound in zip((key_moved, value_moved), moved_by(store, keys, values), strict=True):
        assert (moved <= bound * (1 + 1e-4) + 1e-6).all()
    scaling = Scaling(dim**-0.5)
    plain, _ = written_out(queries, keys, values, scaling, None)
    found, _ = segment.attend(queries, scaling)
    logit = float((queries.abs() @ key_moved.transpose(1, 2)).max()) * scaling.factor
    allowed = float(value_moved.max()) + math.expm1(2 * logit) * float(values.abs().max())
    assert float((found - plain).abs().max()) <= allowed * (1 + 1e-4) + 1e-5


def test_think_weighs_a_channel_by_all_kept_keys():
    """Of two channels the one stays that the newest keys, which stay whole, make the larger."""
    keys = torch.ones(1, 12, 2)
    keys[:, :8, 1], keys[:, 8:, 1] = 0.5, 9.0
    segment = STORES["think"].encode(keys, keys, {"residual": 4, "pruned": 0.5}, torch.ones(1, 2))
    decoded, _ = segment.decoded()
    assert decoded[0, :8].tolist() == [[0.0, 0.5]] * 8
    assert torch.equal(decoded[0, 8:], keys[0, 8:])


def moved_by(store: str, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """How far one number may be from its own, for keys and values."""
    if store == "think":
        return keys.abs(), torch.zeros_like(values)
    if store == "int8":  # half a step of 127 to the largest
        return keys.abs().amax(1, True) / 254, values.abs().amax(2, True) / 254
    rounding = 2**-10  # of the ends of a group, held as float16
    found = []
    for states, over in ((keys, 1), (values, 2)):
        width = states.amax(over, True) - states.amin(over, True)
        found.append(width / 30 + rounding * (states.abs().amax(over, True) + width))
    return tuple(found)


@settings(deadline=None, max_examples=25)
@given(
    store=st.sampled_from(["int4", "think"]),
    length=st.integers(2, 80),
    seed=st.integers(0, 99),
)
def test_what_is_evicted_later_leaves_the_others_as_they_were(store, length, seed):
    make = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 3, length, 16, generator=make)
    segment = STORES[store].encode(keys, values, DEFAULTS | {"residual": 5}, keys.square().mean(1))
    heads = torch.tensor([2, 0])
    for whole, taken in zip(segment.decoded(), segment.take(heads).decoded(), strict=True):
        assert torch.equal(taken, whole[heads])
    for stretch in segment.stretches:
        part = stretch
        for _ in range(2):  # again from what is left
            decoded = part.decoded()
            count = int(torch.randint(0, part.length + 1, (), generator=make))
            order = torch.rand(3, part.length, generator=make).argsort(1)
            places = order[:, :count].sort(1).values
            part = part.keep(places)
            assert part.length == count
            for whole, left in zip(decoded, part.decoded(), strict=True):
                assert torch.equal(left, whole.gather(1, places[..., None].expand(-1, -1, 16)))


def test_a_budget_in_bytes_puts_stores_and_eviction_on_one_axis():
    names = ("snapkv:window=8", "adakv:window=8", "keydiff")
    stores = ("", "store=int8", "store=int4,residual=8", "store=think,residual=8")
    specs = [
        with_keys(name, *filter(None, ("budget=0.05MiB", s))) for name in names for s in stores
    ]
    result = run("llama", *specs, context=400)
    kept: dict[str, list[int]] = {}
    for variant in result.variants[1:]:
        asked = requested_bytes(result, variant)
        assert asked == budget_bytes(variant) == int(0.05 * 2**20)
        assert 0.95 * asked <= variant.receipt.cache_bytes <= 1.05 * asked, variant.spec
        kept.setdefault(variant.method, []).append(variant.receipt.retained_entries)
    for plain, eight, four, thin in kept.values():
        assert plain < thin < eight < four


@pytest.mark.parametrize(("store", "size"), [("int8", 2 * 8 * 4), ("int4", 0), ("think", 0)])
def test_heads_that_keep_nothing_hold_at_most_their_scales(store, size):
    empty = STORES[store].encode(torch.zeros(2, 0, 8), torch.zeros(2, 0, 8), DEFAULTS)
    assert empty.nbytes == size
    assert [states.shape for states in empty.decoded()] == [(2, 0, 8)] * 2


def test_a_sweep_over_bytes_has_one_axis_for_all_stores():
    methods = ("snapkv:window=8", "snapkv:window=8,store=int4,residual=8")
    sizes = ("0.02MiB", "0.04MiB")
    asked = RunRequest(context=report()[:400], variants=methods, budgets=sizes)
    result = folded(compare(asked, tiny_model("llama")))
    found = [(c.unit, [str(budget) for budget, _ in c.rows]) for c in curves(result)]
    assert found == [("mib", ["0.02MiB", "0.04MiB"])] * 2
    mixed = RunResult(variants=[*result.variants, replace(result.variants[1], spec="snapkv")])
    assert {curve.unit for curve in curves(mixed)} == {"tokens"}
