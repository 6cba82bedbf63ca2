"""The summary table's figures as CSV, unrounded."""

import csv
import io

from ckv_core.events import RunResult
from ckv_core.sweep_reading import mean_head_l1
from ui.charts.tables import safe_text
from ui.summary import requested_bytes
from ui.summary_columns import forced_mean

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
    "forced_top1_mean",
    "forced_kl_mean_nats",
    "forced_rank_mean",
    "exact_match",
    "token_f1",
    "edit_similarity",
)
_FORCED = {
    "forced_top1_mean": "forced_top1",
    "forced_kl_mean_nats": "forced_kl",
    "forced_rank_mean": "forced_rank",
}
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
    row |= {field: forced_mean(variant, name) for field, name in _FORCED.items()}
    row |= {key: score for key, score in variant.answer_scores.items() if key in CSV_FIELDS}
    return row | {
        "agreement": variant.agreement,
        "first_difference": variant.first_difference,
        "tokens_per_second": variant.tokens_per_second,
        "answer_found": variant.answer_found,
    }
