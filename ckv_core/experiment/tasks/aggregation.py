"""Variable tracking, common words and frequent words, with RULER's settings and our own prompts."""

import random
from itertools import islice, pairwise

from ckv_core.experiment.tasks.base import Prompt, Task
from ckv_core.experiment.tasks.words import ADJECTIVES, NOUNS, coded_words, names, prose

_HOPS = 4
_COMMON, _COMMON_TIMES, _OTHER_TIMES = 10, 30, 3
_ALPHA = 2.0  # exponent of the frequent words' Zipf distribution


def variables(rng: random.Random, parts: int, _place: float, _question: int) -> Prompt:
    """A chain of five variables that are given one value, in prose."""
    chain = [word[:5].upper() for word in coded_words(rng, _HOPS + 1)]
    value = str(rng.randrange(10_000, 100_000))
    lines = [f"VAR {chain[0]} = {value}."]
    lines += [f"VAR {new} = VAR {old}." for old, new in pairwise(chain)]
    filler = [*islice(prose(rng), parts)]
    places = sorted(rng.randrange(len(filler) + 1) for _ in lines)
    for place, line in reversed([*zip(places, lines, strict=True)]):
        filler.insert(place, line)
    return Prompt(
        "Keep track of the variables in the following text.\n\n" + " ".join(filler),
        f"Which {len(chain)} variables have the value {value} in the text? List their names.",
        tuple(chain),
    )


def common_words(rng: random.Random, parts: int, _place: float, _question: int) -> Prompt:
    """A numbered list of words, ten of them ten times as often as the others."""
    others = max(1, (parts - _COMMON * _COMMON_TIMES) // _OTHER_TIMES)
    times = _COMMON_TIMES if parts > _COMMON * _COMMON_TIMES else max(2, parts // (2 * _COMMON))
    often = min(_OTHER_TIMES, times - 1)
    single = [*ADJECTIVES, *NOUNS]
    rng.shuffle(single)
    words = [*single, *names(rng, max(0, _COMMON + others - len(single)))][: _COMMON + others]
    common = words[:_COMMON]
    listed = common * times + words[_COMMON:] * often
    rng.shuffle(listed)
    lines = " ".join(f"{at}. {word}" for at, word in enumerate(listed, 1))
    return Prompt(
        f"Below is a numbered list of words. Some appear more often than others.\n\n{lines}",
        f"What are the {_COMMON} most common words in the list?",
        tuple(common),
    )


def frequent_words(rng: random.Random, parts: int, _place: float, _question: int) -> Prompt:
    """Made-up words by Zipf's law; the dots are the most frequent and do not count."""
    vocabulary = coded_words(rng, max(16, parts // 50))
    weights = [1 / rank**_ALPHA for rank in range(1, len(vocabulary) + 2)]
    drawn = rng.choices(["...", *vocabulary], weights, k=max(parts, 60))
    counts = sorted({*drawn} - {"..."}, key=lambda word: (-drawn.count(word), drawn.index(word)))
    return Prompt(
        "Read the following coded text and keep track of how often each coded word appears.\n\n"
        + " ".join(drawn),
        "Ignoring the dots, what are the three most frequent words in the coded text?",
        tuple(counts[:3]),
    )


AGGREGATION_TASKS = (
    Task(
        name="vt",
        summary="five variables with one value, in prose",
        generate=variables,
        tokens_a_part=16,
    ),
    Task(
        name="cwe",
        summary="the ten words of a list that come most often",
        generate=common_words,
        tokens_a_part=5,
    ),
    Task(
        name="fwe",
        summary="the three most frequent of made-up words",
        generate=frequent_words,
        tokens_a_part=4,
    ),
)
