"""What a parameter is, how its text is read, and budgets; each part declares its own. No torch."""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ckv_core.errors import ConfigError

DEFAULT_BUDGET = "128"

ParameterValue = int | float | str
Unit = Literal["tokens", "percent", "mib"]
_UNITS: dict[str, Unit] = {"": "tokens", "%": "percent", "mib": "mib"}  # by what follows a number


@dataclass(frozen=True, slots=True)
class Budget:
    """Entries to keep per KV head, averaged, as the user gave it."""

    amount: float  # tokens, percent of the compressed prompt, or MiB of the whole evicted cache
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `128`, `10%` or `12MiB`, which must be positive; ConfigError for anything else."""
        form = r"\s*([+-]?\d+(?:\.\d+)?)\s*(%|mib)?\s*"
        match = re.fullmatch(form, text, re.IGNORECASE | re.ASCII)
        if not match:
            raise ConfigError(
                f"Budget {text!r} is not a number; give tokens (128), a share (10%) or MiB (4MiB)."
            )
        amount, suffix = float(match[1]), (match[2] or "").lower()
        if amount <= 0:
            raise ConfigError(
                f"Budget {text!r} must be above 0; give tokens (128), a share (10%) or MiB (4MiB)."
            )
        if not suffix and not amount.is_integer():
            raise ConfigError(
                f"Budget {text!r} must be a whole number of tokens (128); a share needs % (20%)."
            )
        if suffix == "%" and amount > 100:
            raise ConfigError(f"Budget {text!r} is too large; give at most 100%.")
        return cls(amount, _UNITS[suffix])

    def resolve(self, prompt_len: int, bytes_per_token: int) -> int:
        """Whole entries per KV head (mean).

        Args:
            prompt_len: tokens in the compressed prompt.
            bytes_per_token: of one position over all evictable layers and KV heads.
        """
        if self.unit == "percent":
            return math.floor(prompt_len * self.amount / 100 + 1e-9)
        if self.unit == "mib":
            return math.floor(self.amount * 2**20 / bytes_per_token)
        return int(self.amount)

    def __str__(self) -> str:
        suffix = {"tokens": "", "percent": "%", "mib": "MiB"}[self.unit]
        return f"{self.amount:g}{suffix}" if self.unit != "tokens" else str(int(self.amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One SPEC key: how it is read, its range and what it means."""

    name: str
    default: ParameterValue
    parse: Callable[[str], ParameterValue]
    help: str = ""  # sentences for a reader
    kvpress: ParameterValue | None = None  # the preset's value; None where it has the default
    choices: tuple[str, ...] = ()  # the words it takes; empty for a number or a budget
    range: str = ""  # what it takes, in words; empty where its help says that

    def but(self, **changes: Any) -> Self:
        """Return the key with another default or the like."""
        return replace(self, **changes)

    def preset_value(self, preset: str) -> ParameterValue:
        """Its default under a preset, paper or kvpress."""
        own = self.kvpress if preset == "kvpress" else None
        return self.default if own is None else own

    def means(self, sentences: str) -> Self:
        """Return the key with its help."""
        return self.but(help=sentences)


def integer(
    name: str,
    default: int,
    bounds: tuple[int, int],
    *,
    odd: bool = False,
    kvpress: int | None = None,
) -> Parameter:
    """A key that takes a whole number within bounds, both included; an odd one if `odd`."""
    low, high = bounds

    def parse(text: str) -> ParameterValue:
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise ConfigError(f"{name} must be a whole number from {low} to {high}, got {text!r}.")
        if odd and int(text) % 2 == 0:
            raise ConfigError(f"{name} must be odd, so that smoothing is centred; got {text!r}.")
        return int(text)

    written = f"{low} to {high}{', odd' if odd else ''}"
    return Parameter(name=name, default=default, parse=parse, kvpress=kvpress, range=written)


def number(
    name: str,
    default: float,
    bounds: tuple[float, float],
    *,
    decimals: int | None = None,
    kvpress: float | None = None,
) -> Parameter:
    """A key that takes a number within bounds, with any number of decimals or up to so many."""
    low, high = bounds
    written = f"{low:g} to {high:g}"

    def parse(text: str) -> ParameterValue:
        with suppress(ValueError):
            value = float(text)
            rounded = value if decimals is None else round(value, decimals)
            if low <= value <= high and math.isclose(value, rounded, rel_tol=1e-12):
                return rounded  # 0.1 + 0.2 of a form is close
            if low <= value <= high:
                raise ConfigError(f"{name} takes at most {decimals} decimals, got {text!r}.")
        raise ConfigError(f"{name} must be a number from {written}, got {text!r}.")

    return Parameter(name=name, default=default, parse=parse, kvpress=kvpress, range=written)


def choice(
    name: str, words: Sequence[str], *, default: str | None = None, kvpress: str | None = None
) -> Parameter:
    """A key that takes one of a few words, the first by default; a form offers them as a list."""
    listed = ", ".join(words)

    def parse(text: str) -> ParameterValue:
        if text not in words:
            raise ConfigError(f"{name} must be one of {listed}; got {text!r}.")
        return text

    return Parameter(
        name=name,
        default=words[0] if default is None else default,
        parse=parse,
        kvpress=kvpress,
        choices=tuple(words),
        range=f"one of {listed}",
    )
