"""What the endpoints of ui/api/endpoints.py are given, checked and made into requests."""

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
    defaults = {"budget": given["budget"].text(TEXT_CHARS)}
    if not given["alpha"].absent:
        defaults["alpha"] = f"{given['alpha'].number(0, 1):g}"
    return replace(
        _prompt(given, settings),
        variants=_texts(given["variants"], MAX_VARIANTS, DEFAULT_VARIANTS),
        defaults=defaults,
        max_new_tokens=given["max_new_tokens"].integer(1, MAX_NEW_TOKENS),
        ignore_eos=given["ignore_eos"].boolean(),
        analysis=_texts(given["analysis"], len(ANALYSES)),
        own_indices=own_from_json(own),
        follow_ups=_texts(given["follow_ups"], MAX_FOLLOW_UPS),
    )


def sweep_request(given: JsonField, settings: Settings) -> CompareRequest:
    """Of `Api.sweep`'s arguments; what is null is as in a new sweep form."""
    form, alphas = SweepForm(), given["alphas"]
    grid = SweepGrid(
        methods=_texts(given["methods"], MAX_SWEEP_POINTS, form.methods),
        budgets=_texts(given["budgets"], MAX_SWEEP_POINTS, read_list(form.budgets)),
        alphas=read_list(form.alphas)
        if alphas.absent
        else tuple(f"{item.number(0, 1):g}" for item in alphas.items(MAX_SWEEP_POINTS)),
    )
    prompt = replace(
        _prompt(given, settings),
        max_new_tokens=given["max_new_tokens"].integer(0, MAX_NEW_TOKENS),
        analysis=("bounds",) if given["bounds"].boolean() else (),
    )
    return grid.request(prompt)


def _prompt(given: JsonField, settings: Settings) -> CompareRequest:
    return CompareRequest(
        context=given["context"].text(MAX_TEXT_CHARS),
        question=given["question"].text(MAX_TEXT_CHARS),
        scenario=given["scenario"].text(TEXT_CHARS),  # type: ignore[arg-type]  # validated
        model=given["model"].text(TEXT_CHARS).strip() or settings.model,
        answer=given["answer"].text(MAX_TEXT_CHARS),
        protect=_texts(given["protect"], MAX_PROTECTED),
        device=settings.device,
    )


def _texts(field: JsonField, most: int, absent: tuple[str, ...] = ()) -> tuple[str, ...]:
    return absent if field.absent else tuple(f.text(MAX_TEXT_CHARS) for f in field.items(most))
