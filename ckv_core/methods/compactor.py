"""Compactor: entries whose keys are unlike the others, or that their neighbours attend to.

The paper's serving engine and kvpress, both by its author, leave logits unscaled, as here, and
differ: the engine blends half of the leverage in, kvpress as much as it evicts; tiles of 128
against 256; kvpress multiplies by the value's size, smooths, and lets padding draw attention. The
engine also takes leverage by chunks of 512, this and kvpress of the whole prompt. kvpress draws
its sketch anew each time: no two runs agree; here it has a seed. Costs attention within tiles and
one matrix of the sketch's size squared per KV head.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.outliers import Outliers
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="compactor",
        label="Compactor",
        summary="Keeps keys unlike the others, and what neighbours attend to, later ones too.",
        source="Chari and Van Durme 2025, arXiv:2507.08143",
        scorer=Outliers(),
        budget_rule=UNIFORM,
    )
)
