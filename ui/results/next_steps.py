"""Next steps from a result of one sample: several budgets, more samples, how many fit."""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment.next_step import between
from ckv_core.experiment.verdict import Grid, read_grid
from ckv_core.records.grid import cost
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import spec_without, written_parameters
from storage.records import RunFilter
from ui.services.live_runs import RunSnapshot
from ui.services.previews import is_live
from ui.services.services import Services

SEARCHED = ("5%", "10%", "20%", "30%", "40%", "50%")


def next_value(view: RunSnapshot) -> dict[str, Any] | None:
    """Value of the NextSteps of a run of one sample; None before it is over."""
    if not view.is_final or view.result.prompt is None:
        return None
    more = {"from": view.slug, "source": "pasted"}
    links = [
        _link("Run on more samples", more, "Fill in the form with these methods and budgets."),
        *_between(view),
        _fits(view.request, view.result.prompt.tokens),
    ]
    value: dict[str, Any] = {"find": "", "links": links, "refused": "", "started": ""}
    if wanted := at_searched(view.request):
        tokens = view.result.prompt.tokens
        value["find"] = cost(wanted, [(tokens, len(wanted.points()))]).text
    return value


def at_searched(request: RunRequest) -> RunRequest | None:
    """The same text, question and methods at the budgets that are searched.

    None for a run at several budgets, and where no method evicts.
    """
    if request.kind == "sweep":
        return None
    variants = dict.fromkeys(spec_without(spec, "budget") for spec in request.variants)
    wanted = replace(
        request,
        variants=tuple(variants),
        budgets=SEARCHED,
        own_indices=(),
        reference=True,
        analysis=(),
        follow_ups=(),
        repeats="",
        time=False,
    )
    with suppress(CkvError):
        wanted.points()
        return wanted
    return None


def searching(services: Services) -> Callable[[str], dict[str, Any] | Any]:
    """A handler that starts the run at the searched budgets, made from the run of a slug."""

    def find(slug: str) -> Any:
        try:
            view = services.snapshot(str(slug))
            value = next_value(view)
            wanted = at_searched(view.request)
            if value is None or wanted is None:
                return gr.skip()
        except CkvError:
            return gr.skip()
        try:
            return value | {"started": services.start_run(wanted)}
        except CkvError as error:
            return value | {"refused": str(error)}

    return find


def at_point(view: RunSnapshot, index: object) -> RunRequest:
    """The text and all methods of a run at the budget and the alpha of one of its points.

    Raises:
        CkvError: there is no such point.
    """
    request, variants = view.request, view.result.variants
    if type(index) is not int or not 0 < index < len(variants):
        raise ConfigError("This run has no such method at that budget; reload the page.")
    own = written_parameters(variants[index].spec)
    alphas = request.alphas if own.get("alpha") not in request.alphas else (own["alpha"],)
    return replace(
        request,
        variants=tuple(dict.fromkeys(spec_without(spec, "budget") for spec in request.variants)),
        budgets=(own["budget"],) if "budget" in own else request.budgets[:1],
        alphas=alphas[:1],
        places=(),
    )


def opened(services: Services, request: RunRequest) -> str:
    """The slug of a run of this request: of one that was made before, or a new one."""
    request.validate()
    alike = RunFilter(text=request.question, model=request.model, kind=request.kind)
    found, _ = services.library.list_runs(alike)
    known = (run.slug for run in found if run.state != "failed")
    same = (at for at in known if services.snapshot(at).request == request)
    return next(same, "") or services.start_run(request)


def _between(view: RunSnapshot) -> list[dict[str, str]]:
    """A link that fills in budgets below the smallest one that answers, down to the next tried."""
    if view.request.kind != "sweep":
        return []
    grid = read_grid(view.result)
    ends = _gap(grid)
    if ends is None:
        return []
    budgets = ", ".join(between(*ends, "percent"))
    words = "Add budgets between {:g} and {:g} %".format(*ends)
    link = _link(words, {"from": view.slug, "budget": budgets}, f"Fill in the form: {budgets}.")
    return [link] if budgets else []


def _gap(grid: Grid) -> tuple[float, float] | None:
    """The smallest budget that keeps the answer and the one below it, in percent."""
    places = [line.smallest for line in grid.lines if line.smallest is not None]
    if not places or (least := min(places)) == 0:
        return None
    low, high = grid.budgets[least - 1], grid.budgets[least]
    return (low.amount, high.amount) if {low.unit, high.unit} == {"percent"} else None


def _fits(request: RunRequest, tokens: int) -> dict[str, str]:
    """A link to the Methods page with the run's model, methods, first budget and length."""
    query = {"model": request.model, "prompt": str(tokens), "variants": ";".join(request.variants)}
    budgets = {"budget": request.budgets[0]} if request.budgets else {}
    return {
        "text": "How many requests fit?",
        "href": f"/methods?{urlencode(query | budgets)}#capacity",
        "title": "How many requests fit on a device with these methods, computed.",
    }


def _link(text: str, query: dict[str, str], title: str) -> dict[str, str]:
    return {"text": text, "href": f"/?{urlencode(query)}", "title": title}


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
