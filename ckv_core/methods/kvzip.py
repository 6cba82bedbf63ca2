"""KVzip: keeps what the model attends to when it repeats the prompt, whatever is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parameters import Choice, Parameter, integer
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.reconstruction import Reconstruction
from ckv_core.methods.parts.top_scores import TopScoresOfAll
from ckv_core.methods.parts.views import FurtherPasses, LayerView
from ckv_core.runtime.lazy_torch import Tensor

REPEAT = Parameter(
    name="repeat",
    help="KVzip: tokens of the prompt that one further pass repeats.",
    default=2000,
    kvpress=2048,
    parse=integer("repeat", 64, 65536),
)
LEAD = Parameter(
    name="lead",
    help="KVzip: what the chat template writes before the text ranks `first`, or `last`, for "
    "nothing repeats it.",
    default="first",
    kvpress="last",
    parse=Choice("lead", "first", "last"),
)


class Repeated(Scorer):
    """The most that any token attends to an entry while its part is repeated; sinks are kept."""

    name = "repeated"
    parameters: ClassVar[tuple[Parameter, ...]] = (REPEAT, LEAD, replace(SINKS, default=4))
    query_aware = False
    non_negative = True

    def passes(self, parameters: Parameters) -> tuple[FurtherPasses, ...]:
        return (_reconstruction(parameters),)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        return view.observed(_reconstruction(parameters))

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return evidence.view(kv_heads, -1, evidence.shape[-1]).amax(1)


def _reconstruction(parameters: Parameters) -> Reconstruction:
    sinks = None if parameters["lead"] == "first" else int(parameters["sinks"])
    return Reconstruction(int(parameters["repeat"]), sinks)


METHODS.register(
    Method(
        name="kvzip",
        label="KVzip",
        summary="Keeps what the model attends to while it repeats the prompt: 2 to 3 prefills.",
        source="Kim et al. 2025, arXiv:2505.23416",
        scorer=Repeated(),
        budget_rule=TopScoresOfAll(),
        press=Press("KVzipPress", {"n_sink": "sinks", "chunk_size": "repeat"}, scores=False),
    )
)
