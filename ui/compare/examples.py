"""Built-in examples, and the app's own run of one as a card of the Compare page. No Gradio."""

import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import RunRequest
from ui.results.views import kept_value, verdict_value
from ui.services.live_runs import RunSnapshot

EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"
_SAME = ("question", "answer", "scenario", "max_new_tokens")
# What the app itself runs once: methods that differ on it, without diagnostics to be quick.
SHOWN = "Needle in a report"
SHOWN_AS = "harbour report, 20 % of the cache"
SHOWN_VARIANTS = ("full", "kvzip", "snapkv", "snapkv+critical:stage2=raw", "adakv")


def load_examples() -> dict[str, RunRequest]:
    """What `index.json` lists, by a title of one line; a test holds these files valid.

    Their budgets and variants are those at which methods differ on the default model.
    """
    return {
        entry["title"]: RunRequest(
            context=(EXAMPLES_FOLDER / entry["file"]).read_text("utf-8"),
            variants=tuple(entry["variants"]),
            budgets=(entry["budget"],),
            **{name: entry[name] for name in _SAME},
        )
        for entry in json.loads((EXAMPLES_FOLDER / "index.json").read_text("utf-8"))
    }


def shown_example(model: str, device: str) -> RunRequest:
    """The run that the app makes after its start and shows on the Compare page."""
    example = replace(load_examples()[SHOWN], variants=SHOWN_VARIANTS, budgets=("20%",))
    return replace(example, model=model, device=device, analysis=())


WAITS = "The app makes an example run once the model is ready and nothing else runs."
RUNS = "The app is making this example run now."


def example_value(view: RunSnapshot | None) -> dict[str, Any]:
    """The answer of `/example` while a run is there or may come.

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
        {
            "index": index,
            "wrote": _written(variant, start),
            "outcome": variant.outcome if view.is_final else None,  # before it is judged
        }
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
    """A method's text from a character on, in two parts where it leaves the full cache's text.

    The word in which it leaves it differs as a whole.
    """
    text, cut = variant.text, len(variant.text)
    if variant.first_difference is not None:
        same = "".join(variant.token_texts[: variant.first_difference])
        cut = max(start, same.rfind(" ") + 1)
    parts = [(text[start:cut], False), (text[cut:], True)]
    return [part for part in parts if part[0].strip()]
