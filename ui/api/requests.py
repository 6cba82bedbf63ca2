"""What the endpoints of ui/api/api.py are given, checked and made into requests."""

from dataclasses import replace

from ckv_core.request.compare_request import (
    ANALYSES,
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_PROTECTED,
    MAX_SWEEP_POINTS,
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    CompareRequest,
)
from ckv_core.request.grid import SweepGrid
from ckv_core.results.external_selection_json import own_from_json
from ckv_core.runtime.json_fields import JsonField
from ui.compare.form_values import read_list
from ui.compare.offers import DEFAULT_VARIANTS
from ui.runs.query import TEXT_CHARS
from ui.settings import Settings
from ui.sweep.form import SweepForm


def compare_request(given: JsonField, settings: Settings) -> CompareRequest:
    """Of `Api.compare`'s arguments; still to be validated."""
    own = given["own_indices"].maybe(lambda field: field.items(MAX_VARIANTS)) or []
    chosen = given["variants"].maybe(lambda field: _texts(field, MAX_VARIANTS))
    defaults = {"budget": given["budget"].text(TEXT_CHARS)}
    if not given["alpha"].absent:
        defaults["alpha"] = f"{given['alpha'].number(0, 1):g}"
    return replace(
        _prompt(given, settings),
        variants=DEFAULT_VARIANTS if chosen is None else chosen,
        defaults=defaults,
        max_new_tokens=given["max_new_tokens"].integer(1, MAX_NEW_TOKENS),
        ignore_eos=given["ignore_eos"].boolean(),
        analysis=given["analysis"].maybe(lambda field: _texts(field, len(ANALYSES))) or (),
        own_indices=own_from_json(own),
        follow_ups=given["follow_ups"].maybe(lambda field: _texts(field, MAX_FOLLOW_UPS)) or (),
    )


def sweep_request(given: JsonField, settings: Settings) -> CompareRequest:
    """Of `Api.sweep`'s arguments; what is null is as in a new sweep form."""
    form = SweepForm()
    methods = given["methods"].maybe(lambda field: _texts(field, MAX_SWEEP_POINTS))
    budgets = given["budgets"].maybe(lambda field: _texts(field, MAX_SWEEP_POINTS))
    alphas = given["alphas"].maybe(_alphas)
    grid = SweepGrid(
        methods=form.methods if methods is None else methods,
        budgets=read_list(form.budgets) if budgets is None else budgets,
        alphas=read_list(form.alphas) if alphas is None else alphas,
    )
    prompt = replace(
        _prompt(given, settings),
        max_new_tokens=given["max_new_tokens"].integer(0, MAX_NEW_TOKENS),
        analysis=("bounds",) if given["bounds"].boolean() else (),
    )
    return grid.request(prompt)


def _prompt(given: JsonField, settings: Settings) -> CompareRequest:
    """What both have."""
    return CompareRequest(
        context=given["context"].text(MAX_TEXT_CHARS),
        question=given["question"].text(MAX_TEXT_CHARS),
        scenario=given["scenario"].text(TEXT_CHARS),  # type: ignore[arg-type]  # validated
        model=given["model"].text(TEXT_CHARS).strip() or settings.model,
        answer=given["answer"].text(MAX_TEXT_CHARS),
        protect=given["protect"].maybe(lambda field: _texts(field, MAX_PROTECTED)) or (),
        device=settings.device,
    )


def _texts(field: JsonField, most: int) -> tuple[str, ...]:
    return tuple(item.text(MAX_TEXT_CHARS) for item in field.items(most))


def _alphas(field: JsonField) -> tuple[str, ...]:
    return tuple(f"{item.number(0, 1):g}" for item in field.items(MAX_SWEEP_POINTS))
