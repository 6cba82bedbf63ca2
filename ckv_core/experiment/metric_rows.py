"""The metrics of a run, a row per variant: its CSV file and its DataFrame. No torch."""

from ckv_core.experiment.regimes import regime_named
from ckv_core.experiment.rounding import floor_by_metric
from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import metrics_in

Row = tuple[str | int | float | None, ...]


def metric_rows(result: RunResult) -> tuple[list[str], list[Row]]:
    """Head and rows, unrounded; no generated text, which a spreadsheet could run."""
    metrics, floor = metrics_in("csv"), floor_by_metric(result.floor)
    head = ["index", "spec", "label", "regime", "outcome", "answer_found", "stopped"]
    head += [metric.header or key for key, metric in metrics.items()]
    head += ["requested_bytes", "kl_floor_nats", "final_hidden_l1_floor"]
    rows: list[Row] = [
        (
            *(index, variant.spec, variant.label, regime_named(variant.method)),
            *(variant.outcome, variant.is_right, variant.stopped),
            *(metric.read(variant) for metric in metrics.values()),
            *(requested_bytes(result, variant), floor.get("kl"), floor.get("final")),
        )
        for index, variant in enumerate(result.variants)
    ]
    return head, rows
