"""What a figure is, and the figures that are arrays: every measured quantity. No torch.

The engine fills arrays under these names; storage, the result JSON, the tables and the charts
treat them alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ckv_core.records.chain import COVERED, covered_means, mean_of_known
from ckv_core.records.records import Float32Array, VariantResult

Axes = Literal["head", "kv_head", "layer", "model", "step", "variant"]
Group = Literal["outcome", "cost", "distance", "mass", "bound", "oracle", "forced", "selection"]
# table: of a run; csv: its file; sweep: curve and column; means: column and chart over prompts.
Place = Literal["table", "csv", "sweep", "means"]
Better = Literal["lower", "higher"]
Reader = Callable[[VariantResult], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a variant: a number, or an array and its mean.

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
        """What stands at an axis."""
        return "share" if self.unit == "1" else self.unit

    @property
    def is_covered(self) -> bool:
        """Its number is a mean over the heads that the theorems cover."""
        return self.key in COVERED

    @property
    def mean_label(self) -> str:
        """What a reader sees of its number."""
        is_part = self.is_covered and self.axes != "variant"
        return f"{self.label.partition(':')[0]}, covered heads" if is_part else self.label


# Arrays of `Perturbation`, and one that a run makes of two; all others are in `analysis`.
_APART = ("head_l1", "hidden_l1", "hidden_relative")


def array_of(variant: VariantResult, key: str) -> Float32Array | None:
    """One array of a variant; None if it was not measured, or is none of its own."""
    moved = variant.perturbation
    if key not in _APART:
        return variant.analysis.get(key)
    if moved is None or key == "hidden_relative":
        return None
    return moved.head_l1 if key == "head_l1" else moved.layer_hidden_l1


def _array(key: str, words: tuple[str, str, str], unit: str, axes: Axes, group: Group) -> Figure:
    label, definition, source = words
    is_teacher_forced = group == "forced"

    def read(variant: VariantResult) -> float | None:
        if key in COVERED:
            return covered_means(variant).get(key)
        # Of its own text the full cache knows every token.
        is_own = is_teacher_forced and variant.method == "full"
        return None if is_own else mean_of_known(array_of(variant, key))

    return Figure(
        key=key,
        label=label,
        definition=definition,
        unit=unit,
        axes=axes,
        group=group,
        source=source,
        read=read,
        places=frozenset() if key in _APART else frozenset({"means"}),
    )


_METRICS = {
    "l1": ("L1", "sum |x|", "CriticalKV, eq. 5-6"),
    "l2": ("L2", "sqrt(sum x^2)", "CriticalKV, appendix G"),
    "cosine": ("cosine distance", "1 - cos", "ours"),
}
_RELATIVE = (
    "Hidden L1 relative to the full run's size",
    "hidden L1 / sum of absolute values of the full run's residual stream after block l",
    "ours",
)


def _distances() -> Iterator[Figure]:
    """Heads, attention outputs and hidden states under each metric; isolated and cascaded."""
    for key, (word, norm, source) in _METRICS.items():
        unit = "1" if key == "cosine" else word
        inner = "(o, o^)" if key == "cosine" else "of o - o^"
        hidden = "(x_l, x^_l)" if key == "cosine" else "of x_l - x^_l"
        isolated = f"{norm} {inner}; o = A V W_O, o^ = A' V W_O of one head, full run's input"
        own_input = f"{norm} {inner}; o^ from the evicted run, its own input at every layer"
        summed = f"{norm} {inner} summed over heads first"
        normed = f"{norm} {hidden.replace('_l', '')} after the model's last normalisation"
        layer, of_layer = f"{norm} {hidden}", "Attention output of a layer"
        rows: dict[str, tuple[str, str, Axes, str]] = {
            "head": ("Head output, isolated", isolated, "head", source),
            "head_cascaded": ("Head output, cascaded", own_input, "head", source),
            "hidden": ("Hidden state after each layer, cascaded", layer, "layer", source),
            "attention": (f"{of_layer}, isolated", f"{summed}; full run's input", "layer", "ours"),
            "attention_cascaded": (
                f"{of_layer}, cascaded",
                f"{summed}; evicted run's own input",
                "layer",
                "ours",
            ),
            "normed": ("After the final norm, cascaded", normed, "model", source),
        }
        for name, (label, definition, axes, of) in rows.items():
            what, _, suffix = name.partition("_")
            array = "_".join(filter(None, (what, key, suffix)))
            yield _array(array, (f"{label}, {word}", definition, of), unit, axes, "distance")
            if array == "hidden_l1":
                yield _array("hidden_relative", _RELATIVE, "1", "layer", "distance")


_WORDS: dict[tuple[Group, Axes, str], dict[str, tuple[str, str, str]]] = {
    ("distance", "layer", "L1"): {
        "hidden_norm_l1": (
            "Size of the full run's hidden state, L1",
            "sum |x_l|",
            "ours; divides hidden L1 to a relative distance",
        ),
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
            "CriticalKV, eq. 6; appendix A, figure 4",
        ),
        "sigma_oracle": (
            "Attention mass that stage 1 could hold at most",
            "sum of as many of the largest A_i as N' holds entries",
            "CriticalKV, assumption 1; the gap to sigma is the observation window's error",
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
        "oracle_greedy_l1": (
            "Oracle: greedy",
            "head L1 of a set found by dropping again and again the 1/32 of the candidates "
            "without which the group's true head L1 is smallest; of either other oracle where"
            " that is better",
            "ours",
        ),
    },
    ("selection", "kv_head", "1"): {
        "head_alpha": (
            "Alpha of each KV head",
            "the alpha of 0, 0.05, ..., 1 whose kept set has the smallest theta, with the "
            "observation window's mean attention as A, summed over the query heads of the KV "
            "head",
            "ours; variants with +critical_auto",
        ),
    },
    ("selection", "model", "1"): {
        "stage1_alpha": (
            "Alpha of stage 1",
            "share of a KV head's budget that N' takes: the variant's own alpha; without "
            "CriticalKV the run's, whose only effect is on sigma, the most that sigma could "
            "be, theta-hat and relaxed theta",
            "ours; not of +critical_auto, nor of positions that were given",
        ),
    },
    ("forced", "step", "1"): {
        "forced_top1": (
            "Same first choice as the full cache",
            "1 if argmax equals the full cache's at this position, else 0",
            "ours",
        ),
    },
    ("forced", "step", "nats"): {
        "forced_kl": (
            "KL(full || variant), teacher-forced",
            "sum_t p log(p/q)",
            "ours",
        ),
    },
    ("forced", "step", "rank"): {
        "forced_rank": (
            "Rank of the full cache's token",
            "1 + tokens of higher logit; of equal ones the lower id comes first",
            "ours",
        ),
    },
}

# Every array of the diagnostics; of these `QUANTITIES` are in `VariantResult.analysis`.
ARRAYS: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        *_distances(),
        *(
            _array(key, words, unit, axes, group)
            for (group, axes, unit), rows in _WORDS.items()
            for key, words in rows.items()
        ),
    )
}
QUANTITIES = {key: figure for key, figure in ARRAYS.items() if key not in _APART}
