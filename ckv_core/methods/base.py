"""What a method is: a scorer, a budget rule and a selector, named; plus the registry.

This package imports no torch, so the user interface can list and validate methods.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from ckv_core.errors import ConfigError

Scorer = Literal["none", "position", "window"]
# `given`: the kept positions themselves were given.
BudgetRule = Literal["all", "uniform", "pyramid", "adaptive", "given"]
# How a head spends its budget; the second and third word are what a SPEC has after its '+'.
Selector = Literal["top_k", "critical", "critical_auto"]
SELECTORS: dict[Selector, str] = {
    "top_k": "",
    "critical": "CriticalKV",
    "critical_auto": "CriticalKV, alpha per head (ours)",
}

WINDOW_KNOBS = ("budget", "window", "kernel", "pool", "group", "sinks", "preset")
CRITICAL_KNOBS = ("alpha", "stage2", "norm", "product", "epsilon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One eviction method as a composition of registered parts.

    Attributes:
        name: the word used in a SPEC.
        label: what a reader sees.
        summary: one sentence; shown beside the control and in the README's table.
        source: the paper.
        scorer: which evidence ranks the entries.
        budget_rule: how the budget is divided over layers and KV heads.
        knobs: SPEC keys it accepts without `+critical`.
    """

    name: str
    label: str
    summary: str
    source: str
    scorer: Scorer
    budget_rule: BudgetRule
    knobs: tuple[str, ...]

    @property
    def supports_critical(self) -> bool:
        """CriticalKV needs a non-negative attention score to multiply by the value norm."""
        return self.scorer == "window"

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Selectors that it combines with, the plain one first."""
        return tuple(SELECTORS) if self.supports_critical else ("top_k",)

    def knobs_with(self, selector: Selector) -> tuple[str, ...]:
        """SPEC keys accepted with this selector; `critical_auto` finds alpha itself."""
        if selector == "top_k":
            return self.knobs
        if selector == "critical_auto":
            return self.knobs + tuple(key for key in CRITICAL_KNOBS if key != "alpha")
        return self.knobs + CRITICAL_KNOBS


class MethodRegistry:
    """Name -> Method; refuses duplicates, suggests near names."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def register(self, method: Method) -> None:
        """Add one method.

        Raises:
            ConfigError: the name is taken.
        """
        if method.name in self._methods:
            raise ConfigError(f"Method {method.name!r} is registered twice.")
        self._methods[method.name] = method

    def get(self, name: str) -> Method:
        """The method of that name.

        Raises:
            ConfigError: unknown name; the message lists the known ones.
        """
        if name in self._methods:
            return self._methods[name]
        close = get_close_matches(name, self._methods, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"Unknown method {name!r}. {hint}Known: {', '.join(self._methods)}.")

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())


METHODS = MethodRegistry()
