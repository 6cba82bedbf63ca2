"""The charts of a run: which there are, what can be chosen in each, and how each is drawn."""

from collections.abc import Callable, Sequence
from typing import cast

import plotly.graph_objects as go

from ckv_core.request.identity import base_index
from ckv_core.results.chain import shared_kv_heads
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import ARRAYS
from ui.charts.ablation import ablation_figure, ablation_steps_of
from ui.charts.bounds import bounds_figure, sigma_figure, tightness_figure
from ui.charts.cache import budgets_figure
from ui.charts.chart import Chart, Choices, Control
from ui.charts.fidelity import fidelity_figure
from ui.charts.heads import Against, chosen_alphas_figure, head_grid_figure
from ui.charts.layers import ORACLES, final_figure, head_layer_figure, layer_figure
from ui.charts.layers import Against as LayerAgainst
from ui.charts.layout import display_names
from ui.charts.sweep import SWEEP_ALPHAS, SWEEP_CURVES
from ui.tables.measured import base_values, holders, names_with

_AGAINST = [
    ("ratio", "log2 ratio to its base"),
    ("difference", "difference to its base"),
    ("wins", "lower or higher than its base"),
    ("value", "the value itself"),
]
_LAYER_AGAINST = [
    ("value", "the value itself"),
    ("reduction", "reduction: base minus CriticalKV"),
    ("ratio", "ratio: CriticalKV / base"),
]
_PER = [("head", "query head"), ("kv_head", "KV head (sum over its query heads)")]
_MEASURED = ("distance", "mass", "bound", "oracle")


def figure_of(result: RunResult, name: str, asked: Choices) -> go.Figure | None:
    """One chart with these choices, unknown ones left out; None for no such chart or no data."""
    chart = CHARTS.get(name)
    return None if chart is None else chart.figure(result, asked)


def _variants(result: RunResult, indices: Sequence[int], label: str = "Variant") -> list[Control]:
    """A choice of variant; CriticalKV first, as the others are its bases."""
    names = display_names(result.variants, escaped=False)
    ordered = sorted(indices, key=lambda i: not result.variants[i].critical)
    return [Control("variant", label, [(str(i), names[i]) for i in ordered])]


def _quantities(names: Sequence[str], label: str = "Quantity") -> list[Control]:
    options = [(name, ARRAYS[name].label) for name in names]
    return [Control("quantity", label, options)]


def _layer_controls(result: RunResult) -> list[Control]:
    measured = holders(result, "hidden_l1")
    with_base = any(base_index(result.variants, index) is not None for index in measured)
    against = [Control("against", "Show", _LAYER_AGAINST)] if with_base else []
    names = [n for n in names_with(result, "layer", "distance") if n != "hidden_norm_l1"]
    return [*_quantities(names), *against]


def _final_controls(result: RunResult) -> list[Control]:
    left_out = ("hidden_relative", "hidden_norm_l1")
    before = [n for n in names_with(result, "layer", "distance") if n.startswith("hidden_")]
    names = [name for name in before if name not in left_out]
    return _quantities([*names, *names_with(result, "model", "distance")])


def _head_controls(result: RunResult) -> list[Control]:
    indices = holders(result, "head_l1")
    with_base = any(base_values(result, index, "head_l1") is not None for index in indices)
    against = [Control("against", "Show", _AGAINST)] if with_base else []
    return [
        *_variants(result, indices),
        *_quantities(names_with(result, "head", *_MEASURED)),
        *against,
    ]


def _win_controls(result: RunResult) -> list[Control]:
    names = names_with(result, "head", "distance")
    return [*_variants(result, _with_base(result)), *_quantities(names, "Distance")]


def _with_base(result: RunResult) -> list[int]:
    measured = holders(result, "head_l1")
    return [index for index in measured if base_values(result, index, "head_l1") is not None]


def _oracle_controls(result: RunResult) -> list[Control]:
    indices = sorted({i for q in ORACLES for i in holders(result, q.key)})
    return _variants(result, indices, "Oracles with the budgets of")


def _bound_controls(result: RunResult) -> list[Control]:
    return _variants(result, holders(result, "theta"))


def _per_controls(result: RunResult) -> list[Control]:
    """Whose bounds; no choice where every query head has a KV head of its own."""
    return [] if shared_kv_heads(result.model) is None else [Control("per", "Per", _PER)]


