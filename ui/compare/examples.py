"""Built-in examples: texts with a question, read from assets/examples. No Gradio, no torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from ckv_core.records.run_request import RunRequest, Scenario

EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One text to try the app with.

    Attributes:
        id: short name, unique among the examples.
        title: what a reader chooses by; one line.
        answer: occurs in a right reply; empty where no short answer exists.
        scenario, budget, variants, max_new_tokens: at which methods differ on the default model.
    """

    id: str
    title: str
    context: str
    question: str
    answer: str
    scenario: Scenario
    budget: str
    variants: tuple[str, ...]
    max_new_tokens: int

    def request(self) -> RunRequest:
        return RunRequest(
            context=self.context,
            question=self.question,
            answer=self.answer,
            scenario=self.scenario,
            variants=self.variants,
            defaults={"budget": self.budget},
            max_new_tokens=self.max_new_tokens,
        )


def load_examples() -> list[Example]:
    """What `index.json` lists, each with its text; a test holds these files valid."""
    examples = []
    for entry in json.loads((EXAMPLES_FOLDER / "index.json").read_text("utf-8")):
        context = (EXAMPLES_FOLDER / entry.pop("file")).read_text("utf-8")
        variants = tuple(entry.pop("variants"))
        examples.append(Example(context=context, variants=variants, **entry))
    return examples
