"""Needles: sentences to be found again, in prose or among needles that look alike.

The settings of RULER's configuration (Hsieh et al. 2024, arXiv 2404.06654): how many keys, values
and queries, and what they are; the words and the prose are ours.
"""

import random
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from ckv_core.experiment.tasks.base import Prompt, Task, hide
from ckv_core.experiment.tasks.words import names, numbers, prose

_NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
_INTRODUCTION = "Some special magic {kind} are hidden in the following text. Remember them.\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    """One setting.

    Attributes:
        haystack: noise (a few sentences over and over), prose, or needles of other keys.
        keys, values, queries: needles with keys of their own; values of each; requested keys.
        long_values, long_keys: UUIDs in the place of numbers and of words.
    """

    haystack: str = "prose"
    keys: int = 1
    values: int = 1
    queries: int = 1
    long_values: bool = False
    long_keys: bool = False

    def __call__(self, rng: random.Random, parts: int, place: float, _question: int) -> Prompt:
        """A prompt whose haystack has so many parts: sentences, or needles of other keys.

        `place`, 0 to 1, is where the first requested needle lies if it is alone.
        """
        among = parts if self.haystack == "needles" else 0
        keys = _uuids(rng, self.keys + among) if self.long_keys else names(rng, self.keys + among)
        count = self.keys * self.values + among
        values = _uuids(rng, count) if self.long_values else numbers(rng, count)
        own = {
            key: values[at * self.values : (at + 1) * self.values]
            for at, key in enumerate(keys[: self.keys])
        }
        kind = "uuids" if self.long_values else "numbers"
        lines = self._haystack(rng, parts, keys[self.keys :], values[count - among :])
        needles = [_needle(kind, key, value) for key, found in own.items() for value in found]
        wanted = rng.sample([*own], self.queries)
        depth = place if self.keys * self.values == 1 or among else None
        hide(rng, lines, needles, depth)
        listed = ", ".join(wanted[:-1]) + (" and " if wanted[1:] else "") + wanted[-1]
        many = self.values * self.queries > 1
        question = (
            f"What are all the special magic {kind} for {listed} mentioned in the text?"
            if many
            else f"What is the special magic {kind[:-1]} for {listed} mentioned in the text?"
        )
        return Prompt(
            _INTRODUCTION.format(kind=kind) + ("\n" if among else " ").join(lines),
            question,
            tuple(value for key in wanted for value in own[key]),
            {} if depth is None else {"depth": round(depth, 3)},
            tuple(_needle(kind, key, value) for key in wanted for value in own[key]),
        )

    def _haystack(
        self, rng: random.Random, parts: int, keys: list[str], values: list[str]
    ) -> list[str]:
        if self.haystack == "noise":
            return [_NOISE[at % len(_NOISE)] for at in range(parts)]
        if self.haystack == "prose":
            return [*islice(prose(rng), parts)]
        kind = "uuids" if self.long_values else "numbers"
        return [_needle(kind, key, value) for key, value in zip(keys, values, strict=True)]


def _needle(kind: str, key: str, value: str) -> str:
    return f"One of the special magic {kind} for {key} is: {value}."


def _uuids(rng: random.Random, count: int) -> list[str]:
    return [str(UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]


_SETTINGS = {
    "niah_single_1": (Needles(haystack="noise"), "one number in a few sentences over and over", 5),
    "niah_single_2": (Needles(), "one number in prose", 16),
    "niah_single_3": (Needles(long_values=True), "one UUID in prose", 16),
    "niah_multikey_1": (Needles(keys=4), "one number in prose, three others beside it", 16),
    "niah_multikey_2": (Needles(haystack="needles"), "one number among others alone", 22),
    "niah_multikey_3": (
        Needles(haystack="needles", long_keys=True, long_values=True),
        "one UUID among others alone, the keys UUIDs too",
        60,
    ),
    "niah_multivalue": (Needles(values=4), "four numbers of one key in prose", 16),
    "niah_multiquery": (Needles(keys=4, queries=4), "four numbers of four keys in prose", 16),
    "niah_grid": (Needles(), "one number in prose, its depth even over the samples", 16),
}
NEEDLE_TASKS = tuple(
    Task(name=name, summary=summary, generate=generate, tokens_a_part=tokens)
    for name, (generate, summary, tokens) in _SETTINGS.items()
)


# --- several questions to one context -------------------------------------------------------

QUESTIONS = 4


def turns(rng: random.Random, parts: int, _place: float, question: int) -> Prompt:
    """Prose with four numbers, each under its own name; the question is about one of them."""
    keys, values = names(rng, QUESTIONS), numbers(rng, QUESTIONS)
    lines = [*islice(prose(rng), parts)]
    tickets = [f"The ticket number of the {k} is {v}." for k, v in zip(keys, values, strict=True)]
    for at, ticket in enumerate(tickets):
        lines.insert(round((at + 0.5) / QUESTIONS * len(lines)), ticket)
    return Prompt(
        " ".join(lines),
        f"What is the ticket number of the {keys[question]}?",
        (values[question],),
        {"depth": round((question + 0.5) / QUESTIONS, 3)},
        (tickets[question],),
    )


TURNS = Task(
    name="multi_turn",
    summary="four questions to one context; its samples of one text count as one",
    generate=turns,
    tokens_a_part=16,
    questions=QUESTIONS,
)
