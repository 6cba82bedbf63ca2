"""What parts need for a moment grows with the tensors that they make, and with nothing else."""

from dataclasses import fields, replace
from math import prod

import pytest

from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.methods.base import STORES
from ckv_core.methods.parts.views import PromptShape

SHAPE = PromptShape(layers=3, query_heads=4, kv_heads=2, head_dim=8, prompt_len=100)
PARTS = {
    part.name: part
    for method in METHODS
    for part in (method.scorer, method.budget_rule, *method.selectors, method.policy)
    if part is not None
} | STORES
DEFAULTS = {name: parameter.default for name, parameter in PARAMETERS.items()}


@pytest.mark.parametrize(
    ("part", "dimensions"),
    [
        *(
            (part, {"kv_heads", "prompt_len"})
            for part in ("adaptive", "chunks", "mass", "mass_then_scores", "partitions")
        ),
        *(
            (part, {"layers", "kv_heads", "prompt_len"})
            for part in ("top_scores_of_all", "mass_then_scores_of_all", "drop_low")
        ),
        *(
            (part, {"kv_heads", "head_dim", "prompt_len"})
            for part in ("key_difference", "int4", "think")
        ),
    ],
)
def test_a_dimension_twice_as_large_takes_twice_the_bytes(part, dimensions):
    def needed(shape: PromptShape) -> int:
        return PARTS[part].work_bytes(shape, DEFAULTS)

    sizes = {field.name: getattr(SHAPE, field.name) for field in fields(SHAPE)}
    for name, size in sizes.items():
        larger = needed(replace(SHAPE, **{name: 2 * size}))
        assert larger == needed(SHAPE) * (2 if name in dimensions else 1), name
    assert needed(SHAPE) >= 4 * prod(sizes[name] for name in dimensions), "a float32 of each"
