"""Built-in examples: texts with a question, read from assets/examples. No Gradio, no torch."""

import json
from dataclasses import replace
from pathlib import Path

from ckv_core.records.run_request import RunRequest

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
