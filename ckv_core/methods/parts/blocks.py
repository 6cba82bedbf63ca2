"""Eviction between blocks of the prompt, so that the whole cache is never held. No torch.

After each block every head is cut down to its budget by the method's own score and selector, of
what it holds and the block (KeyDiff, arXiv:2504.15364). kvpress's BlockPress does so after one full
forward pass; here a block sees what earlier ones left.
"""

import re

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Parameter, ParameterValue
from ckv_core.methods.parts.base import BudgetRule, Parameters, Part, Scorer

LEAST, MOST = 16, 65_536  # tokens of a block


def _parse(text: str) -> ParameterValue:
    block = re.fullmatch(r"blocks:(\d{1,5})", text, re.ASCII)
    if text == "whole" or (block and LEAST <= int(block[1]) <= MOST):
        return f"blocks:{int(block[1])}" if block else text
    raise ConfigError(
        f"prefill must be whole or blocks:N with {LEAST} to {MOST:,} tokens; got {text!r}."
    )


PREFILL = Parameter(
    name="prefill",
    help="How the prompt is read: whole, in one prefill for all methods, or in blocks of so many "
    "tokens (blocks:1024). After each block every head is cut down to its budget.",
    default="whole",
    parse=_parse,
)


def block_size(parameters: Parameters) -> int:
    """Tokens of a block; 0 where the prompt is read whole."""
    return int(str(parameters.get(PREFILL.name, PREFILL.default)).partition(":")[2] or 0)


def unfit(
    scorer: Scorer | None, rule: BudgetRule | None, parts: tuple[Part, ...], parameters: Parameters
) -> str:
    """Why a method of these parts cannot evict between blocks, to come after its name."""
    if scorer is None or rule is None:
        return "has no score to evict by"
    if scorer.queries(parameters):
        return "scores by queries of the prompt's end, which no block before the last has read"
    if scorer.turns_keys:
        return "turns keys back from their places, which what is held between blocks does not tell"
    if any(part.observes(parameters) or part.passes(parameters) for part in parts):
        return "scores by statistics of the whole prompt"
    return "" if rule.equal else "gives heads different budgets, known only at the prompt's end"
