"""What a task gives: a context of so many parts with what is hidden in it, and the question."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sample before it has an id.

    Attributes:
        tags: as of `Sample`, beside task and length.
        evidence: passages of the context that hold the answer.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    tags: dict[str, str | int | float] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


# (source of chance, parts of which the context is made, depth of a needle that is alone, which
# question) -> the prompt. The same source and parts give the same context; more parts a longer one.
Generator = Callable[[random.Random, int, float, int], Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kind of sample.

    Attributes:
        generate: makes a prompt of a length in parts: sentences, lines or words.
        tokens_a_part: about how many tokens a part has, where a search for the length begins.
        questions: to each context.
        samples_of: the task whose texts and sources it has, where not its own.
        protects: whether no method may evict the evidence.
    """

    name: str
    summary: str
    generate: Generator
    tokens_a_part: float
    metric: str = "string_match"
    questions: int = 1
    samples_of: str = ""
    protects: bool = False


def hide(rng: random.Random, lines: list[str], needles: list[str], depth: float | None) -> None:
    """Put the needles between the lines: the only one at a depth, several at random ones."""
    if depth is not None and len(needles) == 1:
        lines.insert(round(depth * len(lines)), needles[0])
        return
    for at, needle in sorted(((rng.random(), each) for each in needles), reverse=True):
        lines.insert(round(at * len(lines)), needle)
