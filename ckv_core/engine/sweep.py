"""A sweep: many variants of one prefill, measured and, on request, decoded group by group.

Only one group's kept sets and caches exist at a time, so a sweep takes no more memory than a
comparison of GROUP_ROWS rows. The full cache's row is part of every group; it is the prefill's
own tensors.
"""

from collections.abc import Iterator
from dataclasses import replace

from ckv_core.engine.choose import VariantKey, choose, compact_rows
from ckv_core.engine.generate import generate
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.run import Run
from ckv_core.records.events import FloorMeasured, Generated, Progress, RunEvent, VariantMeasured
from ckv_core.records.records import Float32Array

GROUP_ROWS = 32


def sweep(run: Run, prefilled: Prefill) -> Iterator[RunEvent]:
    """Select, measure and decode all variants, plain ones first: they are the others' bases."""
    points = sorted(range(len(run.specs)), key=lambda point: run.specs[point].critical)
    measured = frozenset(spec.settings() for spec in run.specs if not spec.critical)
    size = GROUP_ROWS - 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    merged = _Merged(run)
    for number, group in enumerate(groups):
        part = replace(
            run,
            specs=[run.specs[point] for point in group],
            budgets=[run.budgets[point] for point in group],
            select_ms=[],  # the clock is the whole run's
            measures_floor=number == 0,
        )
        for event in _one_group(part, prefilled, measured):
            if isinstance(event, Progress):
                share = (number + (event.fraction or 0.0)) / len(groups)
                detail = f"group {number + 1} of {len(groups)}, {event.detail}"
                yield Progress(event.stage, share, detail)
            else:
                yield merged.event(event, group)


def _one_group(
    part: Run, prefilled: Prefill, measured: frozenset[VariantKey]
) -> Iterator[RunEvent]:
    """The stages of a comparison for some of the variants; everything is dropped at the end."""
    yield Progress("select", 0.0, f"{len(part.specs)} points")
    selections, bases = choose(part, prefilled, measured)
    rows = yield from compact_rows(part, prefilled, selections)
    yield from generate(part, prefilled, rows, selections, bases)


class _Merged:
    """Turns the events of groups into events of the whole sweep."""

    def __init__(self, run: Run) -> None:
        self._specs = run.specs
        # Head L1 of every variant measured so far: a base that is a point is not measured twice.
        self._head_l1: dict[VariantKey, Float32Array] = {}
        self._rows: list[tuple[object, ...]] = [("", (), (), None)] * len(run.specs)

    def event(self, event: RunEvent, group: list[int]) -> RunEvent:
        """The same event with the sweep's own numbering of variants."""
        if isinstance(event, FloorMeasured):
            return event
        if isinstance(event, Generated):
            columns = (event.texts, event.token_ids, event.token_texts, event.stopped)
            for index, row in zip(group, zip(*columns, strict=True), strict=True):
                self._rows[index] = row
            return Generated(*zip(*self._rows, strict=True))
        index = group[event.index]  # type: ignore[union-attr]  # all others are of a variant
        if not isinstance(event, VariantMeasured):
            return replace(event, index=index)  # type: ignore[arg-type]
        spec, perturbation = self._specs[index], event.perturbation
        self._head_l1[spec.settings()] = perturbation.head_l1
        if spec.critical and perturbation.base_head_l1 is None:
            base = self._head_l1[spec.base().settings()]
            perturbation = replace(perturbation, base_head_l1=base)
        return replace(event, index=index, perturbation=perturbation)
