"""Everything that can be read off a variant: each metric is declared here, once. No torch.

The engine fills arrays under these names. Storage, the result JSON, tables, CSV files, means over
prompts, sweeps, charts and the table in docs/reference/definitions.md follow from here, in this
order: what came out, what it cost, how far the outputs moved, and why.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ckv_core.records.chain import (
    COVERED,
    covered_means,
    mean_head_l1,
    mean_of_known,
    mean_tightness,
    over_half,
)
from ckv_core.records.outcomes import is_cut, kl_where_it_fails
from ckv_core.records.records import Float32Array, Perturbation, Receipt, Timed, VariantResult

Axes = Literal["head", "kv_head", "layer", "model", "step", "variant"]
Group = Literal["outcome", "cost", "distance", "mass", "bound", "oracle", "forced", "selection"]
# table: of a run; csv: its file; sweep: curve and column; means: column and chart over prompts;
# samples: kept of each sample of many.
Place = Literal["table", "csv", "sweep", "means", "samples"]
Better = Literal["lower", "higher"]
Reader = Callable[[VariantResult], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a variant: a number, or an array and its mean.

    Attributes:
        key: in JSON, addresses of charts and files; of an array its name in
            `VariantResult.analysis` and in storage.
        label: what a reader sees.
        definition: one or two sentences; of arrays a formula in the symbols of methods: A full
            attention of the decoding query, N kept.
        unit: of the values; `1` for a share.
        axes: variant = one number; head = [layers, query_heads], kv_head = [layers, kv_heads],
            layer = [layers], model = [1], step = [generated]. Arrays are float32; NaN where a layer
            is not evictable or a value is not defined.
        group: what kind it is.
        source: section of the paper, or `ours`.
        read: its number; of an array the mean of what is known; None where nothing is.
        better: which direction is closer to the full cache, or to the reference answer; None where
            it says nothing of quality, so that equal values have no meaning.
        has_own_full: the full cache is measured too, and not at 0 or 1 by definition.
        is_binary: yes or no of one prompt, so that nothing lies between two points.
        header: in the CSV of a run, where it is not the key.
        places: where it is shown.
    """

    key: str
    label: str
    definition: str
    unit: str
    group: Group
    read: Reader
    axes: Axes = "variant"
    source: str = "ours"
    better: Better | None = None
    has_own_full: bool = False
    is_binary: bool = False
    header: str = ""
    places: frozenset[Place] = frozenset({"table", "csv", "means"})

    @property
    def is_share(self) -> bool:
        """Counted, so shown as percent: of heads, tokens, positions or prompts."""
        return self.unit == "1" and (self.axes == "variant" or self.group == "forced")

    @property
    def unit_name(self) -> str:
        """The unit as an axis shows it."""
        return "share" if self.unit == "1" else self.unit

    @property
    def mean_label(self) -> str:
        """The label of its number, which may be a mean over the heads that the theorems cover."""
        is_part = self.key in COVERED and self.axes != "variant"
        return f"{self.label.partition(':')[0]}, covered heads" if is_part else self.label


_EVERYWHERE: frozenset[Place] = frozenset({"table", "csv", "sweep", "means"})
_OF_RUN: frozenset[Place] = frozenset({"table", "csv"})
_CSV_ONLY: frozenset[Place] = frozenset({"csv"})
_MEANS: frozenset[Place] = frozenset({"means"})
_KEPT: frozenset[Place] = frozenset({"samples"})  # beside others
Attributes = dict[str, Any]  # of a `Metric`
Numbers = dict[str, tuple[str, str, Reader, Attributes]]  # key -> label, definition, reader, more


def _numbers(rows: Numbers) -> dict[str, Metric]:
    return {
        key: Metric(key=key, label=label, definition=definition, read=read, **more)
        for key, (label, definition, read, more) in rows.items()
    }


def _score(key: str) -> Reader:
    return lambda variant: None if is_cut(variant) else variant.answer_scores.get(key)


def _receipt(read: Callable[[Receipt], float | None]) -> Reader:
    return lambda variant: read(variant.receipt) if variant.receipt else None


def _timed(read: Callable[[Timed], float | None]) -> Reader:
    return lambda variant: read(variant.time) if variant.time else None


def _moved(read: Callable[[Perturbation], float | None]) -> Reader:
    return lambda variant: read(variant.perturbation) if variant.perturbation else None


