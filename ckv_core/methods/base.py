"""What a method is: a scorer, a budget rule and a selector, named; plus the registries.

This package imports no torch, so the user interface can list and validate methods.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import ParamSpec

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import DEFAULT_BUDGET, Budget, Parameter, ParameterValue, choice
from ckv_core.methods.parts import blocks
from ckv_core.methods.parts.base import BudgetRule, Part, Scorer, Selector
from ckv_core.methods.parts.critical import CRITICAL, CRITICAL_AUTO
from ckv_core.methods.parts.layout import LAYOUT
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.rules import UNIFORM
from ckv_core.methods.parts.steps import POLICIES, StepPolicy
from ckv_core.methods.parts.store import PLAIN, STORES, Store
from ckv_core.methods.parts.top_k import TOP_K

BUDGET = Parameter(
    name="budget",
    help="Entries kept per KV head, averaged over heads and evictable layers; window and "
    "sinks included. Tokens (128), share of the prompt (10%) or memory (4MiB).",
    default=DEFAULT_BUDGET,
    parse=lambda text: str(Budget.parse(text)),
)
PRESET = choice("preset", ("paper", "kvpress")).means(
    "Defaults of all other parameters: as the paper prints them, or as kvpress ships them."
)
KEEP_QUESTION = choice("keep_question", ("on", "off"), kvpress="off").means(
    "Query-agnostic methods: in scenario regular, what follows the context (question "
    "and chat template) is always kept, inside the budget."
)
# By the word after a SPEC's '+'.
SELECTORS: dict[str, Selector] = {part.name: part for part in (CRITICAL, CRITICAL_AUTO)}
OWN_PART = "own"  # the word for the part that a method has anyway


def budget_rules() -> dict[str, BudgetRule]:
    """Return the budget rules of all methods but those that go with a store, by name."""
    rules = (method.budget_rule for method in METHODS if method.store is PLAIN)
    return {rule.name: rule for rule in rules if rule is not None}


def plain_selectors() -> dict[str, Selector]:
    """Return the selectors that methods have without a '+', by name."""
    return {method.selector.name: method.selector for method in METHODS if method.evicts}


def composing_parameters() -> tuple[Parameter, Parameter]:
    """The keys that put another method's part in the place of a method's own."""
    return (
        choice("rule", (OWN_PART, *budget_rules())).means(
            "How the budget is shared out over layers and KV heads: by the method's own "
            "rule, or by that of another method."
        ),
        choice("select", (OWN_PART, *plain_selectors())).means(
            "Which entries a KV head keeps by their scores: as the method has it, or as "
            "another method does."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One eviction method as a composition of parts."""

    name: str  # the word used in a SPEC
    label: str  # what a reader sees
    summary: str  # one sentence; shown beside the control and in the documents
    source: str  # the paper: authors, year, arXiv number
    scorer: Scorer | None = None  # which evidence ranks the entries; None where there is no ranking
    # How the budget is divided over layers and KV heads; None where nothing is evicted.
    budget_rule: BudgetRule | None = UNIFORM
    selector: Selector = TOP_K  # which entries a head keeps, without a '+'
    policy: StepPolicy | None = None  # what evicts while generating; None where nothing does
    store: Store = PLAIN  # how it holds what it keeps, without a `store`
    press: Press | None = None  # its counterpart in kvpress; None where that has none

    @property
    def evicts(self) -> bool:
        """Whether it takes a budget at all."""
        return self.budget_rule is not None

    @property
    def regime(self) -> str:
        """Query-aware or query-agnostic; empty where nothing is scored."""
        if self.scorer is None:
            return ""
        return "query-aware" if self.scorer.query_aware else "query-agnostic"

    @property
    def goes_on(self) -> bool:
        """Whether it goes on evicting while it generates, at its defaults."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters().values()}
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

    @property
    def own_parts(self) -> dict[str, str]:
        """Names of the parts that another method's can stand for, by the SPEC key that says so."""
        rule = self.budget_rule
        return {"rule": rule.name if rule else "", "select": self.selector.name}

    def composed(self, words: Mapping[str, str]) -> "Method":
        """With the parts of other methods, by SPEC key; ConfigError where they do not fit."""
        other = {k: v for k, v in words.items() if v not in (OWN_PART, self.own_parts[k])}
        for key in composing_parameters():
            key.parse(other.get(key.name, OWN_PART))
        if not other:
            return self
        method = replace(
            self,
            budget_rule=budget_rules().get(other.get("rule", ""), self.budget_rule),
            selector=plain_selectors().get(other.get("select", ""), self.selector),
            press=None,
        )
        if reason := method.misfit():
            raise ConfigError(f"This combination with {self.label} is not possible: {reason}.")
        return method

    def unfit_policy(self, policy: StepPolicy) -> str:
        """Why another policy cannot evict while it generates, to come after its name."""
        if not self.store.of_tokens:
            return "holds entries that are fitted to one another"
        own = "evicts while it generates by a policy of its own" if self.policy else ""
        return (policy.unfit(self.scorer) if self.scorer else "") or own

    def unfit(self, selector: Selector) -> str:
        """Why a selector cannot follow it, to come after its name; empty if it can."""
        if self.scorer is None:
            return "has no attention score"
        if self.selector is not TOP_K:
            return "has a selector of its own"
        if self.store.reads_part:
            return "reads a part of what it keeps"
        if not self.store.of_tokens:
            return "holds entries that are fitted to one another"
        return selector.unfit(self.scorer)

    def unfit_for_blocks(self) -> str:
        """Why it cannot evict between blocks of the prompt, to come after its name."""
        known = {each.name: each.default for each in self.parameters().values()}
        parts = (self.scorer, self.budget_rule, self.selector, self.policy)
        given = tuple(part for part in parts if part is not None)
        return blocks.unfit(self.scorer, self.budget_rule, given, known)

    def parameters(self, selector: Selector | None = None) -> dict[str, Parameter]:
        """The SPEC keys that it reads with a selector, its own by default."""
        if not self.evicts:
            return {}
        scorer, selectors = self.scorer, dict.fromkeys((self.selector, selector or self.selector))
        # A method that does not look at the question would evict it.
        keeps = scorer and not (scorer.query_aware or scorer.prefers_newest)
        first = (BUDGET, *_parameters(scorer), *((KEEP_QUESTION,) if keeps else ()))
        rest = [
            parameter
            for part in (self.budget_rule, self.policy, self.store, *selectors)
            for parameter in _parameters(part)
        ]
        differs = any(parameter.kvpress is not None for parameter in (*first, *rest))
        preset = [PRESET] if self.press or differs else []
        return {parameter.name: parameter for parameter in (*first, *preset, *rest)}

    def options(self) -> dict[str, Parameter]:
        """The SPEC keys of parts that it can have besides; without them it has none of these."""
        if not self.evicts or self.scorer is None:
            return {}
        stores = STORES if self.store is PLAIN else {}
        fit = [part for part in POLICIES.values() if not self.unfit_policy(part)]
        parameters = [
            parameter for part in (*fit, *stores.values()) for parameter in part.parameters
        ]
        store = choice("store", tuple(STORES), default="plain").means(
            "How the kept entries are stored; by default in the model's own type."
        )
        held = [store] if stores else []
        layouts = [] if self.goes_on else [LAYOUT]  # a policy evicts from each head by itself
        prefills = [] if self.unfit_for_blocks() else [blocks.PREFILL]
        found = (*composing_parameters(), *layouts, *prefills, *held, *parameters)
        return {parameter.name: parameter for parameter in found}


