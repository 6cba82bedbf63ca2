"""Built-in examples: texts with a question, read from assets/examples. No Gradio, no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario

EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"
_TEXTS = frozenset({"id", "title", "file", "question", "answer", "scenario", "budget"})
_KEYS = _TEXTS | {"max_new_tokens", "variants"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One text to try the app with.

    Attributes:
        id: short name, unique among the examples.
        title: what a reader chooses by; one line.
        context: the long text.
        question: asked about it.
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

    def __post_init__(self) -> None:
        for name in ("id", "title", "context", "question"):
            if not getattr(self, name).strip():
                raise ConfigError(f"Example {self.id!r} has an empty {name}; fill it in.")
        if self.scenario not in SCENARIOS:
            raise ConfigError(
                f"Example {self.id!r} names scenario {self.scenario!r}; "
                f"use one of {', '.join(SCENARIOS)}."
            )
        self.request().validate()

    def request(self) -> CompareRequest:
        """The comparison that this example fills in."""
        return CompareRequest(
            context=self.context,
            question=self.question,
            answer=self.answer,
            scenario=self.scenario,
            variants=self.variants,
            defaults={"budget": self.budget},
            max_new_tokens=self.max_new_tokens,
        )


def load_examples(folder: Path = EXAMPLES_FOLDER) -> list[Example]:
    """Read `index.json` and the texts that it names, in its order, or ConfigError."""
    entries = _read_index(folder / "index.json")
    examples = [_example(folder, entry) for entry in entries]
    ids = [example.id for example in examples]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"Example ids must be unique, got {', '.join(ids)}.")
    return examples


def _read_index(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path.name} is not valid JSON: {error}.") from error
    if not isinstance(entries, list):
        raise ConfigError(f"{path.name} must hold a list of examples.")
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != _KEYS:
            raise ConfigError(
                f"Each example in {path.name} needs exactly {', '.join(sorted(_KEYS))}."
            )
        variants = entry["variants"] if isinstance(entry["variants"], list) else [None]
        texts = [*(entry[key] for key in _TEXTS), *variants]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"Every value of an example in {path.name} must be text.")
        if not isinstance(entry["max_new_tokens"], int):
            raise ConfigError(f"max_new_tokens in {path.name} must be a whole number.")
    return entries


def _example(folder: Path, entry: dict[str, Any]) -> Example:
    fields = {key: value for key, value in entry.items() if key not in ("file", "variants")}
    if Path(entry["file"]).name != entry["file"]:
        raise ConfigError(f"Example file {entry['file']!r} must lie beside index.json.")
    # __post_init__ refuses a scenario that is not one of the two.
    variants = tuple(entry["variants"])
    return Example(context=_read_text(folder / entry["file"]), variants=variants, **fields)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Example file {path.name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Example file {path.name} is not UTF-8; save it as UTF-8.") from error
