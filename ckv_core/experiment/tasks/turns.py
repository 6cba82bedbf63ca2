"""Several questions to one context: what a cache that was evicted once still answers."""

import random
from itertools import islice

from ckv_core.experiment.tasks.base import Prompt, Task
from ckv_core.experiment.tasks.words import names, numbers, prose

QUESTIONS = 4


def turns(rng: random.Random, parts: int, _place: float, question: int) -> Prompt:
    """Prose with four numbers, each under its own name; the question is about one of them."""
    keys, values = names(rng, QUESTIONS), numbers(rng, QUESTIONS)
    lines = [*islice(prose(rng), parts)]
    for at, (key, value) in enumerate(zip(keys, values, strict=True)):
        place = round((at + 0.5) / QUESTIONS * len(lines))
        lines.insert(place, f"The ticket number of the {key} is {value}.")
    return Prompt(
        " ".join(lines),
        f"What is the ticket number of the {keys[question]}?",
        (values[question],),
        {"depth": round((question + 0.5) / QUESTIONS, 3)},
    )


TURNS = Task(
    name="multi_turn",
    summary="four questions to one context; its samples of one text count as one",
    generate=turns,
    tokens_a_part=16,
    questions=QUESTIONS,
)
