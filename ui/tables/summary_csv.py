"""The summary table's figures as CSV, unrounded."""

from ckv_core.analysis.outcomes import kl_where_it_fails
from ckv_core.analysis.regimes import regime_named
from ckv_core.analysis.sweep import mean_head_l1
from ckv_core.results.byte_budget import requested_bytes
from ckv_core.results.events import RunResult
from ui.tables.csv_text import Cell, csv_text
from ui.tables.summary_columns import forced_mean

CSV_FIELDS = (
    "index",
    "spec",
    "label",
    "regime",
    "answer_found",
    "stopped",
    "agreement",
    "first_difference",
    "kl_at_difference_nats",
    "exact_match",
    "token_f1",
    "edit_similarity",
    "forced_top1_mean",
    "forced_kl_mean_nats",
    "forced_rank_mean",
    "budget_tokens",
    "requested_entries",
    "retained_entries",
    "requested_bytes",
    "cache_bytes",
    "full_cache_bytes",
    "held_entries_at_end",
    "kl_nats",
    "final_hidden_l1",
    "mean_head_l1",
    "improved_head_share",
    "kl_floor_nats",
    "final_hidden_l1_floor",
)
_FORCED = {
    "forced_top1_mean": "forced_top1",
    "forced_kl_mean_nats": "forced_kl",
    "forced_rank_mean": "forced_rank",
}


def summary_csv(result: RunResult) -> str:
    """One line per variant, unrounded; no generated text, which a spreadsheet could run."""
    rows = (_figures(result, index) for index in range(len(result.variants)))
    return csv_text(CSV_FIELDS, (tuple(map(row.get, CSV_FIELDS)) for row in rows))


def _figures(result: RunResult, index: int) -> dict[str, Cell]:
    variant = result.variants[index]
    row: dict[str, Cell] = {
        "index": index,
        "spec": variant.spec,
        "label": variant.label,
        "regime": regime_named(variant.method),
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
    if variant.held is not None:
        row["held_entries_at_end"] = variant.held.entries[-1]
    if moved := variant.perturbation:
        row |= {
            "kl_nats": moved.kl,
            "final_hidden_l1": moved.final_hidden_l1,
            "mean_head_l1": mean_head_l1(variant),
            "improved_head_share": moved.improved_head_share,
        }
    if result.floor is not None:
        row |= {
            "kl_floor_nats": result.floor.kl,
            "final_hidden_l1_floor": result.floor.final_hidden_l1,
        }
    row |= {field: forced_mean(variant, name) for field, name in _FORCED.items()}
    row |= {key: score for key, score in variant.answer_scores.items() if key in CSV_FIELDS}
    return row | {
        "agreement": variant.agreement,
        "first_difference": variant.first_difference,
        "answer_found": variant.answer_found,
        "stopped": variant.stopped,
        "kl_at_difference_nats": kl_where_it_fails(variant),
    }