_OF_TEXT: Attributes = {"unit": "1", "group": "outcome", "better": "higher", "places": _EVERYWHERE}
_OF_ANSWER = _OF_TEXT | {"has_own_full": True}
_OUTCOMES: Numbers = {
    "answer": (
        "Answer found",
        "Whether the expected answer occurs in the text. A text that the limit of new tokens "
        "cut before an answer is neither right nor wrong.",
        lambda variant: None if variant.is_right is None else float(variant.is_right),
        _OF_ANSWER | {"is_binary": True, "places": _EVERYWHERE - {"csv"}},
    ),
    "agreement": (
        "Agreement",
        "Share of the full cache's tokens that the text reproduces before its first difference.",
        lambda variant: variant.agreement,
        _OF_TEXT | {"places": _EVERYWHERE | _KEPT},
    ),
    "first_difference": (
        "First difference",
        "The first token that differs from the full cache's, from 1 on screen and from 0 in "
        "files. Later differences do not mean worse quality.",
        lambda variant: variant.first_difference,
        {"unit": "token", "group": "outcome", "places": _OF_RUN},
    ),
    "kl_at_difference": (
        "KL where it differs",
        "KL divergence from the full cache at the first token that differs; known where "
        "teacher-forced fidelity was measured.",
        kl_where_it_fails,
        {"unit": "nats", "group": "outcome", "better": "lower", "places": _OF_RUN}
        | {"header": "kl_at_difference_nats"},
    ),
    "new_tokens": (
        "New tokens",
        "Generated tokens of the text.",
        lambda variant: len(variant.token_ids) or None,
        {"unit": "tokens", "group": "outcome", "places": frozenset({"table"})},
    ),
    "stopped_at_limit": (
        "Stopped at the limit",
        "Whether the limit of new tokens ended the text.",
        lambda variant: float(variant.stopped == "length") if variant.stopped else None,
        {"unit": "1", "group": "outcome", "has_own_full": True, "is_binary": True}
        | {"places": _MEANS},
    ),
    "exact_match": (
        "Exact match",
        "Whether the text is the expected answer, but for case, punctuation and articles.",
        _score("exact_match"),
        _OF_ANSWER | {"source": "SQuAD", "is_binary": True},
    ),
    "token_f1": (
        "Token F1",
        "Words that text and expected answer share: harmonic mean of precision and recall.",
        _score("token_f1"),
        _OF_ANSWER | {"source": "SQuAD"},
    ),
    "edit_similarity": (
        "Edit similarity",
        "1 minus the Levenshtein distance to the expected answer / the longer one's length, "
        "case and spacing ignored.",
        _score("edit_similarity"),
        _OF_ANSWER,
    ),
}
_COST: Attributes = {"unit": "entries", "group": "cost", "places": _OF_RUN}
_TIME: Attributes = _COST | {"unit": "ms", "places": _EVERYWHERE}
_SPEED: Attributes = _COST | {"unit": "tokens/s", "places": _OF_RUN | _MEANS}
_DISTANCE: Attributes = _OF_TEXT | {"unit": "L1", "group": "distance", "better": "lower"}
_BOUND: Attributes = {"unit": "ratio", "group": "bound", "places": _MEANS}
_MASS: Attributes = {"unit": "1", "group": "mass", "places": _MEANS}
_MECHANISMS: Numbers = {
    "share": (
        "Cache share",
        "Measured cache bytes as a share of the full cache's.",
        _receipt(lambda receipt: receipt.cache_bytes / receipt.full_cache_bytes),
        _COST | {"unit": "1", "places": frozenset({"table"})},
    ),
    "budget_tokens": (
        "Budget",
        "Requested entries per KV head, mean over the heads of evictable layers.",
        _receipt(lambda receipt: receipt.budget_tokens),
        _COST | {"unit": "tokens", "places": _CSV_ONLY | _KEPT},
    ),
    "requested_entries": (
        "Requested entries",
        "Entries of the prompt that the budget allows, over evictable layers and KV heads.",
        _receipt(lambda receipt: receipt.requested_entries),
        _COST | {"places": _CSV_ONLY},
    ),
    "retained_entries": (
        "Kept entries",
        "Entries of the prompt over evictable layers and KV heads: the budget, and what is kept.",
        _receipt(lambda receipt: receipt.retained_entries),
        _COST,
    ),
    "cache_bytes": (
        "Cache",
        "Memory of the prompt's keys and values, measured in this method's tensors.",
        _receipt(lambda receipt: receipt.cache_bytes),
        _COST | {"unit": "bytes", "places": _OF_RUN | _KEPT},
    ),
    "read_bytes": (
        "Read per step",
        "Memory of the prompt's keys and values that a step reads: what is held, or with Quest the "
        "best pages and all bounds.",
        _receipt(lambda receipt: receipt.read_bytes),
        _COST | {"unit": "bytes", "places": _OF_RUN | _MEANS | _KEPT},
    ),
    "full_cache_bytes": (
        "Full cache",
        "Measured cache bytes of the full cache.",
        _receipt(lambda receipt: receipt.full_cache_bytes),
        _COST | {"unit": "bytes", "places": _CSV_ONLY | _KEPT},
    ),
    "held": (
        "Held at the end",
        "Entries in evictable layers when the last token was chosen, of methods that evict while "
        "they generate.",
        lambda variant: variant.held.entries[-1] if variant.held else None,
        _COST | {"header": "held_entries_at_end"},
    ),
    "added_first_token_ms": (
        "Added to first token",
        "Time that the method adds to reading the prompt: scores, choice and copies (median of 3), "
        "gathered statistics and further passes (timed once).",
        _timed(lambda time: time.added_first_token_ms),
        _TIME,
    ),
    "step_ms": (
        "Time per token",
        "A decoding step of this method alone, batch 1: median and quartiles of at least 32 steps.",
        _timed(lambda time: time.step_ms[1]),
        _TIME,
    ),
    "tokens_per_s_8": (
        "Speed at batch 8",
        "Generated tokens per second with 8 rows, each with a cache of its own; median of 4 steps.",
        _timed(lambda time: time.tokens_per_s.get("8")),
        _SPEED,
    ),
    "tokens_per_s_32": (
        "Speed at batch 32",
        "As Speed at batch 8, with 32 rows.",
        _timed(lambda time: time.tokens_per_s.get("32")),
        _SPEED,
    ),
    "tokens_per_s_largest": (
        "Speed at the largest batch",
        "As Speed at batch 8, with as many rows as memory or half a second a step allow.",
        _timed(lambda time: time.tokens_per_s[str(time.batches[-1])]),
        _SPEED,
    ),
    "largest_batch": (
        "Largest batch",
        "Rows of the largest batch that was timed.",
        _timed(lambda time: time.batches[-1]),
        _SPEED | {"unit": "rows"},
    ),
    **{
        key: (
            label,
            f"Highest memory above the model {when}, in a run without the full cache.",
            read,
            _COST | {"unit": "bytes"},
        )
        for key, label, when, read in (
            (
                "prefill_peak",
                "Peak in prefill",
                "until the cache is compacted",
                lambda variant: variant.memory and variant.memory.prefill_peak,
            ),
            (
                "decode_peak",
                "Peak while decoding",
                "once the cache is compacted",
                lambda variant: variant.memory and variant.memory.decode_peak,
            ),
        )
    },
    "kl": (
        "KL",
        "KL divergence of the next-token distribution from the full cache's, first decoding step.",
        _moved(lambda moved: moved.kl),
        _DISTANCE | {"unit": "nats", "header": "kl_nats", "places": _EVERYWHERE | _KEPT},
    ),
    "final": (
        "Final hidden L1",
        "Distance of the hidden state after the last block from the full run's, first decoding "
        "step.",
        _moved(lambda moved: moved.final_hidden_l1),
        _DISTANCE | {"header": "final_hidden_l1", "places": _EVERYWHERE | _KEPT},
    ),
    "head": (
        "Mean head L1",
        "How far eviction moves a head's attention output, mean over query heads with the full "
        "run's input.",
        mean_head_l1,
        _DISTANCE | {"header": "mean_head_l1", "places": _EVERYWHERE | _KEPT},
    ),
    "worst_head": (
        "Worst head L1",
        "Head L1 of the one query head whose output eviction moves most.",
        _moved(lambda moved: moved.worst_head_l1),
        _DISTANCE | {"header": "worst_head_l1"},
    ),
    "improved_heads": (
        "Heads closer to the full cache than without CriticalKV",
        "Share of query heads that move less than with the same settings without CriticalKV. It "
        "does not predict answers.",
        _moved(lambda moved: moved.improved_head_share),
        {"unit": "1", "group": "distance", "header": "improved_head_share"}
        | {"source": "CriticalKV, figure 2"},
    ),
    "sigma_over_half": (
        "Sigma over 0.5",
        "Share of query heads in which stage 1 holds over half of the attention.",
        lambda variant: over_half(variant, "sigma_stage1"),
        _MASS | {"source": "CriticalKV, assumption 1", "places": frozenset({"sweep", "means"})},
    ),
    "tightness": (
        "Tightness: head L1 / theta",
        "Mean over query heads of the head L1 / its bound theta.",
        mean_tightness,
        _BOUND,
    ),
    "covered_l1": (
        "Head L1, covered heads",
        "Mean head L1 over the heads that the theorems cover: sigma over 0.5.",
        lambda variant: covered_means(variant).get("covered_l1"),
        _BOUND | {"unit": "L1"},
    ),
}

