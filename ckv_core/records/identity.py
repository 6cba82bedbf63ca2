"""Which variants are the same: by what decides their outcome, not by how a SPEC was written.

No torch.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, PARAMETERS, SELECTOR_PARAMETERS
from ckv_core.methods.parameters import Budget, ParameterValue
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import NAME, method_of, spec_without, written_parameters

# Every other parameter is recorded with its value, so what a preset stands for is known without it.
# Of what is protected, `protect` names the texts, `keep_question` the question; a name decides
# nothing.
_APART = frozenset({"budget", "preset", "protected", "question_at", NAME})
_POOLING = frozenset({"kernel", "stage2"})  # without pooling these decide nothing


Given = Mapping[str, ParameterValue]
Pairs = tuple[tuple[str, ParameterValue], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the budget that decides what a variant keeps of a prompt."""

    name: str  # `snapkv+critical`
    critical: bool  # as recorded beside it
    parameters: Pairs  # (SPEC key, value) by key, as far as the run says them

    @property
    def alpha(self) -> float | None:
        """None where the method takes none or the run does not say it."""
        alpha = dict(self.parameters).get("alpha")
        return float(alpha) if isinstance(alpha, int | float) else None


@dataclass(frozen=True, slots=True)
class Identity:
    """Equal for variants that keep the same of the same prompt."""

    settings: Settings
    # As requested, so that 10 % is the same of any prompt; None where none is.
    budget: Budget | None

    @property
    def base(self) -> "Identity | None":
        """The identity without CriticalKV, at the same budget; None where it has no CriticalKV."""
        own = self.settings
        if not own.critical:
            return None
        parameters = tuple(pair for pair in own.parameters if pair[0] not in SELECTOR_PARAMETERS)
        name = own.name.partition("+")[0].strip()
        return replace(self, settings=Settings(name, critical=False, parameters=parameters))


def identify(variant: VariantResult, **more: ParameterValue) -> Identity:
    """Identify a variant by its resolved parameters, and by its SPEC only where they are silent.

    `more` is what else has to be the same, by name.
    """
    params = tuple(variant.params.items())
    return _identity(variant.spec, variant.method, variant.critical, params, tuple(more.items()))


@lru_cache(maxsize=4096)  # the same variants come again with every run and every chart
def _identity(spec: str, method: str, critical: bool, params: Pairs, more: Pairs) -> Identity:
    known = next((each for each in METHODS if each.name == method), None)
    name = method_of(spec)
    written = written_parameters(spec)
    parameters = {key: _parsed(key, text) for key, text in written.items()} | dict(params)
    left_out = _APART | (_POOLING if parameters.get("pool") == "none" else frozenset())
    kept = {key: value for key, value in parameters.items() if key not in left_out} | dict(more)
    settings = Settings(name, critical, tuple(sorted(kept.items(), key=lambda at: at[0])))
    budgeted = known is not None and known.evicts
    budget = (
        _requested_budget(written.get("budget"), dict(params).get("budget")) if budgeted else None
    )
    return Identity(settings, budget)


def base_index(variants: Sequence[VariantResult], index: int) -> int | None:
    """The variant of the same method and parameters without CriticalKV, if it is among them."""
    wanted = identify(variants[index]).base
    if wanted is None:
        return None
    places = (at for at, other in enumerate(variants) if identify(other) == wanted)
    return next(places, None)


def unique_specs(specs: Mapping[Identity, str]) -> dict[Identity, str]:
    """Return a unique SPEC for each: it also writes what differs from its namesakes."""
    heads = {identity: spec_without(spec, "budget") for identity, spec in specs.items()}
    namesakes: dict[str, set[Settings]] = {}
    for identity, head in heads.items():
        namesakes.setdefault(head, set()).add(identity.settings)
    named = {
        one: _with(specs[one], _distinguishing(one.settings, namesakes[head]))
        for one, head in heads.items()
    }
    ways: tuple[Callable[[Identity], Given], ...] = (
        lambda one: {"budget": str(one.budget)} if one.budget else {},
        lambda one: dict(one.settings.parameters),
    )
    for more in ways:
        counts = Counter(named.values())
        named |= {one: _with(spec, more(one)) for one, spec in named.items() if counts[spec] > 1}
    return named


def _parsed(key: str, text: str) -> ParameterValue:
    """Read a value as the engine records it; return the text itself where it cannot be read."""
    try:
        return PARAMETERS[key].parse(text) if key in PARAMETERS else text
    except ConfigError:
        return text


def _requested_budget(in_spec: str | None, recorded: ParameterValue | None) -> Budget | None:
    """The budget in its own unit; of tokens the resolved number counts, whatever was written."""
    written, resolved = _budget(in_spec), _budget(recorded)
    if written is None or (written.unit == "tokens" and resolved is not None):
        return resolved
    return written


def _budget(value: ParameterValue | None) -> Budget | None:
    try:
        return Budget.parse(str(value))
    except ConfigError:
        return None


def _distinguishing(settings: Settings, namesakes: Collection[Settings]) -> Given:
    """The values of the parameters in which these settings and their namesakes differ."""
    own = dict(settings.parameters)
    settings_of_all = [dict(each.parameters) for each in namesakes]
    return {
        key: value
        for key, value in own.items()
        if len({each.get(key, "") for each in settings_of_all}) > 1
    }


def _with(spec: str, parameters: Given) -> str:
    """The SPEC with these parameters written at its end."""
    if not parameters:
        return spec
    short = spec_without(spec, *parameters)
    pairs = [f"{key}={value}" for key, value in parameters.items()]
    return short + ("," if ":" in short else ":") + ",".join(pairs)
