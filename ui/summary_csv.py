"""The summary table's figures as CSV, unrounded."""

import csv
import io

from ckv_core.events import RunResult
from ui.charts.tables import safe_text
from ui.summary import mean_head_l1, requested_bytes

CSV_FIELDS = (
    "index",
    "spec",
    "label",
    "budget_tokens",
    "requested_entries",
    "retained_entries",
    "requested_bytes",
    "cache_bytes",
    "full_cache_bytes",
    "agreement",
    "first_difference",
    "kl_nats",
    "final_hidden_l1",
    "mean_head_l1",
    "improved_head_share",
    "tokens_per_second",
    "answer_found",
)
Value = float | int | str | None


def summary_csv(result: RunResult) -> str:
    """One line per variant, unrounded; no generated text, which a spreadsheet could run."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_figures(result, index) for index in range(len(result.variants)))
    return out.getvalue()


def _figures(result: RunResult, index: int) -> dict[str, Value]:
    variant = result.variants[index]
    row: dict[str, Value] = {
        "index": index,
        # Of an imported run these may be anything.
        "spec": safe_text(variant.spec),
        "label": safe_text(variant.label),
    }
    if receipt := variant.receipt:
        row |= {
            "budget_tokens": receipt.budget_tokens,
            "requested_entries": receipt.requested_entries,
            "retained_entries": receipt.retained_entries,
            "requested_bytes": requested_bytes(result, variant),
            "cache_bytes": receipt.cache_bytes,
            "full_cache_bytes": receipt.full_cache_bytes,
        }
    if moved := variant.perturbation:
        row |= {
            "kl_nats": moved.kl,
            "final_hidden_l1": moved.final_hidden_l1,
            "mean_head_l1": mean_head_l1(variant),
            "improved_head_share": moved.improved_head_share,
        }
    return row | {
        "agreement": variant.agreement,
        "first_difference": variant.first_difference,
        "tokens_per_second": variant.tokens_per_second,
        "answer_found": variant.answer_found,
    }
