"""The figures of a run, a row per variant: its CSV file and its DataFrame. No torch."""

from ckv_core.experiment.regimes import regime_named
from ckv_core.experiment.rounding import floor_by_figure
from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.figures import figures_in

Row = tuple[str | int | float | None, ...]


def figure_rows(result: RunResult) -> tuple[list[str], list[Row]]:
    """Head and rows, unrounded; no generated text, which a spreadsheet could run."""
    figures, floor = figures_in("csv"), floor_by_figure(result.floor)
    head = ["index", "spec", "label", "regime", "outcome", "answer_found", "stopped"]
    head += [figure.header or key for key, figure in figures.items()]
    head += ["requested_bytes", "kl_floor_nats", "final_hidden_l1_floor"]
    rows: list[Row] = [
        (
            *(index, variant.spec, variant.label, regime_named(variant.method)),
            *(variant.outcome, variant.is_right, variant.stopped),
            *(figure.read(variant) for figure in figures.values()),
            *(requested_bytes(result, variant), floor.get("kl"), floor.get("final")),
        )
        for index, variant in enumerate(result.variants)
    ]
    return head, rows
