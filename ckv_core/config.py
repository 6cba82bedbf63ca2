"""What a run is asked to do: knobs, the SPEC grammar, budgets, the request. No torch."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from ckv_core.errors import ConfigError, PromptError
from ckv_core.methods import METHODS, Method

Scenario = Literal["regular", "context-only"]
SCENARIOS: tuple[Scenario, ...] = ("regular", "context-only")
DEFAULT_BUDGET = "128"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
MAX_VARIANTS = 16
MAX_NEW_TOKENS = 1024
MAX_TEXT_CHARS = 4_000_000

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
            help="CriticalKV: share of each head's budget that stage 1 gives to attention alone.",
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


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant with every knob resolved; only the budget still depends on the prompt.

    Attributes:
        method: composition of scorer and budget rule.
        critical: CriticalKV's two-stage selector instead of plain top-k.
        params: every knob that this variant uses, by SPEC key.
        given: the keys that the user wrote, so that the SPEC can be shown short.
    """

    method: Method
    critical: bool
    params: Mapping[str, KnobValue]
    given: tuple[str, ...] = field(default=())

    @classmethod
    def parse(cls, text: str, defaults: Mapping[str, str] | None = None) -> "VariantSpec":
        """Read `METHOD[+critical][:key=value,...]`.

        Args:
            text: the SPEC.
            defaults: run-wide values (budget, alpha, ...) for keys that the SPEC leaves out;
                keys that the method does not use are passed over.

        Raises:
            ConfigError: unknown method or key, or a value out of range.
        """
        head, _, tail = text.strip().partition(":")
        name, plus, selector = head.strip().partition("+")
        method = METHODS.get(name.strip())
        if plus and selector.strip() != "critical":
            raise ConfigError(f"After '+' only 'critical' is known, got {selector.strip()!r}.")
        critical = bool(plus)
        if critical and not method.supports_critical:
            raise ConfigError(
                f"{method.label} has no attention score, so '+critical' cannot apply to it."
            )
        allowed = method.knobs_with(critical=critical)
        written = _parse_pairs(tail, f"{name}{'+critical' if critical else ''}", allowed)
        run_wide = {k: KNOBS[k].parse(v) for k, v in (defaults or {}).items() if k in allowed}
        chosen = run_wide | written
        preset = str(chosen.get("preset", "paper"))
        params = {key: _default(key, method.name, preset) for key in allowed} | chosen
        given = tuple(k for k in allowed if k in chosen)
        variant = cls(method, critical, params, given)
        if "budget" in params and variant.budget.unit == "tokens":
            variant.check_budget(int(variant.budget.amount))
        return variant

    @property
    def name(self) -> str:
        """`snapkv` or `snapkv+critical`."""
        return self.method.name + ("+critical" if self.critical else "")

    @property
    def spec(self) -> str:
        """The SPEC with the keys that were given; parses back to an equal variant."""
        pairs = ",".join(f"{k}={self.params[k]}" for k in self.given)
        return f"{self.name}:{pairs}" if pairs else self.name

    @property
    def label(self) -> str:
        """What a reader sees."""
        return self.method.label + (" + CriticalKV" if self.critical else "")

    @property
    def budget(self) -> Budget:
        """The budget as given; `full` has none.

        Raises:
            ConfigError: asked of `full`.
        """
        if "budget" not in self.params:
            raise ConfigError(f"{self.method.label} takes no budget.")
        return Budget.parse(str(self.params["budget"]))

    @property
    def protected(self) -> dict[str, int]:
        """Tokens that this variant never evicts, by reason: sinks and window."""
        return {name: int(self.params.get(name, 0)) for name in ("sinks", "window")}

    def check_budget(self, tokens: int) -> None:
        """Refuse a budget that does not hold what is always kept.

        Args:
            tokens: entries per KV head.

        Raises:
            ConfigError: says how much is needed.
        """
        needed = max(sum(self.protected.values()), 1)
        if tokens < needed:
            parts = " + ".join(f"{name} {count}" for name, count in self.protected.items() if count)
            raise ConfigError(
                f"{self.spec!r}: a budget of {tokens} tokens is below the {needed} that are always "
                f"kept ({parts or 'one token'}); raise the budget to at least {needed}."
            )

    def base(self) -> "VariantSpec":
        """The same variant without CriticalKV: what its improvement is measured against."""
        params = {k: v for k, v in self.params.items() if k in self.method.knobs}
        given = tuple(k for k in self.given if k in params)
        return VariantSpec(self.method, False, params, given)


