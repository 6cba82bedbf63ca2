"""Built-in examples: texts with a question, read from assets/examples. No Gradio, no torch."""

import json
from pathlib import Path

from ckv_core.records.run_request import RunRequest

EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"
_SAME = ("question", "answer", "scenario", "max_new_tokens")


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