# --- arrays ---------------------------------------------------------------------------------

# Arrays of `Perturbation`, and one that a run makes of two; all others are in `analysis`.
_APART = ("head_l1", "hidden_l1", "hidden_relative")
# Means over the positions of the full cache's text, which stand in the table of a run too, and
# how long its own text is.
_OF_TEXTS: dict[str, Attributes] = {
    "length_ratio": {"places": _EVERYWHERE},
    "sampled_answer": {"better": "higher", "has_own_full": True, "places": _EVERYWHERE},
    "sampled_spread": {"has_own_full": True, "places": _EVERYWHERE},
    "sampled_agreement": {"has_own_full": True, "places": _EVERYWHERE},
    "forced_top1": {"better": "higher", "header": "forced_top1_mean", "places": _OF_RUN | _MEANS},
    "forced_kl": {"better": "lower", "header": "forced_kl_mean_nats", "places": _OF_RUN | _MEANS},
    "forced_rank": {"better": "lower", "header": "forced_rank_mean", "places": _CSV_ONLY | _MEANS},
}


def array_of(variant: VariantResult, key: str) -> Float32Array | None:
    """One array of a variant; None if it was not measured, or is none of its own."""
    moved = variant.perturbation
    if key not in _APART:
        return variant.analysis.get(key)
    if moved is None or key == "hidden_relative":
        return None
    return moved.head_l1 if key == "head_l1" else moved.layer_hidden_l1


