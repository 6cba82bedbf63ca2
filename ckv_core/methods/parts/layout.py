"""Which entries must lie together: what a server's paged cache can hold. No torch.

Kept sets per KV head do not fit the page tables of vLLM or SGLang, which hold one list of pages
for all heads of a layer.
"""

import re

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Parameter, ParameterValue
from ckv_core.methods.parts.base import Parameters

_MOST = 1024


def _parse(text: str) -> ParameterValue:
    page = re.fullmatch(r"page:(\d{1,4})", text, re.ASCII)
    if text in ("head", "layer") or (page and 2 <= int(page[1]) <= _MOST):
        return f"page:{int(page[1])}" if page else text
    raise ConfigError(
        f"layout must be head, layer or page:N with 2 to {_MOST} positions; got {text!r}."
    )


LAYOUT = Parameter(
    name="layout",
    help="What shares one kept set: a KV head (head) or a layer (layer). page:16 keeps whole pages "
    "of 16 positions of a layer.",
    default="head",
    parse=_parse,
)


def page_size(parameters: Parameters) -> int:
    """Positions of a page; 0 where entries are kept one by one."""
    word = str(parameters.get(LAYOUT.name, LAYOUT.default))
    return int(word.partition(":")[2] or 0)


def is_shared(parameters: Parameters) -> bool:
    """Whether all KV heads of a layer keep the same entries."""
    return parameters.get(LAYOUT.name, LAYOUT.default) != LAYOUT.default
