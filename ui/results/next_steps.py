"""What a reader can do next with a result of one sample: at several budgets, on more samples."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.experiment.grid import Grid, read_grid
from ckv_core.records.grid import cost
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import spec_without
from storage.records import Lineage
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

SEARCHED = ("5%", "10%", "20%", "30%", "40%", "50%")
_BETWEEN = 4  # budgets that are filled in between two


def next_value(view: RunSnapshot) -> dict[str, Any] | None:
    """Value of the NextSteps of a run of one sample; None before it is over."""
    if not view.is_final or view.result.prompt is None:
        return None
    more = {"from": view.slug, "source": "file"}
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
        analysis=(),
        follow_ups=(),
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
            return value | {"started": services.start_run(wanted, Lineage(view.slug, "fork"))}
        except CkvError as error:
            return value | {"refused": str(error)}

    return find


def _between(view: RunSnapshot) -> list[dict[str, str]]:
    """A link that fills in budgets below the smallest one that answers, down to the next tried."""
    if view.request.kind != "sweep":
        return []
    grid = read_grid(view.result)
    ends = _gap(grid)
    if ends is None:
        return []
    low, high = ends
    step = (high - low) / (_BETWEEN + 1)
    decimals = 0 if step >= 1 else 1
    found = {round(low + step * at, decimals) for at in range(1, _BETWEEN + 1)} - {low, high}
    if not found:
        return []
    budgets = ", ".join(f"{amount:g}%" for amount in sorted(found))
    words = f"Add budgets between {low:g} and {high:g} %"
    return [_link(words, {"from": view.slug, "budget": budgets}, f"Fill in the form: {budgets}.")]


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
        "title": "Memory and requests of these methods on a device, computed.",
    }


def _link(text: str, query: dict[str, str], title: str) -> dict[str, str]:
    return {"text": text, "href": f"/?{urlencode(query)}", "title": title}