def _array(key: str, words: tuple[str, str, str], unit: str, axes: Axes, group: Group) -> Metric:
    label, definition, source = words

    def read(variant: VariantResult) -> float | None:
        if key in COVERED:
            return covered_means(variant).get(key)
        # Of its own text the full cache knows every token.
        is_own = group == "forced" and variant.method == "full"
        return None if is_own else mean_of_known(array_of(variant, key))

    own = _OF_TEXTS.get(key, {"places": frozenset() if key in _APART else _MEANS})
    what: Attributes = {"unit": unit, "axes": axes, "group": group, "source": source, **own}
    return Metric(key=key, label=label, definition=definition, read=read, **what)


_NORMS = {
    "l1": ("L1", "sum |x|", "CriticalKV, eq. 5-6"),
    "l2": ("L2", "sqrt(sum x^2)", "CriticalKV, appendix G"),
    "cosine": ("cosine distance", "1 - cos", "ours"),
}
# Heads, attention outputs and hidden states under each norm; isolated and cascaded.
_DISTANCES: dict[str, tuple[str, str, Axes]] = {
    "head_{}": (
        "Head output, isolated",
        "{norm} {o}; o = A V W_O, o^ = A' V W_O, full run's input",
        "head",
    ),
    "head_{}_cascaded": (
        "Head output, cascaded",
        "{norm} {o}; o^ from the evicted run, its own input at every layer",
        "head",
    ),
    "hidden_{}": ("Hidden state after each layer, cascaded", "{norm} {x_l}", "layer"),
    "attention_{}": (
        "Attention output of a layer, isolated",
        "{norm} {o} summed over heads first; full run's input",
        "layer",
    ),
    "attention_{}_cascaded": (
        "Attention output of a layer, cascaded",
        "{norm} {o} summed over heads first; evicted run's own input",
        "layer",
    ),
    "normed_{}": (
        "After the final norm, cascaded",
        "{norm} {x} after the model's last normalisation",
        "model",
    ),
}
_RELATIVE = (
    "Hidden L1 relative to the full run's size",
    "hidden L1 / sum |x_l| of the full run",
    "ours",
)


def _distances() -> Iterator[Metric]:
    for key, (word, norm, norm_source) in _NORMS.items():
        unit = "1" if key == "cosine" else word
        pair = "({0}, {0[0]}^{1})" if key == "cosine" else "of {0} - {0[0]}^{1}"
        pairs = {each: pair.format(each, each[1:]) for each in ("o", "x_l", "x")}
        for name, (label, definition, axes) in _DISTANCES.items():
            array, source = name.format(key), "ours" if "attention" in name else norm_source
            words = (f"{label}, {word}", definition.format(norm=norm, **pairs), source)
            yield _array(array, words, unit, axes, "distance")
            if array == "hidden_l1":
                yield _array("hidden_relative", _RELATIVE, "1", "layer", "distance")


