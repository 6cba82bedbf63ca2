"""Every measured quantity of the perturbation diagnostics: name, formula, unit, axes, source.

The engine fills arrays under these names; storage, the result JSON, the tables and the charts
treat them alike. Their table in docs/definitions.md is written by quantities_doc.py. No torch.
"""

from dataclasses import dataclass
from typing import Literal

Axes = Literal["head", "kv_head", "layer", "model", "step"]
Group = Literal["distance", "mass", "bound", "oracle", "forced", "selection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One measured array of a variant.

    Attributes:
        name: key in `VariantResult.analysis`, in the result JSON, in tables and in storage.
        label: what a reader sees.
        formula: plain text, symbols of methods: A full attention of the decoding query, N kept.
        unit: of the values; `1` for a share.
        axes: head = [layers, query_heads], kv_head = [layers, kv_heads], layer = [layers],
            model = [1], step = [generated].
            float32; NaN where a layer is not evictable or a value is not defined.
        group: which part of the diagnostics it belongs to.
            source: section of the paper, or `ours`.
    """

    name: str
    label: str
    formula: str
    unit: str
    axes: Axes
    group: Group
    source: str


def _distance(name: str, label: str, formula: str, unit: str, axes: Axes, source: str) -> Quantity:
    return Quantity(
        name=name,
        label=label,
        formula=formula,
        unit=unit,
        axes=axes,
        group="distance",
        source=source,
    )


_METRICS = {
    "l1": ("L1", "sum |x|", "CriticalKV, eq. 5-6"),
    "l2": ("L2", "sqrt(sum x^2)", "CriticalKV, appendix G"),
    "cosine": ("cosine distance", "1 - cos", "ours"),
}


def _distances() -> list[Quantity]:
    """Heads, attention outputs and hidden states under each metric; isolated and cascaded."""
    found = []
    for key, (word, norm, source) in _METRICS.items():
        unit = "1" if key == "cosine" else word
        inner = "(o, o^)" if key == "cosine" else "of o - o^"
        if key != "l1":  # the isolated head L1 and the hidden L1 are in `Perturbation`
            found.append(
                _distance(
                    f"head_{key}",
                    f"Head output, isolated, {word}",
                    f"{norm} {inner}; o = A V W_O, o^ = A' V W_O of one head, full run's input",
                    unit,
                    "head",
                    source,
                )
            )
        found.append(
            _distance(
                f"head_{key}_cascaded",
                f"Head output, cascaded, {word}",
                f"{norm} {inner}; o^ from the evicted run, its own input at every layer",
                unit,
                "head",
                source,
            )
        )
        for mode, suffix, how in (
            ("isolated", "", "full run's input"),
            ("cascaded", "_cascaded", "evicted run's own input"),
        ):
            found.append(
                _distance(
                    f"attention_{key}{suffix}",
                    f"Attention output of a layer, {mode}, {word}",
                    f"{norm} {inner} summed over heads first; {how}",
                    unit,
                    "layer",
                    "ours",
                )
            )
        hidden = "(x_l, x^_l)" if key == "cosine" else "of x_l - x^_l"
        if key != "l1":
            found.append(
                _distance(
                    f"hidden_{key}",
                    f"Hidden state after each layer, cascaded, {word}",
                    f"{norm} {hidden}",
                    unit,
                    "layer",
                    source,
                )
            )
        found.append(
            _distance(
                f"normed_{key}",
                f"After the final norm, cascaded, {word}",
                f"{norm} {hidden.replace('_l', '')} after the model's last normalisation",
                unit,
                "model",
                source,
            )
        )
    return found


def _mass(name: str, label: str, formula: str, source: str) -> Quantity:
    return Quantity(
        name=name,
        label=label,
        formula=formula,
        unit="1",
        axes="head",
        group="mass",
        source=source,
    )


def _bound(name: str, label: str, formula: str, source: str) -> Quantity:
    return Quantity(
        name=name,
        label=label,
        formula=formula,
        unit="L1",
        axes="head",
        group="bound",
        source=source,
    )


def _oracle(name: str, label: str, formula: str) -> Quantity:
    return Quantity(
        name=name,
        label=label,
        formula=formula,
        unit="L1",
        axes="head",
        group="oracle",
        source="ours",
    )


def _forced(name: str, label: str, formula: str, unit: str) -> Quantity:
    return Quantity(
        name=name,
        label=label,
        formula=formula,
        unit=unit,
        axes="step",
        group="forced",
        source="ours",
    )


_ALL: tuple[Quantity, ...] = (
    *_distances(),
    Quantity(
        name="hidden_norm_l1",
        label="Size of the full run's hidden state, L1",
        formula="sum |x_l|",
        unit="L1",
        axes="layer",
        group="distance",
        source="ours; divides hidden L1 to a relative distance",
    ),
    _mass(
        "sigma_stage1",
        "Attention mass of stage 1 (sigma)",
        "sigma = sum_i N'_i A_i",
        "CriticalKV, assumption 1",
    ),
    _mass(
        "sigma_kept",
        "Attention mass kept",
        "sigma_N = sum_i N_i A_i",
        "CriticalKV, eq. 6; appendix A, figure 4",
    ),
    _mass(
        "sigma_oracle",
        "Attention mass that stage 1 could hold at most",
        "sum of as many of the largest A_i as N' holds entries",
        "CriticalKV, assumption 1; the gap to sigma is the observation window's error",
    ),
    _bound(
        "value_mass",
        "C: all attention times value norm",
        "C = sum_i A_i v_i",
        "CriticalKV, theorem 2",
    ),
    _bound(
        "theta",
        "theta: bound of the kept set",
        "theta = C - (2 - 1/sigma_N) sum_i N_i A_i v_i",
        "CriticalKV, theorem 2, eq. 8",
    ),
    _bound(
        "theta_hat",
        "theta-hat: bound that stage 2 minimises",
        "theta^ = C' - (2 - 1/sigma) sum_i N''_i A_i v_i, "
        "C' = C - (2 - 1/sigma) sum_i N'_i A_i v_i",
        "CriticalKV, theorem 3, eq. 14-15",
    ),
    _bound(
        "theta_relaxed",
        "Relaxed theta: bound of attention alone",
        "C' - min_i(v_i) (2 - 1/sigma) sum_i N''_i A_i",
        "CriticalKV, theorem 4, eq. 18",
    ),
    _oracle(
        "oracle_attention_l1",
        "Oracle: true attention",
        "head L1 if each head kept the entries with the largest true A (group mean)",
    ),
    _oracle(
        "oracle_critical_l1",
        "Oracle: true attention times value norm",
        "head L1 if each head kept the entries with the largest true A v (group mean)",
    ),
    _oracle(
        "oracle_greedy_l1",
        "Oracle: greedy",
        "head L1 of a set found by dropping again and again the 1/32 of the candidates without "
        "which the group's true head L1 is smallest; of either other oracle where that is better",
    ),
    _forced(
        "forced_top1",
        "Same first choice as the full cache",
        "1 if argmax equals the full cache's at this position, else 0",
        "1",
    ),
    _forced("forced_kl", "KL(full || variant), teacher-forced", "sum_t p log(p/q)", "nats"),
    _forced(
        "forced_rank",
        "Rank of the full cache's token",
        "1 + tokens of higher logit; of equal ones the lower id comes first",
        "rank",
    ),
    Quantity(
        name="head_alpha",
        label="Alpha of each KV head",
        formula="the alpha of 0, 0.05, ..., 1 whose kept set has the smallest theta, with the "
        "observation window's mean attention as A, summed over the query heads of the KV head",
        unit="1",
        axes="kv_head",
        group="selection",
        source="ours; variants with +critical_auto",
    ),
    Quantity(
        name="stage1_alpha",
        label="Alpha of stage 1",
        formula="share of a KV head's budget that N' takes: the variant's own alpha; without "
        "CriticalKV the run's, whose only effect is on sigma, the most that sigma could be, "
        "theta-hat and relaxed theta",
        unit="1",
        axes="model",
        group="selection",
        source="ours; not of +critical_auto, nor of positions that were given",
    ),
)

QUANTITIES: dict[str, Quantity] = {quantity.name: quantity for quantity in _ALL}
