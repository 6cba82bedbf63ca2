"""The two scores of one layer under one variant's knobs: for stage 1 and for stage 2."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ckv_core.knobs import KnobValue
from ckv_core.scoring.window import Pool, Reduce, group_reduce, smooth


@dataclass(frozen=True, slots=True)
class LayerScores:
    """Scores of the entries that may be evicted.

    Attributes:
        attention_score: [kv_heads, evictable] float32; ranks plain top-k, stage 1 and budgets.
        critical_score: [kv_heads, evictable] float32, attention times value norm for stage 2;
            None without CriticalKV.
    """

    attention_score: Tensor
    critical_score: Tensor | None


def window_scores(
    attention: Tensor, norms: Tensor | None, kv_heads: int, knobs: Mapping[str, KnobValue]
) -> LayerScores:
    """Pool, weigh and group the window attention.

    Args:
        attention: [query_heads, prompt_len - window] raw mean window attention.
        norms: [query_heads, prompt_len] value norms; None without CriticalKV.
        kv_heads: number of KV heads.
        knobs: resolved SPEC keys: kernel, pool, group, sinks and, with CriticalKV, stage2,
            norm, product, epsilon.
    """
    reduce = cast(Reduce, knobs["group"])
    sinks = int(knobs["sinks"])
    pooled = smooth(attention, int(knobs["kernel"]), cast(Pool, knobs["pool"]))
    base = group_reduce(pooled, kv_heads, reduce)
    if norms is None:
        return LayerScores(base[:, sinks:], None)
    source = (attention if knobs["stage2"] == "raw" else pooled) + float(knobs["epsilon"])
    norms = norms[:, : attention.shape[-1]]
    if knobs["norm"] == "off":
        critical = group_reduce(source, kv_heads, reduce)
    elif knobs["product"] == "head":
        critical = group_reduce(source * norms, kv_heads, reduce)
    else:
        critical = group_reduce(source, kv_heads, reduce) * group_reduce(norms, kv_heads, "mean")
    return LayerScores(base[:, sinks:], critical[:, sinks:])
