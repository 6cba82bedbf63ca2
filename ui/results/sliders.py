"""The sliders of a stored result: which there are, their ends, and the run's own values."""

from bisect import bisect_left
from dataclasses import replace
from typing import Any

from ckv_core.errors import CkvError, ConfigError
from ckv_core.records.records import PromptInfo
from ckv_core.records.variants import written_parameters
from ui.services.live_runs import RunSnapshot
from ui.services.previews import is_live

MOST_PERCENT = 50


def live_value(run: RunSnapshot) -> dict[str, Any] | None:
    """Value of the Live component; None where a run has nothing that can be moved.

    `at` are the run's own values, budgets in percent of the compressed prompt.
    """
    prompt = run.result.prompt
    if prompt is None or not is_live(run):
        return None
    try:
        percents, alphas = _own_values(run, prompt.compressed_tokens)
        least = _least_percent(run, prompt)
    except CkvError:  # an imported run may have SPECs that this version does not know
        return None
    if not percents:
        return None
    at = percents[0]
    return {
        "slug": run.slug,
        "tokens": prompt.compressed_tokens,
        "budget": {"at": at, "least": min(least, at), "most": max(MOST_PERCENT, at)},
        "alpha": {"at": alphas[0], "least": 0, "most": 1} if alphas else None,
    }


def _own_values(run: RunSnapshot, tokens: int) -> tuple[list[float], list[float]]:
    """Budgets in percent and alphas of the variants that take the run's."""
    request, percents, alphas = run.request, [], []
    variants = zip(request.variants, request.specs, run.result.variants, strict=False)
    for text, spec, variant in variants:
        own = written_parameters(text)
        if "budget" in spec.params and "budget" not in own and variant.receipt:
            is_share = spec.budget.unit == "percent"
            share = 100 * variant.receipt.budget_tokens / tokens
            percents.append(spec.budget.amount if is_share else share)
        if "alpha" in spec.params and "alpha" not in own:
            alphas.append(float(spec.params["alpha"]))
    return percents, alphas


def _least_percent(run: RunSnapshot, prompt: PromptInfo) -> int:
    """The smallest whole percentage of the prompt that holds what every method always keeps."""

    def fits(percent: int) -> bool:
        request = replace(run.request, budgets=(f"{percent}%",))
        try:
            request.check_budgets(prompt.compressed_tokens, len(prompt.question))
        except ConfigError:
            return False
        return True

    return 1 + bisect_left(range(1, MOST_PERCENT), True, key=fits)
