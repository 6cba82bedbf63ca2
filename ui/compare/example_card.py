"""The app's own example run as the Compare page's card shows it. No Gradio, no clock."""

from itertools import takewhile
from typing import Any

from ckv_core.records.records import VariantResult
from ui.compare.examples import SHOWN_AS
from ui.results.views import kept_value, verdict_value
from ui.services.live_runs import RunSnapshot

WAITS = "The app makes an example run once the model is ready and nothing else runs."
RUNS = "The app is making this example run now."


def example_value(view: RunSnapshot | None) -> dict[str, Any]:
    """What `/example` answers while a run is there or may come.

    Returns:
        `about` names the example, `done` is whether nothing more comes, `text` is the verdict or
        what the app does now. `kept` is as the KeptTokens component has it, None before methods
        have chosen; `rows` has for each method but the full cache {"index", "wrote", "outcome"}:
        `wrote` are (text, whether it differs from the full cache's).
    """
    if view is None:
        return {"about": SHOWN_AS, "done": False, "text": WAITS, "kept": None, "rows": []}
    verdict, variants = verdict_value(view), view.result.variants
    # What all begin with is not what tells them apart.
    texts = [variant.text for variant in variants if variant.stopped]
    equal = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    start = "".join(letters[0] for letters in equal).rfind(" ") + 1
    rows = [
        {"index": index, "wrote": _written(variant, start), "outcome": variant.outcome}
        for index, variant in enumerate(variants)
        if variant.method != "full"
    ]
    return {
        "about": SHOWN_AS,
        "slug": view.slug,
        "done": view.is_final,
        "text": verdict["headline"] if verdict else RUNS,
        "kept": kept_value(view),
        "rows": rows,
    }


def _written(variant: VariantResult, start: int) -> list[tuple[str, bool]]:
    """What a method wrote from a character on, in two parts where it leaves the full cache's text.

    The word in which it leaves it differs as a whole.
    """
    text, cut = variant.text, len(variant.text)
    if variant.first_difference is not None:
        same = "".join(variant.token_texts[: variant.first_difference])
        cut = max(start, same.rfind(" ") + 1)
    parts = [(text[start:cut], False), (text[cut:], True)]
    return [part for part in parts if part[0].strip()]