_WORDS: dict[tuple[Group, Axes, str], dict[str, tuple[str, str, str]]] = {
    ("outcome", "model", "ratio"): {
        "length_ratio": (
            "Length against the full cache",
            "Generated tokens / those of the full cache; unknown where the full cache's text was "
            "cut.",
            "ours",
        )
    },
    ("outcome", "model", "1"): {
        "sampled_answer": (
            "Answer found, sampled texts",
            "Share of the sampled texts that hold the expected answer; one that the limit cut "
            "before an answer is left out.",
            "ours",
        ),
        "sampled_spread": (
            "Spread of sampled texts",
            "Standard deviation, over the sampled texts, of whether one holds the expected "
            "answer (1 or 0).",
            "ours",
        ),
        "sampled_agreement": (
            "Agreement of sampled texts",
            "Mean share of the same method's greedy tokens that a sampled text reproduces "
            "before its first difference.",
            "ours",
        ),
    },
    ("distance", "layer", "L1"): {
        "hidden_norm_l1": (
            "Size of the full run's hidden state, L1",
            "sum |x_l|",
            "ours",
        )
    },
    ("mass", "head", "1"): {
        "sigma_stage1": (
            "Attention mass of stage 1 (sigma)",
            "sigma = sum_i N'_i A_i",
            "CriticalKV, assumption 1",
        ),
        "sigma_kept": (
            "Attention mass kept",
            "sigma_N = sum_i N_i A_i",
            "CriticalKV, eq. 6",
        ),
        "sigma_oracle": (
            "Attention mass that stage 1 could hold at most",
            "sum of as many of the largest A_i as N' holds entries",
            "CriticalKV, assumption 1",
        ),
    },
    ("bound", "head", "L1"): {
        "value_mass": (
            "C: all attention times value norm",
            "C = sum_i A_i v_i",
            "CriticalKV, theorem 2",
        ),
        "theta": (
            "theta: bound of the kept set",
            "theta = C - (2 - 1/sigma_N) sum_i N_i A_i v_i",
            "CriticalKV, theorem 2, eq. 8",
        ),
        "theta_hat": (
            "theta-hat: bound that stage 2 minimises",
            "theta^ = C' - (2 - 1/sigma) sum_i N''_i A_i v_i, C' = C - (2 - 1/sigma) sum_i "
            "N'_i A_i v_i",
            "CriticalKV, theorem 3, eq. 14-15",
        ),
        "theta_relaxed": (
            "Relaxed theta: bound of attention alone",
            "C' - min_i(v_i) (2 - 1/sigma) sum_i N''_i A_i",
            "CriticalKV, theorem 4, eq. 18",
        ),
    },
    ("oracle", "head", "L1"): {
        "oracle_attention_l1": (
            "Oracle: true attention",
            "head L1 if each head kept the entries with the largest true A (group mean)",
            "ours",
        ),
        "oracle_critical_l1": (
            "Oracle: true attention times value norm",
            "head L1 if each head kept the entries with the largest true A v (group mean)",
            "ours",
        ),
    },
    ("selection", "kv_head", "1"): {
        "head_alpha": (
            "Alpha of each KV head",
            "the alpha of 0, 0.05, ..., 1 with the smallest theta, the window's mean attention as "
            "A, summed over the KV head's query heads",
            "ours",
        )
    },
    ("selection", "model", "1"): {
        "stage1_alpha": (
            "Alpha of stage 1",
            "share of a KV head's budget that N' takes: the method's own alpha, without "
            "CriticalKV the run's",
            "ours",
        )
    },
    ("forced", "step", "1"): {
        "forced_top1": (
            "Same top token as the full cache",
            "1 if argmax equals the full cache's at this position, else 0",
            "ours",
        )
    },
    ("forced", "step", "nats"): {
        "forced_kl": ("KL(full || variant), teacher-forced", "sum_t p log(p/q)", "ours")
    },
    ("forced", "step", "rank"): {
        "forced_rank": (
            "Rank of the full cache's token",
            "1 + tokens of higher logit; of equal ones the lower id comes first",
            "ours",
        )
    },
}

ARRAYS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        *_distances(),
        *(
            _array(key, words, unit, axes, group)
            for (group, axes, unit), rows in _WORDS.items()
            for key, words in rows.items()
        ),
    )
}
# Those in `VariantResult.analysis`.
ANALYSIS_ARRAYS = {key: metric for key, metric in ARRAYS.items() if key not in _APART}
METRICS: dict[str, Metric] = {
    **_numbers(_OUTCOMES),
    **{key: ARRAYS[key] for key in _OF_TEXTS},
    **_numbers(_MECHANISMS),
    **ARRAYS,
}


def metrics_in(*places: Place) -> dict[str, Metric]:
    """Return the metrics that are shown in one of these places."""
    return {key: metric for key, metric in METRICS.items() if metric.places & {*places}}
