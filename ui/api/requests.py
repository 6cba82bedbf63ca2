"""What the endpoints of ui/api/endpoints.py are given, checked and made into requests."""

from dataclasses import replace
from typing import Annotated, Any

from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import with_points
from ckv_core.runtime.checked import chars, read
from ui.compare.form_values import read_list
from ui.compare.offers import DEFAULT_VARIANTS
from ui.runs.query import TEXT_CHARS
from ui.settings import Settings

WHOLE = "request"
ShortText = Annotated[str, chars(TEXT_CHARS)]


def compare_request(arguments: dict[str, Any], settings: Settings) -> CompareRequest:
    """Of `Api.compare`'s arguments; still to be validated."""
    given = {name: value for name, value in arguments.items() if value is not None}
    lists = [
        read_list(read(ShortText, given.pop(name, ""), WHOLE, at=(name,)))
        for name in ("budget", "alpha")
    ]
    own = {"variants": DEFAULT_VARIANTS, "device": settings.device}
    request = read(CompareRequest, own | given, WHOLE)
    request = replace(request, model=request.model.strip() or settings.model)
    return with_points(request, lists[0] or ("",), lists[1])
