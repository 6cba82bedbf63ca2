"""StreamingLLM: the first tokens (sinks) and the newest ones, the same set in every head.

Its code goes on so while it generates, and gives keys positions inside the cache; `rolling=on` goes
on, and keys keep the positions that they have in the text. kvpress evicts at the prompt's end only.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.position import POSITION, ROLL
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="streaming_llm",
        label="StreamingLLM",
        summary="Keeps the first `sinks` tokens and the newest ones; looks at positions only.",
        source="Xiao et al. 2023, arXiv:2309.17453",
        scorer=POSITION,
        budget_rule=UNIFORM,
        policy=ROLL,
        press=Press("StreamingLLMPress", {"n_sink": "sinks"}),
    )
)
