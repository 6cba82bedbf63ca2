"""Hard retrieval: facts in real prose, wanted in other words.

A question shares no content word with the sentence that answers it, so matching words finds
nothing (Modarressi et al. 2025, NoLiMa, arXiv 2502.05167); facts and distractors are ours.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ckv_core.experiment.tasks.base import Prompt, Task, hide
from ckv_core.experiment.tasks.words import people, stored_prose

# Who it is about: in the text, and in the question.
ROLES = {
    "doctor": "physician",
    "lawyer": "attorney",
    "cook": "chef",
    "policeman": "cop",
    "thief": "burglar",
    "priest": "clergyman",
    "author": "writer",
    "sailor": "seaman",
}
# What of them: in the text, in the question, and the answers there may be.
RELATIONS = (
    (
        "The {who} drives an automobile painted {value}.",
        "What colour is the car of {who}?",
        "purple orange turquoise pink yellow violet maroon beige",
    ),
    (
        "The {who} keeps a tame {value} indoors.",
        "Which pet animal belongs to {who}?",
        "parrot ferret tortoise hedgehog monkey hamster raccoon lizard",
    ),
    (
        "The {who} was born and raised in {value}.",
        "What is the home country of {who}?",
        "Portugal Norway Brazil Egypt Canada Japan Peru Kenya",
    ),
    (
        "The {who} practises the {value} every evening.",
        "Which musical instrument does {who} play?",
        "cello harp banjo clarinet accordion bassoon oboe mandolin",
    ),
    (
        "The {who} won three medals in {value}.",
        "At what kind of sport is {who} good?",
        "tennis hockey boxing fencing archery cycling wrestling badminton",
    ),
    (
        "The {who} speaks {value} with the children.",
        "Which foreign language does {who} know?",
        "Spanish Russian Italian Turkish Arabic Korean Polish Greek",
    ),
)
_NEIGHBOUR = "{name} lives next door to the {who}."


@dataclass(frozen=True, slots=True)
class _Fact:
    role: str
    relation: int
    value: str

    @property
    def sentence(self) -> str:
        return RELATIONS[self.relation][0].format(who=self.role, value=self.value)

    def question(self, who: str = "") -> str:
        """In other words, of somebody who is named otherwise."""
        return RELATIONS[self.relation][1].format(who=who or f"the {ROLES[self.role]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paraphrase:
    """One setting.

    Attributes:
        facts: in the text, of different people and relations.
        queries: how many of them are wanted at once.
        alike: distractors of each fact that is wanted: the same of so many other people, and
            as many other facts of the same person.
        hops: 2 where the person is given by the name of a neighbour, which another sentence has.
    """

    facts: int = 1
    queries: int = 1
    alike: int = 0
    hops: int = 1

    def __call__(self, rng: random.Random, parts: int, place: float, _question: int) -> Prompt:
        """A prompt with so many sentences of prose around the facts.

        `place`, 0 to 1, is where a fact that is alone lies.
        """
        lines = [*islice(stored_prose(rng), parts)]
        facts = _facts(rng, self.facts, " ".join(lines).casefold())
        wanted, sentences = facts[: self.queries], [each.sentence for each in facts]
        for fact in wanted:
            sentences += [each.sentence for each in _alike(rng, fact, facts, self.alike)]
        neighbours: list[str] = []
        questions = [fact.question() for fact in wanted]
        if self.hops > 1:
            names = people(rng, self.facts)
            neighbours = [
                _NEIGHBOUR.format(name=name, who=fact.role)
                for name, fact in zip(names, facts, strict=True)
            ]
            questions = [wanted[0].question(f"the neighbour of {names[0]}")]
        alone = len(sentences) + len(neighbours) == 1
        hide(rng, lines, [*sentences, *neighbours], place if alone else None)
        return Prompt(
            " ".join(lines),
            " ".join(questions),
            tuple(fact.value for fact in wanted),
            {"depth": round(place, 3)} if alone else {},
            evidence=tuple(fact.sentence for fact in wanted) + tuple(neighbours[:1]),
        )


def _facts(rng: random.Random, count: int, text: str) -> list[_Fact]:
    """As many of different people and relations; their answers stand nowhere else in the text."""
    roles, relations = rng.sample([*ROLES], count), rng.sample(range(len(RELATIONS)), count)
    return [
        _Fact(role, at, rng.choice([v for v in _values(at) if v.casefold() not in text]))
        for role, at in zip(roles, relations, strict=True)
    ]


def _alike(rng: random.Random, fact: _Fact, taken: Sequence[_Fact], count: int) -> list[_Fact]:
    """The same of other people, and other facts of the same person."""
    known = {each.role for each in taken}
    others = rng.sample([role for role in ROLES if role not in known], count)
    values = rng.sample([value for value in _values(fact.relation) if value != fact.value], count)
    same = [_Fact(role, fact.relation, value) for role, value in zip(others, values, strict=True)]
    left = [at for at in range(len(RELATIONS)) if at not in {each.relation for each in taken}]
    more = rng.sample(left, min(count, len(left)))
    return same + [_Fact(fact.role, at, rng.choice(_values(at))) for at in more]


def _values(relation: int) -> list[str]:
    return RELATIONS[relation][2].split()


_SETTINGS = {
    "para_single": (Paraphrase(), "one fact in real prose, wanted in other words"),
    "para_alike": (Paraphrase(alike=3), "the same among six facts that are alike"),
    "para_keys": (Paraphrase(facts=4, queries=2), "two of four facts, wanted in other words"),
    "para_hops": (Paraphrase(facts=3, hops=2), "a fact of a neighbour: two sentences answer it"),
}
PARAPHRASE_TASKS = tuple(
    Task(name=name, summary=summary, generate=generate, tokens_a_part=30)
    for name, (generate, summary) in _SETTINGS.items()
)
