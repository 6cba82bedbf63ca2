"""SPEC keys: what each knob means, its range and its defaults; and budgets. No torch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ckv_core.errors import ConfigError

DEFAULT_BUDGET = "128"

KnobValue = int | float | str


@dataclass(frozen=True, slots=True)
class Budget:
    """Entries to keep per KV head, averaged, as the user gave it.

    Attributes:
        amount: tokens, percent of the compressed prompt, or MiB of the whole evicted cache.
        unit: which of the three.
    """

    amount: float
    unit: Literal["tokens", "percent", "mib"]

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `128`, `10%` or `12MiB`.

        Raises:
            ConfigError: not one of these forms, or not positive.
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|mib)?\s*", text, re.IGNORECASE | re.ASCII)
        if not match:
            raise ConfigError(
                f"Budget {text!r} is not a number; give tokens (128), a share (10%) or MiB (4MiB)."
            )
        amount, suffix = float(match[1]), (match[2] or "").lower()
        if not suffix and not amount.is_integer():
            raise ConfigError(f"Budget {text!r} must be a whole number of tokens.")
        if amount <= 0:
            raise ConfigError("Budget must be above 0.")
        if suffix == "%" and amount > 100:
            raise ConfigError(f"Budget {text!r} is over 100%.")
        return cls(amount, {"": "tokens", "%": "percent", "mib": "mib"}[suffix])  # type: ignore[arg-type]

    def resolve(self, prompt_len: int, bytes_per_token: int) -> int:
        """Whole entries per KV head (mean).

        Args:
            prompt_len: tokens in the compressed prompt.
            bytes_per_token: cache bytes of one position over all evictable layers and KV heads.
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
class Knob:
    """One SPEC key: how it is read, its range and what it means."""

    name: str
    help: str
    default: KnobValue
    kvpress: KnobValue | None = None
    parse: Callable[[str], KnobValue]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes; empty for a number or a budget."""
        return self.parse.choices if isinstance(self.parse, _Choice) else ()


def _integer(name: str, low: int, high: int, *, odd: bool = False) -> Callable[[str], KnobValue]:
    def parse(text: str) -> KnobValue:
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise ConfigError(f"{name} must be a whole number from {low} to {high}, got {text!r}.")
        if odd and int(text) % 2 == 0:
            raise ConfigError(f"{name} must be odd, so that smoothing is centred; got {text!r}.")
        return int(text)

    return parse


def _number(name: str, low: float, high: float) -> Callable[[str], KnobValue]:
    def parse(text: str) -> KnobValue:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, got {text!r}.")
        return value

    return parse


class _Choice:
    """Reads one of a few words; a form offers them as a list."""

    def __init__(self, name: str, *choices: str) -> None:
        self._name = name
        self.choices = choices

    def __call__(self, text: str) -> KnobValue:
        if text not in self.choices:
            raise ConfigError(
                f"{self._name} must be one of {', '.join(self.choices)}; got {text!r}."
            )
        return text


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            name="budget",
            help="Entries kept per KV head, averaged over heads and evictable layers; window and "
            "sinks included. Tokens (128), share of the prompt (10%) or memory (4MiB).",
            default=DEFAULT_BUDGET,
            parse=lambda text: str(Budget.parse(text)),
        ),
        Knob(
            name="alpha",
            help="CriticalKV: share of each head's budget that stage 1 gives to attention alone; "
            "+critical_auto finds it per KV head.",
            default=0.25,
            kvpress=0.5,
            parse=_number("alpha", 0.0, 1.0),
        ),
        Knob(
            name="window",
            help="Observation window: the last tokens of the prompt, whose queries give the "
            "scores. Always kept.",
            default=32,
            kvpress=64,
            parse=_integer("window", 1, 1024),
        ),
        Knob(
            name="kernel",
            help="Width in tokens of the smoothing of scores along the prompt (odd).",
            default=7,
            kvpress=5,
            parse=_integer("kernel", 1, 255, odd=True),
        ),
        Knob(
            name="pool",
            help="Smoothing of scores along the prompt: maximum, average or none.",
            default="max",
            kvpress="avg",
            parse=_Choice("pool", "max", "avg", "none"),
        ),
        Knob(
            name="group",
            help="How the scores of the query heads that share a KV head are combined.",
            default="mean",
            parse=_Choice("group", "mean", "max"),
        ),
        Knob(
            name="sinks",
            help="First tokens of the prompt that are always kept.",
            default=0,
            parse=_integer("sinks", 0, 4096),
        ),
        Knob(
            name="beta",
            help="PyramidKV: steepness; the last layer gets 1/beta of the mean budget.",
            default=20.0,
            parse=_number("beta", 1.0, 1000.0),
        ),
        Knob(
            name="safeguard",
            help="AdaKV: share of each head's budget that stays uniform.",
            default=0.2,
            parse=_number("safeguard", 0.0, 1.0),
        ),
        Knob(
            name="stage2",
            help="CriticalKV stage 2 uses the raw window attention (paper) or the smoothed score "
            "(kvpress).",
            default="raw",
            kvpress="pooled",
            parse=_Choice("stage2", "raw", "pooled"),
        ),
        Knob(
            name="norm",
            help="CriticalKV stage 2 multiplies by the value norm; off is a control without it.",
            default="on",
            parse=_Choice("norm", "on", "off"),
        ),
        Knob(
            name="product",
            help="Attention times value norm per query head, then combined (head); or the product "
            "of the two group values (group, kvpress).",
            default="head",
            kvpress="group",
            parse=_Choice("product", "head", "group"),
        ),
        Knob(
            name="epsilon",
            help="Added to the attention before the product in stage 2 (kvpress: 1e-4).",
            default=0.0,
            kvpress=1e-4,
            parse=_number("epsilon", 0.0, 1.0),
        ),
        Knob(
            name="preset",
            help="Defaults of all other knobs: as the paper prints them, or as kvpress ships them.",
            default="paper",
            parse=_Choice("preset", "paper", "kvpress"),
        ),
    )
}
METHOD_DEFAULTS: dict[str, dict[str, KnobValue]] = {"streaming_llm": {"sinks": 4}}
