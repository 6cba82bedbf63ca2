"""One variant of a comparison, and the grammar of its SPEC. No torch.

SPEC = METHOD[+critical|+critical_auto][:key=value,...]

The key `name` is what readers see of it and decides nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from ckv_core.base.spans import merged, without
from ckv_core.errors import ConfigError, about
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES, Method
from ckv_core.methods.base import KEEP_QUESTION, OWN_PART, composing_parameters
from ckv_core.methods.parameters import Budget, Parameter, ParameterValue
from ckv_core.methods.parts.base import Part, Scorer, Selector
from ckv_core.methods.parts.blocks import PREFILL, block_size
from ckv_core.methods.parts.critical import READINGS
from ckv_core.methods.parts.layout import LAYOUT, is_shared, page_size
from ckv_core.methods.parts.steps import StepPolicy
from ckv_core.methods.parts.store import Store
from ckv_core.methods.parts.views import FurtherPasses, Observer, PromptShape, Table

NAME = "name"
_IN_BLOCKS = ", blocks of "  # in a label
_NAME = re.compile(r"\w(?:[\w .()%/-]{0,38}[\w)%])?")


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant with every parameter resolved; only the budget still depends on the prompt."""

    method: Method  # composition of scorer and budget rule
    selector: Selector  # plain top-k, CriticalKV's two stages, or those with an alpha per KV head
    params: Mapping[str, ParameterValue]  # every parameter that this variant uses, by SPEC key
    # The keys that the user wrote, so that the SPEC can be shown short.
    given: tuple[str, ...] = field(default=())
    # Positions that the request protects, beyond those that its parts do; the question, where it
    # is kept, among them.
    passages: tuple[range, ...] = ()
    question_tokens: int = 0  # of the passages
    own_name: str = ""  # what its author calls it; no part of what it is

    @classmethod
    def parse(cls, text: str, defaults: Mapping[str, str] | None = None) -> "VariantSpec":
        """Read `METHOD[+critical|+critical_auto][:key=value,...]`.

        `defaults`: run-wide values for keys that the SPEC leaves out, if its method reads them.

        Raises:
            ConfigError: unknown method or key, or a value out of range.
        """
        head, _, tail = text.strip().partition(":")
        name, plus, word = (part.strip() for part in head.strip().partition("+"))
        pairs = _pairs(tail, head.strip())
        own_name = _own_name(pairs)
        written = {**(defaults or {}), **pairs}
        plain = METHODS.get(name)
        keys = plain.options().keys() & {each.name for each in composing_parameters()}
        method = plain.composed({key: written[key] for key in keys & written.keys()})
        selector = _selector(method, word) if plus else method.selector
        parameters, options = method.parameters(selector), method.options()
        known = {**parameters, **options}
        _check_keys(method, pairs, known, head.strip())
        chosen: dict[str, ParameterValue] = {}
        for key, value in (defaults or {}).items():
            if key in known:
                with about(key):
                    chosen[key] = known[key].parse(value)
        chosen |= {key: known[key].parse(value) for key, value in pairs.items()}
        preset = str(chosen.get("preset", "paper"))
        used = {**parameters, **_requested_options(options, chosen)}
        params = {key: parameter.preset_value(preset) for key, parameter in used.items()}
        for key in _redundant_keys(plain, chosen):
            del chosen[key]
        given = tuple(key for key in known if key in chosen)
        variant = cls(method, selector, params | chosen, given, own_name=own_name)
        for reason in (*(part.check(variant.params) for part in variant.parts), variant._unfit()):
            if reason:
                raise ConfigError(f"{variant.spec!r}: {reason}")
        if "budget" in params and variant.budget.unit == "tokens":
            with about("variants" if "budget" in pairs else "budget"):
                variant.check_budget(int(variant.budget.amount))
        return variant

    @property
    def name(self) -> str:
        """`snapkv`, `snapkv+critical` or `snapkv+critical_auto`."""
        return self.method.name + (f"+{self.selector.name}" if self.critical else "")

    def settings(self, *without: str) -> tuple[object, ...]:
        """Equal where two SPECs resolve to the same, but for these keys."""
        return (self.name, *sorted((k, v) for k, v in self.params.items() if k not in without))

    @property
    def critical(self) -> bool:
        """Whether CriticalKV's two stages select, with one alpha or with one per KV head."""
        return self.selector is not self.method.selector

    @property
    def policy(self) -> StepPolicy | None:
        """The policy that evicts while it generates; None where nothing does."""
        policies = (part for key, part in POLICIES.items() if key in self.params)
        own = self.method.policy
        return next(policies, own if own is not None and own.wanted(self.params) else None)

    @property
    def store(self) -> Store:
        return STORES.get(str(self.params.get("store")), self.method.store)

    @property
    def block(self) -> int:
        """Tokens of the blocks in which it reads the prompt by itself; 0 for the shared prefill."""
        return block_size(self.params)

    @property
    def scorer(self) -> Scorer:
        """The scorer of a variant that evicts by rank; ConfigError of another."""
        if self.method.scorer is None:
            raise ConfigError(f"{self.method.label} cannot rank entries.")
        return self.method.scorer

    @property
    def spec(self) -> str:
        """The SPEC with the keys that were given; parses back to an equal variant."""
        written = [(key, self.params[key]) for key in self.given]
        written += [(NAME, self.own_name)] if self.own_name else []
        pairs = ",".join(f"{key}={value}" for key, value in written)
        return f"{self.name}:{pairs}" if pairs else self.name

    @property
    def label(self) -> str:
        """The label that a reader sees: its own name, or the method's with what sets it apart."""
        if self.own_name:
            return self.own_name
        label = self.selector.label_of(self.method.label, self.params)
        return f"{label}{_IN_BLOCKS}{self.block}" if self.block else label

    @property
    def at_most(self) -> bool:
        """Whether its budget is a bound, and what it keeps an outcome."""
        rule = self.method.budget_rule
        return rule is not None and rule.at_most

    def holds(self, budget: int, prompt_len: int) -> int:
        """Entries of a head that are held on average; more than the budget where it is read."""
        rule = self.method.budget_rule
        held = budget if rule is None else rule.holds(budget, prompt_len, self.params)
        return min(held, prompt_len)

    @property
    def budget(self) -> Budget:
        """The budget as given; ConfigError of `full`, which has none."""
        if "budget" not in self.params:
            raise ConfigError(f"{self.method.label} takes no budget.")
        return Budget.parse(str(self.params["budget"]))

    @property
    def parts(self) -> tuple[Part, ...]:
        method = self.method
        parts = (method.scorer, method.budget_rule, self.selector, self.policy, self.store)
        return tuple(part for part in parts if part is not None)

    @property
    def protected(self) -> dict[str, slice]:
        """Positions at a prompt's ends that its parts never evict, by reason: sinks, window."""
        if not self.method.evicts:
            return {}
        return {k: v for part in self.parts for k, v in part.protects(self.params).items()}

    def protecting(
        self, passages: Sequence[range], prompt_len: int, question: range = range(0)
    ) -> "VariantSpec":
        """The same variant, which never evicts these positions of a prompt either.

        `question`: what stands behind the context; a variant with keep_question keeps it.
        """
        if not self.method.evicts:
            return self
        own = [range(*part.indices(prompt_len)) for part in self.protected.values()]
        kept = (question,) if self.keeps_question and question else ()
        return replace(
            self,
            passages=without(merged((*passages, *kept)), own),
            question_tokens=sum(map(len, without(kept, own))),
        )

    @property
    def keeps_question(self) -> bool:
        return self.params.get(KEEP_QUESTION.name) == "on"

    def always_kept(self, prompt_len: int) -> tuple[range, ...]:
        """Positions of a prompt that it never evicts, for whatever reason."""
        own = (range(*part.indices(prompt_len)) for part in self.protected.values())
        return merged((*own, *self.passages))

    @property
    def protected_counts(self) -> dict[str, int]:
        """How many tokens it never evicts, by reason."""
        ends = self.protected.items()
        own = {name: part.stop - part.start if part.stop else -part.start for name, part in ends}
        text = sum(map(len, self.passages)) - self.question_tokens
        counts = {"question": self.question_tokens, "protected text": text}
        return own | {name: count for name, count in counts.items() if count}

    @property
    def protected_tokens(self) -> int:
        """How many tokens it never evicts in all."""
        return sum(self.protected_counts.values())

    @property
    def protected_text(self) -> str:
        """`protected` in words, e.g. "sinks 4 + window 32"; empty where nothing is."""
        counts = self.protected_counts.items()
        return " + ".join(f"{name} {count}" for name, count in counts if count)

    @property
    def queries(self) -> int:
        """Last queries of the prompt that its scores ask for."""
        scorer = self.method.scorer
        return 0 if scorer is None else scorer.queries(self.params)

    @property
    def norm_orders(self) -> frozenset[int]:
        """Orders of the value norms that it asks for: 1 for L1, 2 for L2."""
        scorer = self.method.scorer
        own = () if scorer is None else scorer.norms(self.params)
        return frozenset({*own, 1} if self.selector.needs_norms else own)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Statistics that must be gathered for it while the prompt is read."""
        return tuple(each for part in self.parts for each in part.observes(self.params))

    @property
    def passes(self) -> tuple[FurtherPasses, ...]:
        """Statistics that must be gathered for it in further passes, once the prompt is read."""
        return tuple(each for part in self.parts for each in part.passes(self.params))

    @property
    def tables(self) -> frozenset[Table]:
        """The head tables that it asks for."""
        scorer = self.method.scorer
        return frozenset(each for part in self.parts for each in part.tables(scorer, self.params))

    def work_bytes(self, shape: PromptShape) -> int:
        """Upper bound of what its parts ask for while they work."""
        return sum(part.work_bytes(shape, self.params) for part in self.parts)

    def check_budget(self, tokens: int, prompt_len: int | None = None) -> None:
        """Refuse a budget (entries per KV head) that does not hold what is always kept."""
        if prompt_len is not None:
            reasons = (part.refuses(tokens, prompt_len, self.params) for part in self.parts)
            if reason := next(filter(None, reasons), ""):
                raise ConfigError(f"{self.spec!r}: {reason}")
        needed = max(self.protected_tokens, 1)
        if tokens < needed:
            raise ConfigError(
                f"{self.spec!r}: a budget of {tokens} tokens is below the {needed} that are always "
                f"kept ({self.protected_text or 'one token'}); raise the budget to at least "
                f"{needed}."
            )

    def check_prompt(self, compressed: int, question: int) -> None:
        """Refuse a budget in tokens or percent that is too small for a prompt of this length.

        Args:
            compressed: tokens from which methods evict.
            question: how many of them stand behind the context.

        Raises:
            ConfigError: the budget does not hold what is always kept. Of a budget in MiB only the
                model knows, and protected text is counted by the engine alone.
        """
        if not self.method.evicts or self.budget.unit == "mib":
            return
        spec = self.protecting((), compressed, range(compressed - question, compressed))
        spec.check_budget(self.budget.resolve(compressed, 1), compressed)

    def _unfit(self) -> str:
        """Why it cannot have its layout; empty if it can."""
        if is_shared(self.params) and self.policy:
            return (
                "heads evict by themselves while they generate, so that no layout would last; "
                f"leave out {LAYOUT.name}."
            )
        if self.block and (self.critical or is_shared(self.params)):
            what = "'+' with it" if self.critical else LAYOUT.name
            return (
                f"{PREFILL.name}=blocks takes each head's first entries by score; leave out {what}."
            )
        if page_size(self.params) and self.selector.needs_entries:
            return f"it chooses entry by entry, not whole pages; take {LAYOUT.name}=layer."
        return ""

    def base(self) -> "VariantSpec":
        """Return the variant without CriticalKV, against which its improvement is measured."""
        return self.with_selector(self.method.selector)

    def with_selector(self, selector: Selector, **params: ParameterValue) -> "VariantSpec":
        """The same variant with another selector; its parameters as given or at default."""
        parameters = {**self.method.parameters(selector), **self.method.options()}
        kept = {k: v for k, v in self.params.items() if k in parameters}
        defaults = {
            k: parameter.default for k, parameter in self.method.parameters(selector).items()
        }
        given = tuple(k for k in self.given if k in kept)
        params = {**defaults, **kept, **params}
        return replace(self, selector=selector, params=params, given=given, own_name="")


def written_parameters(spec: str) -> dict[str, str]:
    """The pairs of a SPEC as they stand there, from any file and of any version; unchecked."""
    pairs = (pair.partition("=") for pair in spec.partition(":")[2].split(",") if pair)
    return {key.strip(): value.strip() for key, _, value in pairs}


def method_of(spec: str) -> str:
    """Return the method and selector with which a SPEC begins, unchecked; it may be any text."""
    return spec.partition(":")[0].strip()


def is_named(spec: str) -> bool:
    """Whether its author gave it a name."""
    return NAME in written_parameters(spec)


def selector_of(spec: str) -> Selector | None:
    """The selector that a SPEC names after its '+', of any file; None where it names none."""
    return SELECTORS.get(method_of(spec).partition("+")[2].strip())


def keys_in_label(label: str) -> frozenset[str]:
    """Return the parameters that a label shows, so that a name need not repeat them."""
    has_reading = label.endswith(tuple(f"({reading})" for reading in READINGS.values()))
    shown = {"stage2": has_reading, PREFILL.name: _IN_BLOCKS in label}
    return frozenset(key for key, is_there in shown.items() if is_there)


def spec_without(spec: str, *keys: str) -> str:
    head, _, tail = spec.partition(":")
    pairs = [pair for pair in tail.split(",") if pair and pair.partition("=")[0] not in keys]
    return f"{head}:{','.join(pairs)}" if pairs else head


def _selector(method: Method, word: str) -> Selector:
    if word not in SELECTORS:
        known = " and ".join(map(repr, SELECTORS))
        raise ConfigError(f"After '+' only {known} are known, got {word!r}.")
    reason = method.unfit(SELECTORS[word])
    if reason:
        raise ConfigError(f"{method.label} {reason}, so '+{word}' cannot apply to it.")
    return SELECTORS[word]


def _pairs(tail: str, head: str) -> dict[str, str]:
    """Return the texts of a SPEC's keys; refuse what is no pair, and a key that comes twice."""
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ConfigError(f"{pair!r} in {head!r} must read key=value.")
        if key in pairs:
            raise ConfigError(f"{key!r} is given twice in {head!r}.")
        pairs[key] = value
    return pairs


