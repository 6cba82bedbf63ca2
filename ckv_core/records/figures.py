"""Everything that can be read off a variant: an entry and its function each. No torch.

Tables, CSV files, means over prompts, sweeps, charts and the table in docs/definitions.md follow
from here, in this order: what came out, what it cost, how far the outputs moved, and why.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ckv_core.records.chain import (
    covered_means,
    group_tightness,
    mean_head_l1,
    mean_tightness,
    over_half,
)
from ckv_core.records.outcomes import is_cut, kl_where_it_fails
from ckv_core.records.quantities import ARRAYS, QUANTITIES, Figure, Place, Reader
from ckv_core.records.records import Perturbation, Receipt, VariantResult


def _answer(variant: VariantResult) -> float | None:
    return None if variant.is_right is None else float(variant.is_right)


def _score(key: str) -> Reader:
    return lambda variant: None if is_cut(variant) else variant.answer_scores.get(key)


def _receipt(read: Callable[[Receipt], float]) -> Reader:
    return lambda variant: read(variant.receipt) if variant.receipt else None


def _moved(read: Callable[[Perturbation], float | None]) -> Reader:
    return lambda variant: read(variant.perturbation) if variant.perturbation else None


_EVERYWHERE: frozenset[Place] = frozenset({"table", "csv", "sweep", "means"})
_OF_RUN: frozenset[Place] = frozenset({"table", "csv"})
_CSV_ONLY: frozenset[Place] = frozenset({"csv"})
_MEANS: frozenset[Place] = frozenset({"means"})

# Means over the positions of the full cache's text, which stand in the table of a run too.
_FORCED: dict[str, dict[str, Any]] = {
    "forced_top1": {"better": "higher", "header": "forced_top1_mean", "places": _OF_RUN | _MEANS},
    "forced_kl": {"better": "lower", "header": "forced_kl_mean_nats", "places": _OF_RUN | _MEANS},
    "forced_rank": {"better": "lower", "header": "forced_rank_mean", "places": _CSV_ONLY | _MEANS},
}

_ALL: tuple[Figure, ...] = (
    Figure(
        key="answer",
        label="Answer found",
        unit="1",
        group="outcome",
        definition="Whether the expected answer occurs in the generated text. Cut: the limit of "
        "new tokens ended the text before an answer, which is neither right nor wrong.",
        read=_answer,
        better="higher",
        has_own_full=True,
        is_binary=True,
        places=_EVERYWHERE - {"csv"},
    ),
    Figure(
        key="agreement",
        label="Agreement",
        unit="1",
        group="outcome",
        definition="Share of the full cache's generated tokens that this variant reproduces "
        "before its first difference.",
        read=lambda variant: variant.agreement,
        better="higher",
        places=_EVERYWHERE,
    ),
    Figure(
        key="first_difference",
        label="First difference",
        unit="token",
        group="outcome",
        definition="The first generated token that differs from the full cache's, counted from 1 "
        "on screen and from 0 in files; after it, differences do not mean worse quality.",
        read=lambda variant: variant.first_difference,
        places=_OF_RUN,
    ),
    Figure(
        key="kl_at_difference",
        label="KL where it differs",
        unit="nats",
        group="outcome",
        definition="KL divergence from the full cache's next-token distribution at the first token "
        "that differs, up to which both read the same; known where teacher-forced fidelity "
        "was measured.",
        read=kl_where_it_fails,
        better="lower",
        header="kl_at_difference_nats",
        places=_OF_RUN,
    ),
    Figure(
        key="exact_match",
        label="Exact match",
        unit="1",
        group="outcome",
        definition="Whether the generated text is the reference answer, but for case, punctuation "
        "and articles; shown where the full cache's own text is.",
        source="SQuAD",
        read=_score("exact_match"),
        better="higher",
        has_own_full=True,
        is_binary=True,
        places=_EVERYWHERE,
    ),
    Figure(
        key="token_f1",
        label="Token F1",
        unit="1",
        group="outcome",
        definition="Words that the generated text and the reference answer share: harmonic mean of "
        "precision and recall.",
        source="SQuAD",
        read=_score("token_f1"),
        better="higher",
        has_own_full=True,
        places=_EVERYWHERE,
    ),
    Figure(
        key="edit_similarity",
        label="Edit similarity",
        unit="1",
        group="outcome",
        definition="1 minus the Levenshtein distance to the reference answer over the longer one's "
        "length, case and spacing ignored.",
        read=_score("edit_similarity"),
        better="higher",
        has_own_full=True,
        places=_EVERYWHERE,
    ),
    *(replace(QUANTITIES[key], **more) for key, more in _FORCED.items()),
    Figure(
        key="share",
        label="Of full",
        unit="1",
        group="cost",
        definition="Measured cache bytes as a share of the full cache's.",
        read=_receipt(lambda receipt: receipt.cache_bytes / receipt.full_cache_bytes),
        places=frozenset({"table"}),
    ),
    Figure(
        key="budget_tokens",
        label="Budget",
        unit="tokens",
        group="cost",
        definition="Requested entries per KV head, mean over the heads of evictable layers.",
        read=_receipt(lambda receipt: receipt.budget_tokens),
        places=_CSV_ONLY,
    ),
    Figure(
        key="requested_entries",
        label="Requested entries",
        unit="entries",
        group="cost",
        definition="Key-value entries of the prompt over all evictable layers and KV heads that "
        "the budget asks for.",
        read=_receipt(lambda receipt: receipt.requested_entries),
        places=_CSV_ONLY,
    ),
    Figure(
        key="retained_entries",
        label="Kept entries",
        unit="entries",
        group="cost",
        definition="Key-value entries of the prompt over all evictable layers and KV heads: the "
        "budget, and what the kept sets really hold.",
        read=_receipt(lambda receipt: receipt.retained_entries),
        places=_OF_RUN,
    ),
    Figure(
        key="cache_bytes",
        label="Cache",
        unit="bytes",
        group="cost",
        definition="Memory of the prompt's keys and values: for the requested entries, and "
        "measured in the tensors that this variant decodes from.",
        read=_receipt(lambda receipt: receipt.cache_bytes),
        places=_OF_RUN,
    ),
    Figure(
        key="full_cache_bytes",
        label="Full cache",
        unit="bytes",
        group="cost",
        definition="Measured cache bytes of the full cache.",
        read=_receipt(lambda receipt: receipt.full_cache_bytes),
        places=_CSV_ONLY,
    ),
    Figure(
        key="held",
        label="Held at the end",
        unit="entries",
        group="cost",
        definition="Of methods that evict while they generate: entries of prompt, question and "
        "generated text in the evictable layers when the last token was chosen.",
        read=lambda variant: variant.held.entries[-1] if variant.held else None,
        header="held_entries_at_end",
        places=_OF_RUN,
    ),
    Figure(
        key="kl",
        label="KL",
        unit="nats",
        group="distance",
        definition="KL divergence of the next-token distribution from the full cache's at the "
        "first decoding step; 0 is equal.",
        read=_moved(lambda moved: moved.kl),
        better="lower",
        header="kl_nats",
        places=_EVERYWHERE,
    ),
    Figure(
        key="final",
        label="Final hidden L1",
        unit="L1",
        group="distance",
        definition="Distance of the hidden state after the last block from the full run's, errors"
        " of earlier layers carried along; first decoding step.",
        read=_moved(lambda moved: moved.final_hidden_l1),
        better="lower",
        header="final_hidden_l1",
        places=_EVERYWHERE,
    ),
    Figure(
        key="head",
        label="Mean head L1",
        unit="L1",
        group="distance",
        definition="How far eviction alone moves one head's attention output, averaged over the "
        "query heads; the head gets the full run's input.",
        read=mean_head_l1,
        better="lower",
        header="mean_head_l1",
        places=_EVERYWHERE,
    ),
    Figure(
        key="worst_head",
        label="Worst head L1",
        unit="L1",
        group="distance",
        definition="Head L1 of the one query head whose output eviction moves most: a mean over "
        "hundreds of heads hides it.",
        read=_moved(lambda moved: moved.worst_head_l1),
        better="lower",
        header="worst_head_l1",
        places=_EVERYWHERE,
    ),
    Figure(
        key="improved_heads",
        label="Heads closer to the full cache than without CriticalKV",
        unit="1",
        group="distance",
        definition="CriticalKV only: share of query heads whose output moves less than with the "
        "same method and settings without CriticalKV, at the first decoding step. It "
        "does not say who answers.",
        source="CriticalKV, figure 2",
        read=_moved(lambda moved: moved.improved_head_share),
        header="improved_head_share",
    ),
    Figure(
        key="sigma_over_half",
        label="Sigma over 0.5",
        unit="1",
        group="mass",
        definition="Share of query heads in which stage 1 holds over half of the attention.",
        source="CriticalKV, assumption 1",
        read=lambda variant: over_half(variant, "sigma_stage1"),
        places=frozenset({"sweep", "means"}),
    ),
    Figure(
        key="tightness",
        label="Tightness: head L1 / theta",
        unit="ratio",
        group="bound",
        definition="Mean over query heads of the head L1 / its bound theta.",
        read=mean_tightness,
        places=_MEANS,
    ),
    Figure(
        key="group_tightness",
        label="Tightness per KV head: group L1 / theta",
        unit="ratio",
        group="bound",
        definition="The same over KV heads, both summed over the query heads that share one; of "
        "models whose query heads do.",
        read=group_tightness,
        places=_MEANS,
    ),
    Figure(
        key="oracle_over_half",
        label="Oracle sigma over 0.5",
        unit="1",
        group="mass",
        definition="Share of query heads in which as many entries as stage 1 takes could hold "
        "over half of the attention.",
        read=lambda variant: over_half(variant, "sigma_oracle"),
        places=_MEANS,
    ),
    Figure(
        key="covered_l1",
        label="Head L1, covered heads",
        unit="L1",
        group="bound",
        definition="Mean head L1 over the heads that the theorems cover: sigma over 0.5.",
        read=lambda variant: covered_means(variant).get("covered_l1"),
        places=_MEANS,
    ),
    *(figure for key, figure in ARRAYS.items() if key not in _FORCED),
)
FIGURES: dict[str, Figure] = {figure.key: figure for figure in _ALL}


def figures_in(*places: Place) -> dict[str, Figure]:
    """Those that are shown in one of these places."""
    return {key: figure for key, figure in FIGURES.items() if figure.places & {*places}}
