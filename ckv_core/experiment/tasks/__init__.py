"""Samples made from a definition: the same seed gives the same samples, of any length. No torch."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ckv_core.errors import ConfigError
from ckv_core.experiment.study import Sample
from ckv_core.experiment.tasks.aggregation import AGGREGATION_TASKS
from ckv_core.experiment.tasks.base import Prompt, Task
from ckv_core.experiment.tasks.instructions import INSTRUCTION_TASKS
from ckv_core.experiment.tasks.needles import NEEDLE_TASKS, TURNS
from ckv_core.experiment.tasks.paraphrase import PARAPHRASE_TASKS

_ALL = (*NEEDLE_TASKS, *PARAPHRASE_TASKS, *AGGREGATION_TASKS, TURNS, *INSTRUCTION_TASKS)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
_DEPTHS = 10  # of a needle that is alone: in the middle of tenths of the text, in turn
_TRIES = 24

Count = Callable[[str, str], int]  # tokens of the prompt of a context and a question


def make_samples(data: Mapping[str, Any], count: Count) -> tuple[Sample, ...]:
    """The samples of `{task, length, samples, seed}`; more samples begin with the same ones.

    Task and length may be lists; `samples` is the number of each task at each length.

    `count`: tokens of a whole prompt with the study's model.

    Raises:
        ConfigError: no prompt of that task is as short as that.
    """
    return tuple(
        sample
        for task in listed(data["task"])
        for length in listed(data["length"])
        for sample in _of_length(TASKS[task], length, data["samples"], data.get("seed", 0), count)
    )


def listed(value: Any) -> list[Any]:
    """The values of a key that takes one or several."""
    return value if isinstance(value, list) else [value]


def _of_length(task: Task, length: int, samples: int, seed: int, count: Count) -> Iterator[Sample]:
    parts = max(1, round(length / task.tokens_a_part))
    for number in range(samples):
        group, question = divmod(number, task.questions)
        name = task.samples_of or task.name
        make = partial(_prompt, task, f"{seed}/{name}/{length}/{group}", group, question)
        parts, found = _fitted(make, parts, length, count)
        yield Sample(
            id=f"{task.name}-{length}-{number + 1:04}",
            context=found.context,
            question=found.question,
            answers=found.answers,
            metric=task.metric,
            source=f"{name}-{length}-{group + 1:04}" if task.questions > 1 else "",
            tags={"task": task.name, "length": length, **found.tags},
            evidence=found.evidence,
            protect=found.evidence if task.protects else (),
        )


def _prompt(task: Task, seed: str, group: int, question: int, parts: int) -> Prompt:
    place = (group % _DEPTHS + 0.5) / _DEPTHS
    return task.generate(random.Random(seed), parts, place, question)  # noqa: S311 - no secret


def _fitted(
    prompt: Callable[[int], Prompt], parts: int, length: int, count: Count
) -> tuple[int, Prompt]:
    """The prompt of most parts, up to 2 % fewer, that has at most `length` tokens.

    Raises:
        ConfigError: even one part is too long.
    """
    low, high = 0, 0  # parts that fit, and that do not; 0 where not known
    best: Prompt | None = None
    for _ in range(_TRIES):
        found = prompt(parts)
        tokens = count(found.context, found.question)
        if tokens <= length:
            low, best = parts, found
            if tokens >= length * 0.98 or high == parts + 1:
                break
        else:
            high = parts
        if high == 1:
            break
        guess = max(1, round(parts * length / tokens * 0.995))
        if guess <= low or (high and guess >= high) or guess == parts:
            guess = (low + high) // 2 if high else parts + max(1, parts // 50)
        if guess == low:
            break
        parts = guess
    if best is None:
        raise ConfigError(f"No prompt of this task is as short as {length:,} tokens; ask for more.")
    return low, best
