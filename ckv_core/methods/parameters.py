"""What a parameter is, how its text is read, and budgets; each part declares its own. No torch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ckv_core.errors import ConfigError

DEFAULT_BUDGET = "128"

ParameterValue = int | float | str


@dataclass(frozen=True, slots=True)
class Budget:
    """Entries to keep per KV head, averaged, as the user gave it."""

    amount: float  # tokens, percent of the compressed prompt, or MiB of the whole evicted cache
    unit: Literal["tokens", "percent", "mib"]  # which of the three

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
            raise ConfigError(f"Budget {text!r} must be a whole number of tokens.")
        if suffix == "%" and amount > 100:
            raise ConfigError(f"Budget {text!r} is over 100%.")
        return cls(amount, {"": "tokens", "%": "percent", "mib": "mib"}[suffix])  # type: ignore[arg-type]

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
    help: str
    default: ParameterValue
    kvpress: ParameterValue | None = None
    parse: Callable[[str], ParameterValue]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes; empty for a number or a budget."""
        return self.parse.choices if isinstance(self.parse, Choice) else ()

    @property
    def range(self) -> str:
        """What it takes, in words; empty where its help says that."""
        return str(getattr(self.parse, "range", ""))


def integer(name: str, low: int, high: int, *, odd: bool = False) -> "WholeNumber":
    """Reads a whole number within bounds."""
    return WholeNumber(name, low, high, odd)


def number(name: str, low: float, high: float, *, decimals: int | None = None) -> "Number":
    """Reads a number within bounds."""
    return Number(name, low, high, decimals)


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Reads one; of an odd one smoothing is centred."""

    name: str
    low: int
    high: int
    odd: bool

    @property
    def range(self) -> str:
        return f"{self.low} to {self.high}{', odd' if self.odd else ''}"

    def __call__(self, text: str) -> ParameterValue:
        low, high = self.low, self.high
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise ConfigError(
                f"{self.name} must be a whole number from {low} to {high}, got {text!r}."
            )
        if self.odd and int(text) % 2 == 0:
            raise ConfigError(
                f"{self.name} must be odd, so that smoothing is centred; got {text!r}."
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class Number:
    """Reads one with any number of decimals, or up to so many."""

    name: str
    low: float
    high: float
    decimals: int | None

    @property
    def range(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def __call__(self, text: str) -> ParameterValue:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:
            raise ConfigError(f"{self.name} must be a number from {self.range}, got {text!r}.")
        if self.decimals is None:
            return value
        written = round(value, self.decimals)
        if not math.isclose(value, written, rel_tol=1e-12):  # closer is 0.1 + 0.2 of a form
            raise ConfigError(f"{self.name} takes at most {self.decimals} decimals, got {text!r}.")
        return written


class Choice:
    """Reads one of a few words; a form offers them as a list."""

    def __init__(self, name: str, *choices: str) -> None:
        self._name = name
        self.choices = choices

    @property
    def range(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def __call__(self, text: str) -> ParameterValue:
        if text not in self.choices:
            raise ConfigError(
                f"{self._name} must be one of {', '.join(self.choices)}; got {text!r}."
            )
        return text
