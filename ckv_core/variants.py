"""One variant of a comparison, and the grammar of its SPEC. No torch.

SPEC = METHOD[+critical|+critical_auto][:key=value,...]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ckv_core.errors import ConfigError
from ckv_core.knobs import KNOBS, METHOD_DEFAULTS, Budget, KnobValue
from ckv_core.methods import METHODS, SELECTORS, Method, Selector


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant with every knob resolved; only the budget still depends on the prompt.

    Attributes:
        method: composition of scorer and budget rule.
        selector: plain top-k, CriticalKV's two stages, or those with an alpha per KV head.
        params: every knob that this variant uses, by SPEC key.
        given: the keys that the user wrote, so that the SPEC can be shown short.
    """

    method: Method
    selector: Selector
    params: Mapping[str, KnobValue]
    given: tuple[str, ...] = field(default=())

    @classmethod
    def parse(cls, text: str, defaults: Mapping[str, str] | None = None) -> "VariantSpec":
        """Read `METHOD[+critical|+critical_auto][:key=value,...]`.

        Args:
            text: the SPEC.
            defaults: run-wide values (budget, alpha, ...) for keys that the SPEC leaves out;
                keys that the method does not use are passed over.

        Raises:
            ConfigError: unknown method or key, or a value out of range.
        """
        head, _, tail = text.strip().partition(":")
        name, plus, word = (part.strip() for part in head.strip().partition("+"))
        method = METHODS.get(name)
        selector = _selector(method, word) if plus else "top_k"
        allowed = method.knobs_with(selector)
        written = _parse_pairs(tail, head.strip(), allowed)
        run_wide = {k: KNOBS[k].parse(v) for k, v in (defaults or {}).items() if k in allowed}
        chosen = run_wide | written
        preset = str(chosen.get("preset", "paper"))
        params = {key: _default(key, method.name, preset) for key in allowed} | chosen
        given = tuple(k for k in allowed if k in chosen)
        variant = cls(method, selector, params, given)
        if "budget" in params and variant.budget.unit == "tokens":
            variant.check_budget(int(variant.budget.amount))
        return variant

    @property
    def name(self) -> str:
        """`snapkv`, `snapkv+critical` or `snapkv+critical_auto`."""
        return self.method.name + (f"+{self.selector}" if self.critical else "")

    @property
    def critical(self) -> bool:
        """Whether CriticalKV's two stages select, with one alpha or with one per KV head."""
        return self.selector != "top_k"

    @property
    def spec(self) -> str:
        """The SPEC with the keys that were given; parses back to an equal variant."""
        pairs = ",".join(f"{k}={self.params[k]}" for k in self.given)
        return f"{self.name}:{pairs}" if pairs else self.name

    @property
    def label(self) -> str:
        """What a reader sees."""
        return self.method.label + (f" + {SELECTORS[self.selector]}" if self.critical else "")

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

    @property
    def protected_text(self) -> str:
        """`protected` in words, e.g. "sinks 4 + window 32"; empty where nothing is."""
        return " + ".join(f"{name} {count}" for name, count in self.protected.items() if count)

    def check_budget(self, tokens: int) -> None:
        """Refuse a budget that does not hold what is always kept.

        Args:
            tokens: entries per KV head.

        Raises:
            ConfigError: says how much is needed.
        """
        needed = max(sum(self.protected.values()), 1)
        if tokens < needed:
            raise ConfigError(
                f"{self.spec!r}: a budget of {tokens} tokens is below the {needed} that are always "
                f"kept ({self.protected_text or 'one token'}); raise the budget to at least "
                f"{needed}."
            )

    def base(self) -> "VariantSpec":
        """The same variant without CriticalKV: what its improvement is measured against."""
        params = {k: v for k, v in self.params.items() if k in self.method.knobs}
        given = tuple(k for k in self.given if k in params)
        return VariantSpec(self.method, "top_k", params, given)


def written_knobs(spec: str) -> dict[str, str]:
    """The pairs of a SPEC as they stand there, from any file and of any version; unchecked."""
    pairs = (pair.partition("=") for pair in spec.partition(":")[2].split(",") if pair)
    return {key.strip(): value.strip() for key, _, value in pairs}


def spec_without(spec: str, *keys: str) -> str:
    """The SPEC without these keys."""
    head, _, tail = spec.partition(":")
    pairs = [pair for pair in tail.split(",") if pair and pair.partition("=")[0] not in keys]
    return f"{head}:{','.join(pairs)}" if pairs else head


def _selector(method: Method, word: str) -> Selector:
    known: list[Selector] = [selector for selector in SELECTORS if selector != "top_k"]
    for selector in known:
        if word == selector:
            if method.supports_critical:
                return selector
            raise ConfigError(
                f"{method.label} has no attention score, so '+{word}' cannot apply to it."
            )
    raise ConfigError(f"After '+' only {' and '.join(map(repr, known))} are known, got {word!r}.")


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
