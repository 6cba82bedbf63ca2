"""Passages of a prompt that no method may evict: where the texts of a request lie in it. No torch.

A method's own sinks and window are declared by its parts; these come with the request.
"""

import hashlib
import re
from collections.abc import Sequence

from ckv_core.errors import PromptError
from ckv_core.request.compare_request import MAX_PROTECTED, TOKEN_RANGE, no_passage
from ckv_core.results.passages import spans_of
from ckv_core.results.records import PromptInfo
from ckv_core.runtime.spans import merged

_NAME_CHARS = 24


def protected_ranges(prompt: PromptInfo, protect: Sequence[str]) -> tuple[range, ...]:
    """Positions of the compressed prompt that are protected: ascending, apart from one another.

    `protect`: each a text, every occurrence of which counts (case and spacing ignored), or
    `tokens:FIRST-LAST`, positions of the prompt with both ends.

    Raises:
        PromptError: a text does not occur, positions lie outside, or the places are too many.
    """
    ranges = merged(place for text in protect for place in _places(prompt, text.strip()))
    if len(ranges) > MAX_PROTECTED:
        raise PromptError(
            f"The protected texts occur in {len(ranges):,} places of the prompt; up to "
            f"{MAX_PROTECTED} can be protected: give longer texts, or positions (tokens:12-39)."
        )
    return ranges


def short_name(protect: Sequence[str]) -> str:
    """One word for the texts, to tell variants apart: the first letters, and a digest of all."""
    digest = hashlib.sha256("\0".join(sorted(protect)).encode()).hexdigest()[:8]
    letters = re.sub(r"\W+", "_", protect[0], flags=re.ASCII).strip("_")[:_NAME_CHARS]
    return f"{letters}~{digest}"


def _places(prompt: PromptInfo, text: str) -> list[range]:
    match, compressed = TOKEN_RANGE.fullmatch(text), prompt.compressed_tokens
    if match is None:
        places = [range(*span) for span in spans_of(prompt, text)]
        if not places:
            raise no_passage(text)
        return places
    first, last = int(match[1]), int(match[2])
    if not first <= last < compressed:
        raise PromptError(
            f"{text!r} is no passage of the compressed prompt, whose positions are 0 to "
            f"{compressed - 1:,}; give the first and the last position."
        )
    return [range(first, last + 1)]
