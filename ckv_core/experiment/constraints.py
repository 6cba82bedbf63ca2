"""Instructions that a few lines of code can check: each a constraint, as IFEval has them. No torch.

Zhou et al. 2023 (arXiv 2311.07911). A constraint is written `NAME: VALUE`; texts are compared
without regard to case.
"""

import re
from collections.abc import Callable, Sequence

from ckv_core.errors import ConfigError

Check = Callable[[str, str], bool]  # (generated text, value) -> whether it is met


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['-]\w+)*", text)


def begins(text: str, value: str) -> bool:
    return text.strip().casefold().startswith(value.casefold())


def ends(text: str, value: str) -> bool:
    return text.rstrip().rstrip("\"'.!*").casefold().endswith(value.casefold().rstrip(".!"))


def includes(text: str, value: str) -> bool:
    return value.casefold() in text.casefold()


def excludes(text: str, value: str) -> bool:
    return not includes(text, value)


def max_words(text: str, value: str) -> bool:
    return len(_words(text)) <= int(value)


def min_words(text: str, value: str) -> bool:
    return len(_words(text)) >= int(value)


def lines(text: str, value: str) -> bool:
    """So many lines that are not blank."""
    return len([*filter(str.strip, text.splitlines())]) == int(value)


def bullets(text: str, value: str) -> bool:
    """So many lines that begin with a dash, star or dot."""
    return len(re.findall(r"^[ \t]*[-*•][ \t]+\S", text, re.MULTILINE)) == int(value)


def letters(text: str, value: str) -> bool:
    """All letters are `upper` or `lower`."""
    return text == (text.upper() if value == "upper" else text.lower())


def max_digits(text: str, value: str) -> bool:
    return sum(map(str.isdigit, text)) <= int(value)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        begins,
        ends,
        includes,
        excludes,
        max_words,
        min_words,
        lines,
        bullets,
        letters,
        max_digits,
    )
}
_NUMBERS = {"max_words", "min_words", "lines", "bullets", "max_digits"}


def constraints(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """Share of the constraints that a text meets; an empty text meets none.

    Raises:
        ConfigError: one does not read `NAME: VALUE`.
    """
    met = [CHECKS[name](text, value) for name, value in map(_parsed, answers)]
    return sum(met) / len(met) if text.strip() else 0.0


def is_overlong(text: str, answers: Sequence[str]) -> bool:
    """Whether it breaks a limit of words already, so that no further word can mend it."""
    return any(
        name == "max_words" and not max_words(text, value) for name, value in map(_parsed, answers)
    )


def _parsed(constraint: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in constraint.partition(":"))
    is_known = colon and value and name in CHECKS
    if not is_known or (name in _NUMBERS and not re.fullmatch(r"\d{1,6}", value)):
        raise ConfigError(
            f"The constraint {constraint[:60]!r} must read NAME: VALUE with a NAME of "
            f"{', '.join(CHECKS)}, for example max_words: 40."
        )
    return name, value