def _parameters(part: Part | None) -> tuple[Parameter, ...]:
    return () if part is None else part.parameters


class MethodRegistry:
    """Name -> Method; refuses duplicates, suggests near names."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    @property
    def by_name(self) -> dict[str, Method]:
        """The registry itself."""
        return self._methods

    def register(self, method: Method) -> None:
        """Add one method; ConfigError where its name is taken or its parts do not go together."""
        if method.name in self._methods:
            raise ConfigError(
                f"Method {method.name!r} is registered twice; rename one of the two, or uninstall "
                "the package that brings it."
            )
        if reason := method.misfit():
            raise ConfigError(f"This combination of {method.name!r} is not possible: {reason}.")
        self._methods[method.name] = method

    def get(self, name: str) -> Method:
        """The method of that name; the ConfigError of an unknown one lists those that are known."""
        if name in self._methods:
            return self._methods[name]
        close = get_close_matches(name, self._methods, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"Unknown method {name!r}. {hint}Known: {', '.join(self._methods)}.")

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())


METHODS = MethodRegistry()
P = ParamSpec("P")


def _registering(make: Callable[P, Method]) -> Callable[P, None]:
    """Returns a function that registers what `make` makes of the same arguments."""

    def made(*args: P.args, **fields: P.kwargs) -> None:
        METHODS.register(make(*args, **fields))

    return made


register = _registering(Method)  # takes the fields of `Method`


def all_parameters() -> dict[str, Parameter]:
    """Every SPEC key of every method, those of optional parts last.

    Where methods have defaults of their own, the most usual.
    """
    found: dict[str, list[Parameter]] = {}
    with_selector = [(method, part) for method in METHODS for part in method.selectors[1:]]
    for method, selector in (*((method, None) for method in METHODS), *with_selector):
        for name, parameter in method.parameters(selector).items():
            found.setdefault(name, []).append(parameter)
    options = {
        name: parameter for method in METHODS for name, parameter in method.options().items()
    }
    usual = {}
    for name, parameters in found.items():
        ((default, _),) = Counter(each.default for each in parameters).most_common(1)
        usual[name] = next(each for each in parameters if each.default == default)
    return usual | options


def own_defaults(name: str) -> dict[str, ParameterValue]:
    """Methods that have a default of their own for a SPEC key, by name."""
    usual = all_parameters()[name].default
    parameters = {method.name: method.parameters().get(name) for method in METHODS}
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter and parameter.default != usual
    }
