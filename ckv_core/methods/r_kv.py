"""R-KV: while generating, keeps what is attended to and is not repeated many times.

It evicts every 128 tokens. Of a group's query heads the largest logit counts, as in the authors'
code. Attention has the weight 0.1 of the paper; their code has 0.07.
"""

from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import integer, number
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.methods.parts.window import AUTHORS_WINDOW, KERNEL, smooth

MIX = number("mix", 0.1, (0.0, 1.0)).means(
    "R-KV: weight of importance; redundancy has the rest (paper 0.1, its code 0.07)."
)
ALIKE = number("alike", 0.5, (-1.0, 1.0)).means(
    "R-KV: keys whose cosine is above it are alike. Of the keys alike to an entry, the newest "
    "one does not count as redundant to it."
)
_ROWS = 512  # of the similarities of one head that exist at a time


class ImportanceMinusRedundancy(Scorer):
    """mix * importance - (1 - mix) * redundancy, each a softmax over the entries."""

    parameters = (AUTHORS_WINDOW.but(default=8), KERNEL.but(kvpress=None), MIX, ALIKE)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        window, mix = int(parameters["window"]), float(parameters["mix"])
        past, of_heads = view.keys.shape[1] - window, []
        queries = view.window_queries(window).float()
        grouped = queries.reshape(view.kv_heads, -1, *queries.shape[1:])
        for own, each in zip(grouped, view.keys, strict=True):
            keys = each.float()
            logits = view.scaling.logits_(own @ keys[:past].T).amax(0)
            importance = logits.softmax(-1).mean(0, keepdim=True)
            pooled = smooth(importance, int(parameters["kernel"]), "max")[0]
            repeated = redundancy(keys, float(parameters["alike"]))[:past]
            of_heads.append(mix * pooled - (1 - mix) * repeated)
        return torch.stack(of_heads)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        group = shape.query_heads // shape.kv_heads
        rows = 3 * _ROWS + 3 * group * int(parameters["window"]) + 3 * shape.head_dim
        return 4 * rows * shape.prompt_len


def redundancy(keys: Tensor, alike: float) -> Tensor:
    """Softmax of the mean cosine of all other keys to each one, [entries] float32.

    Of what a key is alike to (a cosine above `alike`), the newest does not count; of a key alike
    to none, the first. Keys are [entries, head_dim] float32, oldest first.
    """
    unit = torch.nn.functional.normalize(keys, dim=-1)
    entries = len(unit)
    places, sums = torch.arange(entries, device=unit.device), unit.new_zeros(entries)
    for start in range(0, entries, _ROWS):
        rows = unit[start : start + _ROWS] @ unit.T
        at = torch.arange(len(rows), device=unit.device)
        rows[at, at + start] = 0
        newest = (places * (rows > alike)).amax(1)
        rows[at, newest] = 0
        sums += rows.sum(0)
    return (sums / entries).softmax(-1)


BUFFER = integer("buffer", 128, (1, 4096)).means(
    "R-KV, TriAttention: generated tokens after which the cache is cut down to the budget again."
)


class CutBuffer(StepPolicy):
    """After each full buffer, prompt and generated entries together are cut to the budget."""

    needs_equal = True
    parameters = (BUFFER,)
    reads: ClassVar[tuple[str, ...]] = ("window",)

    def check(self, parameters: Parameters) -> str:
        window, buffer = int(parameters["window"]), int(parameters["buffer"])
        if window <= buffer:
            return ""
        return f"buffer ({buffer}) must be at least the window ({window}), whose queries score."

    def queries(self, parameters: Parameters) -> int:
        return int(parameters["window"])

    def acts(self, step: int, parameters: Parameters) -> bool:
        return step % int(parameters["buffer"]) == 0

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        full = int(parameters["budget"]) + int(parameters["buffer"])
        return min(kept + generated, max(full, kept))

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        budget = int(parameters["budget"])
        return view.choose(budget, 0) if view.positions.shape[1] > budget else None


register(
    name="r_kv",
    label="R-KV",
    summary="Every few tokens keeps keys that are attended to and unlike each other.",
    source="Cai et al. 2025, arXiv:2505.24133",
    scorer=ImportanceMinusRedundancy(),
    policy=CutBuffer(),
)