def _parse_pairs(text: str, name: str, allowed: tuple[str, ...]) -> dict[str, KnobValue]:
    written: dict[str, KnobValue] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ConfigError(f"{pair!r} in {name!r} must read key=value.")
        if key not in allowed:
            close = get_close_matches(key, allowed, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            keys = ", ".join(allowed) or "no keys"
            raise ConfigError(f"{name!r} does not take {key!r}.{hint} It takes: {keys}.")
        if key in written:
            raise ConfigError(f"{key!r} is given twice in {name!r}.")
        written[key] = KNOBS[key].parse(value)
    return written


def _default(key: str, method: str, preset: str) -> KnobValue:
    knob = KNOBS[key]
    if preset == "kvpress" and knob.kvpress is not None:
        return knob.kvpress
    return METHOD_DEFAULTS.get(method, {}).get(key, knob.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """One comparison as the user asked for it; plain values, safe to store and to send.

    Attributes:
        context: the long text.
        question: asked about it; empty for none.
        scenario: `regular` compresses context and question, `context-only` the context.
        model: default name, Hugging Face id or local folder.
        variants: SPECs, in the order shown.
        defaults: run-wide knob values as text, for keys that a SPEC leaves out.
        answer: reference answer, or empty.
        max_new_tokens: tokens to generate per variant.
        ignore_eos: go on after the end-of-sequence token.
        device: auto, cpu or cuda.
        dtype: auto, float32, bfloat16 or float16.
    """

    context: str
    question: str = ""
    scenario: Scenario = "regular"
    model: str = DEFAULT_MODEL
    variants: tuple[str, ...] = ("full",)
    defaults: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""
    max_new_tokens: int = 64
    ignore_eos: bool = False
    device: str = "auto"
    dtype: str = "auto"

    def specs(self) -> list[VariantSpec]:
        """The parsed variants.

        Raises:
            ConfigError: a SPEC is wrong, or two of them are the same.
        """
        specs = [VariantSpec.parse(text, self.defaults) for text in self.variants]
        seen: dict[tuple[str, tuple[tuple[str, KnobValue], ...]], str] = {}
        for spec in specs:
            key = (spec.name, tuple(sorted(spec.params.items())))
            if key in seen:
                raise ConfigError(f"Variant {spec.spec!r} is listed twice; change or remove one.")
            seen[key] = spec.spec
        return specs

    def validate(self) -> list[VariantSpec]:
        """Check everything that needs no model.

        Raises:
            PromptError: empty, too long or invalid text.
            ConfigError: a setting out of range.
        """
        for name, text in (
            ("context", self.context),
            ("question", self.question),
            ("reference answer", self.answer),
        ):
            check_text(name, text)
        if not self.context.strip():
            raise PromptError("The context is empty; paste or upload a text first.")
        checks = {
            "scenario": (self.scenario, SCENARIOS),
            "device": (self.device, ("auto", "cpu", "cuda")),
            "dtype": (self.dtype, ("auto", "float32", "bfloat16", "float16")),
        }
        for name, (value, known) in checks.items():
            if value not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
        if not self.variants:
            raise ConfigError("Choose at least one variant.")
        if len(self.variants) > MAX_VARIANTS:
            raise ConfigError(
                f"{len(self.variants)} variants are too many; one run takes up to {MAX_VARIANTS}."
            )
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise ConfigError(f"New tokens must be from 1 to {MAX_NEW_TOKENS}.")
        return self.specs()


def check_text(name: str, text: str) -> None:
    """Refuse text that cannot be stored or tokenised.

    Raises:
        PromptError: too long, or not valid Unicode (a lone surrogate).
    """
    if len(text) > MAX_TEXT_CHARS:
        raise PromptError(
            f"The {name} has {len(text):,} characters; the limit is {MAX_TEXT_CHARS:,}. Shorten it."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The {name} has an invalid character (lone surrogate) at position {error.start:,}; "
            "remove it and try again."
        ) from None