def _kv_heads(result: RunResult, chosen: Choices) -> int | None:
    """KV heads to sum over; None for query heads as they are."""
    return shared_kv_heads(result.model) if chosen.get("per") == "kv_head" else None


def _has(name: str) -> Callable[[RunResult], bool]:
    """Whether a run has an array of this name."""
    return lambda result: bool(holders(result, name))


def _index(chosen: Choices) -> int:
    return int(chosen["variant"])


_ALL: tuple[Chart[RunResult], ...] = (
    Chart(
        name="layers",
        title="Layer by layer",
        csv="analysis",
        controls=_layer_controls,
        has_data=_has("head_l1"),
        draw=lambda result, chosen: layer_figure(
            result,
            chosen.get("quantity", "hidden_l1"),
            cast(LayerAgainst, chosen.get("against", "value")),
        ),
    ),
    Chart(
        name="final",
        title="After the last layer",
        csv="analysis",
        controls=_final_controls,
        has_data=_has("head_l1"),
        draw=lambda result, chosen: final_figure(result, chosen.get("quantity", "hidden_l1")),
    ),
    Chart(
        name="heads",
        title="Head by head",
        csv="analysis",
        controls=_head_controls,
        has_data=_has("head_l1"),
        draw=lambda result, chosen: head_grid_figure(
            result,
            _index(chosen),
            chosen.get("quantity", "head_l1"),
            cast(Against, chosen.get("against", "value")),
        ),
    ),
    Chart(
        name="budgets",
        title="Entries kept per layer",
        csv="analysis",
        has_data=lambda result: any(v.retained is not None for v in result.variants),
        draw=lambda result, _: budgets_figure(result),
    ),
    Chart(
        name="alphas",
        title="Alpha of each KV head",
        csv="analysis",
        controls=lambda result: _variants(result, holders(result, "head_alpha")),
        has_data=_has("head_alpha"),
        draw=lambda result, chosen: chosen_alphas_figure(result, _index(chosen)),
    ),
    Chart(
        name="ablation",
        title="Ablation",
        csv="ablation",
        has_data=lambda result: bool(ablation_steps_of(result)),
        draw=lambda result, _: ablation_figure(result),
    ),
    Chart(
        name="fidelity",
        title="Fidelity on the full cache's text",
        csv="forced",
        has_data=_has("forced_kl"),
        draw=lambda result, _: fidelity_figure(result),
    ),
    Chart(
        name="wins",
        title="Heads that CriticalKV improves",
        csv="analysis",
        controls=_win_controls,
        has_data=lambda result: bool(_with_base(result)),
        draw=lambda result, chosen: head_grid_figure(
            result, _index(chosen), chosen.get("quantity", "head_l1"), "wins"
        ),
    ),
    Chart(
        name="oracles",
        title="Methods against oracles",
        csv="analysis",
        controls=_oracle_controls,
        has_data=lambda result: any(holders(result, q.key) for q in ORACLES),
        draw=lambda result, chosen: head_layer_figure(result, oracles_of=_index(chosen)),
    ),
    Chart(
        name="sigma",
        title="Attention mass of stage 1",
        csv="analysis",
        controls=_bound_controls,
        has_data=_has("sigma_stage1"),
        draw=lambda result, chosen: sigma_figure(result, _index(chosen)),
    ),
    Chart(
        name="bounds",
        title="Bounds of the head L1",
        csv="bounds",
        controls=lambda result: [*_bound_controls(result), *_per_controls(result)],
        has_data=_has("theta"),
        draw=lambda result, chosen: bounds_figure(
            result, _index(chosen), _kv_heads(result, chosen)
        ),
    ),
    Chart(
        name="tightness",
        title="Tightness of the bound",
        csv="bounds",
        controls=_per_controls,
        has_data=_has("theta"),
        draw=lambda result, chosen: tightness_figure(result, _kv_heads(result, chosen)),
    ),
)
CHARTS: dict[str, Chart[RunResult]] = {
    chart.name: chart for chart in (*_ALL, *SWEEP_CURVES, *SWEEP_ALPHAS)
}
PERTURBATION = ("layers", "final", "heads", "budgets", "alphas", "ablation", "fidelity")
DIAGNOSTICS = ("wins", "oracles", "sigma", "bounds", "tightness")
