"""CapKV: entries whose values point where the others do not, weighed by the mean query.

The paper weighs by the plain dot product of key and mean query; kvpress by their cosine, times 5,
with the mean query turned to future positions: `align`, `tau` and `anchor`. Which factor the paper
multiplies the dot product by could not be read; here it is that of the model's own logits. Costs
one matrix of head size squared per query head, and a triangular solve for each entry.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.capacity import Capacity
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="capkv",
        label="CapKV",
        summary="Keeps values that add most to what the others can express; weighs by keys.",
        source="Tang et al. 2026, arXiv:2604.25975",
        scorer=Capacity(),
        budget_rule=UNIFORM,
        press=Press("CapPress", {"tau": "tau", "n_future_positions": "future", "n_sink": "sinks"}),
    )
)
