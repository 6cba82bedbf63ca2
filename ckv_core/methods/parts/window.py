"""SnapKV's score: the attention of the last `window` prompt tokens, smoothed along the prompt."""

from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.parameters import Parameter, choice, integer
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.views import LayerView

WINDOW = integer("window", 32, (1, 1024), kvpress=64).means(
    "Observation window: the last tokens of the prompt, whose queries give the scores. Always kept."
)
KERNEL = integer("kernel", 7, (1, 255), odd=True, kvpress=5).means(
    "Width in tokens of the smoothing of scores along the prompt (odd)."
)
POOL = choice("pool", ("max", "avg", "none"), kvpress="avg").means(
    "Smoothing of scores along the prompt: maximum, average or none."
)
GROUP = choice("group", ("mean", "max")).means(
    "How the scores of the query heads that share a KV head are combined."
)
# Of methods that kvpress does not have, as their authors' codes ship them.
AUTHORS_WINDOW = WINDOW.but(kvpress=None)
AUTHORS_KERNEL = KERNEL.but(default=5, kvpress=None)
AUTHORS_POOL = POOL.but(default="avg", kvpress=None)


class Window(Scorer):
    """Mean window attention, pooled, then combined over the heads of a group (arXiv:2404.14469)."""

    parameters: ClassVar[tuple[Parameter, ...]] = (WINDOW, KERNEL, POOL, GROUP, SINKS)
    non_negative = True
    needs_window = True

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        return view.window_attention(int(parameters["window"]))

    def smooth(self, evidence: Tensor, parameters: Parameters) -> Tensor:
        return smooth(evidence, int(parameters["kernel"]), str(parameters["pool"]))

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return group_reduce(evidence, kv_heads, str(parameters["group"]))


WINDOW_SCORER = Window()


def smooth(score: Tensor, kernel: int, pool: str) -> Tensor:
    """Pool a score [heads, entries] along the prompt, stride 1, centred.

    `avg` divides by the kernel at the edges too (torch's default, as kvpress ships it), which
    damps the first entries; `max` does not.
    """
    if pool == "none" or kernel == 1 or score.shape[-1] == 0:
        return score
    functional = torch.nn.functional
    pooling = functional.max_pool1d if pool == "max" else functional.avg_pool1d
    pooled: Tensor = pooling(score[None], kernel, stride=1, padding=kernel // 2)[0]
    return pooled


def group_reduce(score: Tensor, kv_heads: int, how: str) -> Tensor:
    """Combine, by mean or max, the query heads that share a KV head: [kv_heads, entries]."""
    grouped = score.view(kv_heads, -1, score.shape[-1])
    return grouped.mean(1) if how == "mean" else grouped.amax(1)
