"""What the endpoints of ui/api/endpoints.py are given, checked and made into requests."""

from ckv_core.request.compare_request import (
    ANALYSES,
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_PROTECTED,
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    CompareRequest,
)
from ckv_core.request.grid import with_points
from ckv_core.results.external_selection_json import own_from_json
from ckv_core.runtime.json_fields import JsonField
from ui.compare.form_values import read_list
from ui.compare.offers import DEFAULT_VARIANTS
from ui.runs.query import TEXT_CHARS
from ui.settings import Settings


def compare_request(given: JsonField, settings: Settings) -> CompareRequest:
    """Of `Api.compare`'s arguments; still to be validated."""
    own = given["own_indices"].maybe(lambda field: field.items(MAX_VARIANTS)) or []
    request = CompareRequest(
        context=given["context"].text(MAX_TEXT_CHARS),
        question=given["question"].text(MAX_TEXT_CHARS),
        scenario=given["scenario"].text(TEXT_CHARS),  # type: ignore[arg-type]  # validated
        model=given["model"].text(TEXT_CHARS).strip() or settings.model,
        answer=given["answer"].text(MAX_TEXT_CHARS),
        protect=_texts(given["protect"], MAX_PROTECTED),
        device=settings.device,
        variants=_texts(given["variants"], MAX_VARIANTS, DEFAULT_VARIANTS),
        max_new_tokens=given["max_new_tokens"].integer(0, MAX_NEW_TOKENS),
        ignore_eos=given["ignore_eos"].boolean(),
        analysis=_texts(given["analysis"], len(ANALYSES)),
        own_indices=own_from_json(own),
        follow_ups=_texts(given["follow_ups"], MAX_FOLLOW_UPS),
    )
    budgets, alphas = (read_list(given[name].text(TEXT_CHARS)) for name in ("budget", "alpha"))
    return with_points(request, budgets or ("",), alphas)


def _texts(field: JsonField, most: int, absent: tuple[str, ...] = ()) -> tuple[str, ...]:
    return absent if field.absent else tuple(f.text(MAX_TEXT_CHARS) for f in field.items(most))