def _own_name(pairs: dict[str, str]) -> str:
    """Take the name out of the pairs; ConfigError for one that is none."""
    name = pairs.pop(NAME, None)
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(
            f"A variant's name has up to 40 letters, digits, spaces and . ( ) % / -; got "
            f"{name[:60]!r}."
        )
    return name or ""


def _check_keys(
    method: Method, pairs: Mapping[str, str], known: Mapping[str, Parameter], head: str
) -> None:
    """Refuse a key that the method does not take; of a policy that it cannot have, say why."""
    for key in pairs:
        if key in known:
            continue
        if key in POLICIES and method.scorer is not None:
            reason = method.unfit_policy(POLICIES[key])
            raise ConfigError(f"{method.label} {reason}, so {key!r} cannot apply to it.")
        if key == PREFILL.name and (reason := method.unfit_for_blocks()):
            raise ConfigError(f"{method.label} {reason}, so {key!r} cannot apply to it.")
        close = get_close_matches(key, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        keys = ", ".join(known) or "no keys"
        raise ConfigError(f"{head!r} does not take {key!r}.{hint} It takes: {keys}.")


def _redundant_keys(method: Method, chosen: Mapping[str, ParameterValue]) -> list[str]:
    """Return the keys that set what holds without them."""
    own = method.own_parts.items()
    plain = [key for key, name in own if chosen.get(key) in (OWN_PART, name)]
    plain += [LAYOUT.name] if LAYOUT.name in chosen and not is_shared(chosen) else []
    plain += [PREFILL.name] if PREFILL.name in chosen and not block_size(chosen) else []
    return plain


def _requested_options(
    options: Mapping[str, Parameter], chosen: Mapping[str, ParameterValue]
) -> dict[str, Parameter]:
    """Parameters of the optional parts that a SPEC asks for; none may stand without its part."""
    word = str(chosen.get("store"))
    parts: dict[str, tuple[bool, Part]]
    parts = {key: (key in chosen, part) for key, part in POLICIES.items() if key in options}
    parts |= {f"store={each}": (each == word, part) for each, part in STORES.items()}
    wanted = (part for is_requested, part in parts.values() if is_requested)
    requested = {parameter.name: parameter for part in wanted for parameter in part.parameters}
    for key, (_, part) in parts.items():
        for parameter in part.parameters:
            if parameter.name in chosen and parameter.name not in requested:
                raise ConfigError(
                    f"{parameter.name!r} needs {key!r} beside it; give both or neither."
                )
    return requested
