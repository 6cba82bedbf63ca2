"""Laws of the SPEC grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.methods.parameters import Budget
from ckv_core.methods.parts.critical import CRITICAL_AUTO
from ckv_core.records.variants import VariantSpec

# Of parameters that declare no range, or a wider one than every budget here holds.
VALUES = {
    "budget": st.sampled_from(["4500", "12.5%", "100%", "3MiB"]),
    "alpha": st.integers(0, 10**6).map(lambda millionths: str(millionths / 10**6)),
    "window": st.integers(1, 64).map(str),
    "sinks": st.integers(0, 4_000).map(str),
    "recent": st.integers(0, 400).map(str),
    "buffer": st.integers(64, 4_096).map(str),
    "blend": st.floats(0, 100).map(str) | st.just("ratio"),
    "spiky": st.integers(1, 9).map(str),  # below any chunk
    "chunk": st.integers(10, 4_096).map(str),
    "table": st.sampled_from(["needle", "duo", "8b_long-1"]),
}
CHOICES = [(method, selector) for method in METHODS for selector in method.selectors]


def values_of(name: str) -> st.SearchStrategy[str]:
    """Texts that this parameter takes."""
    parameter = PARAMETERS[name]
    if name in VALUES:
        return VALUES[name]
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    bounds = parameter.range.removesuffix(", odd")
    low, high = map(type(parameter.default), bounds.split(" to "))
    if isinstance(low, float):
        return st.floats(low, high).map(str)
    step = 2 if "odd" in parameter.range else 1
    return st.integers(0, (high - low) // step).map(lambda steps: str(low + step * steps))


@given(st.data())
def test_a_spec_parses_back_to_an_equal_variant(data):
    method, selector = data.draw(st.sampled_from(CHOICES))
    keys = data.draw(st.sets(st.sampled_from(sorted(PARAMETERS))))
    allowed = [key for key in method.parameters(selector) if key in keys | {"budget"}]
    written = {key: data.draw(values_of(key)) for key in allowed}
    head = method.name + ("" if selector is method.selector else f"+{selector.name}")
    spec = VariantSpec.parse(f"{head}:{','.join(f'{k}={v}' for k, v in written.items())}")
    again = VariantSpec.parse(spec.spec)
    assert again == spec
    assert set(spec.params) == set(method.parameters(selector))


@pytest.mark.parametrize("method", [*METHODS], ids=lambda method: method.name)
def test_a_method_takes_the_preset_where_kvpress_has_it_or_a_parameter_differs(method):
    differs = any(parameter.kvpress is not None for parameter in method.parameters().values())
    assert ("preset" in method.parameters()) == bool(method.press or differs)
    if method.press:
        press = VariantSpec.parse(f"{method.name}:preset=kvpress")
        assert method.press.parameters <= press.params.keys()


def test_a_preset_sets_what_is_not_written_and_nothing_else():
    plain = VariantSpec.parse("snapkv+critical:preset=kvpress,alpha=0.1")
    assert (plain.params["window"], plain.params["pool"]) == (64, "avg")
    assert (plain.params["stage2"], plain.params["product"]) == ("pooled", "group")
    assert plain.params["alpha"] == 0.1


def test_run_wide_values_fill_in_only_what_a_variant_uses_and_leaves_out():
    defaults = {"budget": "64", "alpha": "0.5"}
    assert VariantSpec.parse("full", defaults).params == {}
    assert "alpha" not in VariantSpec.parse("snapkv", defaults).params
    chosen = VariantSpec.parse("snapkv+critical:budget=96", defaults).params
    assert (chosen["budget"], chosen["alpha"]) == ("96", 0.5)


@pytest.mark.parametrize(
    ("text", "tokens"), [("128", 128), ("10%", 149), ("100%", 1_499), ("1MiB", 22)]
)
def test_budgets_resolve_to_whole_tokens_once(text, tokens):
    assert Budget.parse(text).resolve(1_499, 46_080) == tokens


@pytest.mark.parametrize("text", ["", "x", "-5", "0", "1.5", "101%", "10 %%", "1e3", "١٢"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="Budget"):
        Budget.parse(text)


def test_alpha_per_head_takes_every_critical_parameter_but_alpha():
    spec = VariantSpec.parse("snapkv+critical_auto:stage2=pooled,budget=96", {"alpha": "0.5"})
    assert (spec.selector, spec.critical) == (CRITICAL_AUTO, True)
    assert "alpha" not in spec.params
    assert spec.label == "CriticalKV-SnapKV (auto alpha)"
    assert spec.base() == VariantSpec.parse("snapkv:budget=96")
    with pytest.raises(ConfigError, match="does not take 'alpha'"):
        VariantSpec.parse("snapkv+critical_auto:alpha=0.5")
    with pytest.raises(ConfigError, match="'critical' and 'critical_auto' are known"):
        VariantSpec.parse("snapkv+best")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keydiff:rule=adaptive", "scores that cannot be compared between heads"),
        ("h2o:rule=pyramid", "'pyramid' gives heads different budgets"),
        ("snapkv:select=partitions", "has a scorer that does not take 'lag'"),
        ("knorm:select=mass", "has no observation window"),
        ("chunkkv+critical", "has a selector of its own"),
        ("knorm:rule=quadratic", "rule must be one of own, uniform"),
        ("knorm:every=256", "Knorm does not score by an observation window, so 'every' cannot"),
        ("tova:every=256", "TOVA does not score by an observation window, so 'every' cannot"),
        ("full:rule=uniform", "'full' does not take 'rule'"),
        ("snapkv:name=<b>", "A variant's name has up to 40 letters"),
        ("snapkv:name=a,name=b", "'name' is given twice in 'snapkv'"),
        (f"snapkv:name={'x' * 41}", "A variant's name has up to 40 letters"),
        ("snapkv:every=64,to=32", "must be below to"),
        ("snapkv:to=32", "'to' needs 'every'"),
        ("r_kv:window=16,buffer=8", "must be at least the window"),
        ("snapkv:residual=8", "needs 'store=int4'"),
        ("snapkv:store=int8,residual=8", "needs 'store=int4'"),
        ("snapkv:store=int4,pruned=0.4", "needs 'store=think'"),
        ("snapkv:store=think,pruned=1", "pruned must be a number from 0 to 0.95"),
        ("snapkv:layout=rows", "layout must be head, layer or page:N"),
        ("snapkv:layout=page:1", "layout must be head, layer or page:N"),
        ("lagkv:layout=page:16", "take layout=layer"),
        ("snapkv:every=256,to=64,layout=layer", "leave out layout"),
        ("h2o:layout=layer", "does not take 'layout'"),
        ("adakv+critical:alpha=1e-19", "at most 6 decimals"),
        ("adakv+critical:alpha=0.3333333333333333", "at most 6 decimals"),
    ],
)
def test_what_cannot_be_composed_says_why(text, said):
    with pytest.raises(ConfigError, match=said):
        VariantSpec.parse(text)


def test_parts_of_other_methods_bring_their_parameters_and_leave_their_own():
    spec = VariantSpec.parse("adakv:rule=pyramid,select=chunks,beta=5")
    assert {"beta", "pyramid_window", "chunk", "chunks_of", "window"} <= spec.params.keys()
    assert not {"safeguard", "safeguard_rule"} & spec.params.keys()
    assert VariantSpec.parse(spec.spec) == spec
    assert VariantSpec.parse("chunkkv+critical:select=top_k").critical


def test_a_part_that_a_method_has_anyway_is_not_written():
    plain = VariantSpec.parse("snapkv")
    assert VariantSpec.parse("snapkv:rule=uniform,select=own") == plain
    assert VariantSpec.parse("snapkv", {"rule": "own"}) == plain
    assert VariantSpec.parse("snapkv:layout=head") == plain
    assert VariantSpec.parse("snapkv:layout=head", {"layout": "layer"}).params.get("layout") is None


def test_a_name_is_what_readers_see_and_decides_nothing():
    spec = VariantSpec.parse("snapkv+critical:alpha=0.5, name = Half a budget (50 %) ")
    assert (spec.label, spec.spec) == (
        "Half a budget (50 %)",
        "snapkv+critical:alpha=0.5,name=Half a budget (50 %)",
    )
    assert VariantSpec.parse(spec.spec) == spec
    assert spec.settings() == VariantSpec.parse("snapkv+critical:alpha=0.5").settings()
    assert spec.base().label == "SnapKV"
    assert VariantSpec.parse("full:name=Alles").label == "Alles"
