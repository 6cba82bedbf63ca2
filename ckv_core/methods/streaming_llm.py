"""StreamingLLM: the first tokens (sinks) and the newest ones, the same set in every head.

The authors' code also evicts while it generates (`rolling=on`) and counts positions inside the
cache (`positions=cache`). With kvpress keys keep their positions in the text, and eviction happens
once.
"""

from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import Parameter, choice
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.steps import StepPolicy, StepView, most_each_step
from ckv_core.methods.parts.views import LayerView

ROLLING = choice("rolling", ("off", "on"), kvpress="off").means(
    "StreamingLLM: on keeps evicting the oldest entries, except sinks, while it generates."
)
POSITIONS = choice("positions", ("original", "cache"), kvpress="original").means(
    "StreamingLLM: where RoPE puts held keys while it generates: at their places in the text, "
    "or inside the cache, as its code does."
)


class Position(Scorer):
    """The position itself; the first tokens are always kept."""

    parameters: ClassVar[tuple[Parameter, ...]] = (SINKS.but(default=4),)
    query_aware = False
    prefers_newest = True
    by_position = True
    across_heads = False

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        # Below 0: a place is no weight.
        places = torch.arange(-entries, 0, dtype=torch.float32, device=view.keys.device)
        return places.expand(kv_heads, -1)


class Roll(StepPolicy):
    """Each head keeps a budget of entries: the sinks and the newest."""

    needs_equal = True
    alike = True
    parameters = (ROLLING, POSITIONS)
    reads = ("sinks",)

    def wanted(self, parameters: Parameters) -> bool:
        return parameters["rolling"] == "on" or self.moves(parameters)

    def moves(self, parameters: Parameters) -> bool:
        return parameters["positions"] == "cache"

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        rolls = parameters["rolling"] == "on"
        return most_each_step(kept, generated, parameters) if rolls else kept + generated

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        excess = view.positions.shape[1] - int(parameters["budget"])
        if excess <= 0 or parameters["rolling"] == "off":
            return None
        sinks = int(parameters["sinks"])
        keep = torch.ones_like(view.positions, dtype=torch.bool)
        keep[:, sinks : sinks + excess] = False
        return keep


register(
    name="streaming_llm",
    label="StreamingLLM",
    summary="Keeps the first `sinks` tokens and the newest ones; looks at positions only.",
    source="Xiao et al. 2023, arXiv:2309.17453",
    scorer=Position(),
    policy=Roll(),
    press=Press("StreamingLLMPress", {"n_sink": "sinks"}),
)
