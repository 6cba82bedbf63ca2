"""The selection stages of a run: scores, what every variant and its base keep, their caches."""

from collections.abc import Generator, Iterator

import numpy as np
from torch import Tensor

from ckv_core.cache.ragged import RaggedLayer, compact
from ckv_core.engine.own import own_selection
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.receipt import receipt, retained_set
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection, select_all
from ckv_core.events import Progress, RunEvent, VariantAnalysed, VariantSelected
from ckv_core.records import Float32Array, ModelInfo
from ckv_core.variants import VariantSpec

VariantKey = tuple[object, ...]


def score(run: Run, prefilled: Prefill) -> Iterator[RunEvent]:
    """Have the scores that the variants share, so that their time is counted as such."""
    evicting = [
        spec
        for spec, budget in zip(run.specs, run.budgets, strict=True)
        if spec.method.scorer == "window" and budget < prefilled.prompt_len
    ]
    windows = sorted({spec.protected["window"] for spec in evicting})
    evictable = run.loaded.info.evictable_layers
    for count, layer in enumerate(evictable):
        with run.stopwatch.measure("score"):
            for window in windows:
                prefilled.window_attention(layer, window)
            if any(spec.critical for spec in evicting):
                prefilled.value_norms(layer)
        yield Progress("score", (count + 1) / len(evictable), f"layer {layer + 1}")


def choose(
    run: Run, prefilled: Prefill, measured: frozenset[VariantKey] = frozenset()
) -> tuple[list[Selection], dict[int, Selection]]:
    """What every variant keeps, and what the base of every variant with CriticalKV would keep.

    A base that is itself a variant is not chosen twice; one of `measured` is left out.
    """
    scored = len(run.specs) - len(run.own_masks)
    specs, budgets = run.specs[:scored], run.budgets[:scored]
    place = {variant_key(spec): row for row, spec in enumerate(specs)}
    base_of: dict[int, int] = {}
    for row, spec in enumerate(run.specs):
        if not spec.critical:
            continue
        key = variant_key(spec.base())
        if key in measured:
            continue
        if key not in place:
            place[key] = len(specs)
            specs.append(spec.base())
            budgets.append(run.budgets[row])
        base_of[row] = place[key]
    chosen = select_all(specs, prefilled, budgets, run.stopwatch.now, run.should_stop)
    wanted = chosen[:scored] + [own_selection(run, prefilled, mask) for mask in run.own_masks]
    run.select_ms.extend(selection.elapsed_ms for selection in wanted)
    for name, part in (("select", wanted), ("measure", chosen[scored:])):
        spent = sum(selection.elapsed_ms for selection in part)
        run.stopwatch.timings_ms[name] = run.stopwatch.timings_ms.get(name, 0.0) + spent
    return wanted, {row: chosen[base] for row, base in base_of.items()}


def variant_key(spec: VariantSpec) -> VariantKey:
    """Equal for variants that keep the same entries of the same prompt."""
    return (spec.name, *sorted(spec.params.items()))


def compact_rows(
    run: Run, prefilled: Prefill, selections: list[Selection]
) -> Generator[RunEvent, None, list[RaggedLayer]]:
    """The caches of all rows, and a receipt for each; the kept sets of a sweep stay here."""
    with run.stopwatch.measure("select"):
        layers = []
        for index, states in enumerate(prefilled.layers):
            masks = [selection.keep_masks[index] for selection in selections]
            masks += [None] * (run.rows - len(masks))
            layers.append(compact(states.keys, states.values, masks))
    evictable = [layers[index] for index in run.loaded.info.evictable_layers]
    for row, spec in enumerate(run.specs):
        selection = selections[row]
        budget = {} if spec.method.budget_rule == "all" else {"budget": selection.budget}
        shown = spec.method.name != "full" and run.request.kind != "sweep"
        yield VariantSelected(
            index=row,
            params={**spec.params, **budget},
            retained=retained_set(selection, run.loaded.info, prefilled.prompt_len)
            if shown
            else None,
            receipt=receipt(selection, run.loaded.info, evictable, row),
            timings_ms={"select": run.select_ms[row]},
        )
        if selection.head_alphas is not None:
            alphas = _by_layer(selection.head_alphas, run.loaded.info)
            yield VariantAnalysed(row, {"head_alpha": alphas})
    return layers


def _by_layer(head_alphas: Tensor, model: ModelInfo) -> Float32Array:
    """[layers, kv_heads]; NaN in layers that are left whole."""
    values = np.full((model.layers, model.kv_heads), np.nan, np.float32)
    values[list(model.evictable_layers)] = head_alphas.cpu().numpy()
    return values
