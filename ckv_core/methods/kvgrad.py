"""KVgrad: KVzip's attention, weighed by how far it reaches the last hidden states.

While the prompt is repeated, an entry counts as attention times the norm of V W_O times a gradient.
The gradient is of the last layer's squared hidden states, by what attention gave the token. Each
pass goes forward and back. `preset=kvpress` repeats 512 tokens a pass; its authors now take 256.
"""

from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.base import register
from ckv_core.methods.kvzip import FIRST_OF_WEIGHTED, LEAD, NEXT, REPEAT, Reconstruction, Repeated
from ckv_core.methods.parameters import Parameter
from ckv_core.methods.parts.base import SINKS, Parameters
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.rules import TopScoresOfAll
from ckv_core.methods.parts.views import Chunk


@dataclass(frozen=True, slots=True)
class Attribution(Reconstruction):
    """The most attention of any token that rebuilds its part, times that token's gradient."""

    kind: ClassVar[str] = "attention times gradient while the prompt is repeated"
    goes_back: ClassVar[bool] = True

    @property
    def following(self) -> str:
        return NEXT

    @property
    def first(self) -> float:
        return FIRST_OF_WEIGHTED

    def weights(self, chunk: Chunk) -> Tensor | None:
        return chunk.gradient


class Attributed(Repeated):
    """Attention times gradient, times the L2 norm of the value after the output projection."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        REPEAT.but(default=256, kvpress=512),
        LEAD,
        SINKS.but(default=4),
    )

    def norms(self, parameters: Parameters) -> tuple[int, ...]:
        return (2,)

    def reconstruction(self, parameters: Parameters) -> Attribution:
        sinks = None if parameters["lead"] == "first" else int(parameters["sinks"])
        return Attribution(int(parameters["repeat"]), sinks)


register(
    name="kvgrad",
    label="KVgrad",
    summary="Keeps what moves the last hidden states most while the prompt is repeated.",
    source="Openreview cg1wTCJjjk (2026); kvpress pull request 279",
    scorer=Attributed(),
    budget_rule=TopScoresOfAll(),
    press=Press("KVgradPress", {"n_sink": "sinks", "chunk_size": "repeat"}, scores=False),
)
