"""What a method is: a scorer, a budget rule and a selector, named; plus the registries.

This package imports no torch, so the user interface can list and validate methods.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import DEFAULT_BUDGET, Budget, Choice, Knob, KnobValue
from ckv_core.methods.parts.base import BudgetRule, Part, Scorer, Selector
from ckv_core.methods.parts.critical import CRITICAL
from ckv_core.methods.parts.critical_auto import CRITICAL_AUTO
from ckv_core.methods.parts.layout import LAYOUT
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.steps import StepPolicy
from ckv_core.methods.parts.store import Store
from ckv_core.methods.parts.top_k import TOP_K

BUDGET = Knob(
    name="budget",
    help="Entries kept per KV head, averaged over heads and evictable layers; window and "
    "sinks included. Tokens (128), share of the prompt (10%) or memory (4MiB).",
    default=DEFAULT_BUDGET,
    parse=lambda text: str(Budget.parse(text)),
)
PRESET = Knob(
    name="preset",
    help="Defaults of all other knobs: as the paper prints them, or as kvpress ships them.",
    default="paper",
    parse=Choice("preset", "paper", "kvpress"),
)
# By the word after a SPEC's '+'.
SELECTORS: dict[str, Selector] = {part.name: part for part in (CRITICAL, CRITICAL_AUTO)}
# What a SPEC may ask for of any method that it fits: a policy by the key of its first knob, a
# store by its word after `store=`.
POLICIES: dict[str, StepPolicy] = {}
STORES: dict[str, Store] = {}


def store_knob() -> Knob:
    """The key `store` with the stores that are registered."""
    return Knob(
        name="store",
        help="How the kept entries are held; left out, in the model's own type.",
        default="plain",
        parse=Choice("store", *STORES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One eviction method as a composition of parts.

    Attributes:
        name: the word used in a SPEC.
        label: what a reader sees.
        summary: one sentence; shown beside the control and in the README's table.
        source: the paper.
        scorer: which evidence ranks the entries; None where there is no ranking.
        budget_rule: how the budget is divided over layers and KV heads; None where there is none.
        selector: which entries a head keeps, without a '+'.
        policy: what evicts while generating; None where nothing does.
        press: its counterpart in kvpress; None where that has none.
    """

    name: str
    label: str
    summary: str
    source: str
    scorer: Scorer | None = None
    budget_rule: BudgetRule | None = None
    selector: Selector = TOP_K
    policy: StepPolicy | None = None
    press: Press | None = None

    @property
    def evicts(self) -> bool:
        """Whether it takes a budget at all."""
        return self.budget_rule is not None

    @property
    def regime(self) -> str:
        """What it is compared fairly with, in a word; empty where nothing is scored."""
        if self.scorer is None:
            return ""
        return "query-aware" if self.scorer.query_aware else "query-agnostic"

    @property
    def goes_on(self) -> bool:
        """Whether it goes on evicting while it generates, at its defaults."""
        defaults = {knob.name: knob.default for knob in self.knobs().values()}
        return self.policy is not None and self.policy.wanted(defaults)

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Selectors that it combines with, its own first."""
        fit = (part for part in SELECTORS.values() if not self.unfit(part))
        return (self.selector, *fit)

    @property
    def supports_critical(self) -> bool:
        """Whether CriticalKV's selectors can follow it."""
        return len(self.selectors) > 1

    def misfit(self) -> str:
        """Why its parts do not go together; empty if they do."""
        if self.scorer is None:
            return ""
        for part in (self.budget_rule, self.selector, self.policy):
            if part is not None and (reason := part.unfit(self.scorer)):
                return f"{part.name!r} does not fit, for it {reason}"
        rule, policy = self.budget_rule, self.policy
        if rule is not None and policy is not None and policy.needs_equal and not rule.equal:
            return f"{policy.name!r} does not fit, for {rule.name!r} gives heads different budgets"
        return ""

    def unfit(self, selector: Selector) -> str:
        """Why a selector cannot follow it, to come after its name; empty if it can."""
        if self.scorer is None:
            return "has no attention score"
        if self.selector is not TOP_K:
            return "has a selector of its own"
        return selector.unfit(self.scorer)

    def knobs(self, selector: Selector | None = None) -> dict[str, Knob]:
        """The SPEC keys that it reads with a selector, its own by default."""
        if not self.evicts:
            return {}
        selectors = dict.fromkeys((self.selector, selector or self.selector))
        first = (BUDGET, *_knobs(self.scorer))
        rest = [
            knob for part in (self.budget_rule, self.policy, *selectors) for knob in _knobs(part)
        ]
        differs = any(knob.kvpress is not None for knob in (*first, *rest))
        preset = [PRESET] if self.press or differs else []
        return {knob.name: knob for knob in (*first, *preset, *rest)}

    def options(self) -> dict[str, Knob]:
        """The SPEC keys of parts that it can have besides; without them it has none of these."""
        if not self.evicts or self.scorer is None:
            return {}
        fit = [part for part in POLICIES.values() if not (self.policy or part.unfit(self.scorer))]
        knobs = [knob for part in (*fit, *STORES.values()) for knob in part.knobs]
        stores = [store_knob()] if STORES else []
        layouts = [] if self.goes_on else [LAYOUT]  # a policy evicts from each head by itself
        return {knob.name: knob for knob in (*layouts, *stores, *knobs)}


def _knobs(part: Part | None) -> tuple[Knob, ...]:
    return () if part is None else part.knobs


class MethodRegistry:
    """Name -> Method; refuses duplicates, suggests near names."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def register(self, method: Method) -> None:
        """Add one method.

        Raises:
            ConfigError: the name is taken, or its parts do not go together.
        """
        if method.name in self._methods:
            raise ConfigError(f"Method {method.name!r} is registered twice.")
        if reason := method.misfit():
            raise ConfigError(f"{method.name!r} cannot be composed so: {reason}.")
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


def all_knobs() -> dict[str, Knob]:
    """Every SPEC key of every method, those of optional parts last.

    Where methods have defaults of their own, the most usual.
    """
    found: dict[str, list[Knob]] = {}
    with_selector = [(method, part) for method in METHODS for part in method.selectors[1:]]
    for method, selector in (*((method, None) for method in METHODS), *with_selector):
        for name, knob in method.knobs(selector).items():
            found.setdefault(name, []).append(knob)
    options = {name: knob for method in METHODS for name, knob in method.options().items()}
    return {**{name: _usual(knobs) for name, knobs in found.items()}, **options}


def _usual(knobs: list[Knob]) -> Knob:
    ((default, _),) = Counter(knob.default for knob in knobs).most_common(1)
    return next(knob for knob in knobs if knob.default == default)


def own_defaults(name: str) -> dict[str, KnobValue]:
    """Methods that have a default of their own for a SPEC key, by name."""
    usual = all_knobs()[name].default
    knobs = {method.name: method.knobs().get(name) for method in METHODS}
    return {name: knob.default for name, knob in knobs.items() if knob and knob.default != usual}
