"""Writes the table in docs/definitions.md: `python -m scripts.metrics_doc`."""

from pathlib import Path

from ckv_core.records.metrics import METRICS, Metric

PAGE = Path(__file__).parents[1] / "docs" / "definitions.md"
BEGIN = "<!-- begin: written by python -m scripts.metrics_doc -->"
END = "<!-- end -->"
_AXES = {
    "head": "each of L x H heads",
    "kv_head": "each of L x G KV heads",
    "layer": "each layer",
    "model": "one",
    "variant": "one",
    "step": "each position",
}


def metrics_table() -> str:
    """The table, one row per metric, between its two marks."""
    head = f"| name | what | definition | unit | n | closer | source |\n|{' --- |' * 7}"
    return "\n".join([BEGIN, head, *map(_row, METRICS.values()), END])


def with_table(page: str) -> str:
    """The page with the table in the place of the one between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + metrics_table() + after


def _row(metric: Metric) -> str:
    cells = (
        f"`{metric.key}`",
        metric.label,
        metric.definition,
        metric.unit,
        _AXES[metric.axes],
        metric.better or "-",
        metric.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
