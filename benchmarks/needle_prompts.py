"""Needles in real texts: one sentence hidden in each, and the question that asks for it."""

import json
import random
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from benchmarks.setting import ROOT

DEPTHS = (0.05, 0.95)  # of the text; what is deeper lies in the observation window and is kept
# Kind of answer -> the hidden sentence and the question.
TASKS = {
    "code": ("The access code for {place} is {answer}.", "What is the access code for {place}?"),
    "word": (
        "The first prize at the {place} summer fair was a {answer}.",
        "What was the first prize at the {place} summer fair?",
    ),
    "name": (
        "The chess tournament of {place} was won by {answer}.",
        "Who won the chess tournament of {place}?",
    ),
}
# Places, answers, and the modules of Python's standard library that serve as texts without a file.
WORDS: dict[str, list[str]] = json.loads(
    (ROOT / "benchmarks" / "needle_words.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Needle:
    """One prompt.

    Attributes:
        text: name of the text that hides it.
        depth: where in it, 0 to 1.
    """

    text: str
    depth: float
    context: str
    question: str
    answer: str


def read_texts(path: Path | None) -> dict[str, str]:
    """Texts by name: the `context` of each line of a JSON Lines file.

    Without one: the app's five examples and 25 modules of Python's standard library.
    """
    if path is not None:
        lines = path.read_text(encoding="utf-8").split("\n")
        return {
            f"{path.stem}-{number}": json.loads(line)["context"]
            for number, line in enumerate(lines)
            if line.strip()
        }
    examples = sorted((ROOT / "assets" / "examples").glob("*.txt"))
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [*examples, *(library / f"{module}.py" for module in WORDS["modules"])]
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def needles(
    texts: dict[str, str], task: str, tokenizer: PreTrainedTokenizerBase, tokens: int, count: int
) -> list[Needle]:
    """One per text, at as many depths, each depth once; a text that is too short goes on with
    the next one.
    """
    names = list(texts)[:count]
    rng = random.Random(task)
    low, high = DEPTHS
    depths = [low + (high - low) * (at + 0.5) / len(names) for at in range(len(names))]
    rng.shuffle(depths)
    sentence, question = TASKS[task]
    found = []
    for at, (name, depth) in enumerate(zip(names, depths, strict=True)):
        following = "\n\n".join(texts[each] for each in [*names[at:], *names[:at]])
        text = _cut(following, tokenizer, tokens)
        place, answer = _answer(task, text, rng)
        hidden = sentence.format(place=place, answer=answer)
        context = _hide(text, hidden, depth)
        found.append(Needle(name, depth, context, question.format(place=place), answer))
    return found


def _answer(task: str, text: str, rng: random.Random) -> tuple[str, str]:
    """A place and an answer of which nothing stands in the text already."""
    while True:
        place = rng.choice(WORDS["sites" if task == "code" else "towns"])
        answer = {
            "code": lambda: str(rng.randrange(10 ** rng.choice((4, 5, 6)), 10**7))[
                : rng.choice((5, 6, 7))
            ],
            "word": lambda: rng.choice(WORDS["words"]),
            "name": lambda: f"{rng.choice(WORDS['first_names'])} {rng.choice(WORDS['last_names'])}",
        }[task]()
        there = text.casefold()
        if not any(part.casefold() in there for part in (place, *answer.split())):
            return place, answer


def _cut(text: str, tokenizer: PreTrainedTokenizerBase, tokens: int) -> str:
    """The first so many tokens, up to the end of the last whole line or sentence."""
    ids = tokenizer(text[: 12 * tokens], add_special_tokens=False)["input_ids"][:tokens]
    cut = str(tokenizer.decode(ids))
    ends = _ends(cut)
    return cut[: ends[-1]].rstrip() if ends else cut


def _hide(text: str, sentence: str, depth: float) -> str:
    """The sentence at the end of a line or sentence of the text, nearest to a depth."""
    at = min(_ends(text), key=lambda end: abs(end - depth * len(text)))
    before, after = text[:at].rstrip(" "), text[at:].lstrip(" ")
    joint = "" if before.endswith("\n") else " "
    return f"{before}{joint}{sentence}{joint or chr(10)}{after}"


def _ends(text: str) -> Sequence[int]:
    """Where its lines and sentences end."""
    return [match.end() for match in re.finditer(r"\n|(?<=[a-z][.!?])\s", text)]
