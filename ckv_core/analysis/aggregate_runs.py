"""Runs read together: which prompts and variants are the same, so that each counts once.

No torch.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Budget
from ckv_core.request.identity import Identity, identify, told_apart
from ckv_core.request.variants import spec_without
from ckv_core.results.events import RunResult
from ckv_core.results.records import ModelInfo, RoundingFloor, VariantResult

_NAMED = 4  # SPECs in a sentence; of more it says how many


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedVariant:
    """One variant over the prompts that it was run on.

    Attributes:
        identity: what decides its outcome.
        spec: one of its SPECs, with what tells it from its namesakes.
        curve_spec: the same without its budget; of all budgets of these settings.
        place: of these settings among all, from 1 on; the full cache's is 0.
        prompts: numbers that tell them apart, the same for all variants.
        variants: one per prompt.
        floors: of the run that each is from; None where it measured none.
    """

    identity: Identity
    spec: str
    curve_spec: str
    place: int
    prompts: tuple[int, ...]
    variants: tuple[VariantResult, ...]
    floors: tuple[RoundingFloor | None, ...]

    @property
    def budget(self) -> Budget | None:
        """As asked for; None where none is."""
        return self.identity.budget

    @property
    def alpha(self) -> float | None:
        """None where the method takes none or no run says it."""
        return self.identity.settings.alpha

    @property
    def n(self) -> int:
        return len(self.variants)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """Several runs of one model.

    Attributes:
        n: prompts.
        variants: in the order in which the runs have them.
        notes: sentences on what limits their means.
    """

    model: ModelInfo | None
    n: int
    variants: list[JoinedVariant]
    notes: list[str]

    @property
    def fewest(self) -> int:
        """Prompts of the variant that was run on the fewest."""
        return min((each.n for each in self.variants), default=self.n)


def join(results: Sequence[RunResult]) -> Joined:
    """Runs of the same prompt as one, and variants of the same settings over the prompts.

    Args:
        results: oldest first: of a variant that several runs of one prompt have, the last counts.

    Raises:
        ConfigError: no run, other models, or no variant that any two of several prompts share.
    """
    if not results:
        raise ConfigError("There is nothing to average; run at least one prompt.")
    _check_models(results)
    mixed = len({scenario for run in results if (scenario := _scenario(run))}) > 1
    by_identity: dict[Identity, dict[int, VariantResult]] = {}
    floors: dict[Identity, dict[int, RoundingFloor | None]] = {}
    prompts, repeats = _prompts(results), 0
    for run, prompt in zip(results, prompts, strict=True):
        # Means over both scenarios would be of neither.
        more = {"scenario": _scenario(run)} if mixed else {}
        for variant in run.variants:
            identity = identify(variant, **more)
            on = by_identity.setdefault(identity, {})
            repeats += prompt in on and variant.method != "full"
            on[prompt] = variant
            floors.setdefault(identity, {})[prompt] = run.floor
    n = len(set(prompts))
    shared = [len(on) > 1 for on in by_identity.values() if not _is_full([*on.values()])]
    if n > 1 and shared and not any(shared):
        raise ConfigError(
            "The runs have no variant in common; run the same methods with the same budget, alpha "
            "and parameters on each prompt, in the same scenario."
        )
    variants = _named(by_identity, floors)
    notes = [_repeats_note(repeats)] if repeats else []
    if mixed:
        notes.append("The runs mix the scenarios regular and context-only: a row each.")
    return Joined(
        model=results[0].model, n=n, variants=variants, notes=[*notes, *_notes(n, variants)]
    )


def newest_of_each(results: Sequence[RunResult]) -> list[int]:
    """Indices of the last run of each prompt; of runs of the same variants the others repeat."""
    return list({prompt: at for at, prompt in enumerate(_prompts(results))}.values())


def _prompts(results: Sequence[RunResult]) -> list[int]:
    """A number per run, equal where the prompt is the same; a run without one is alone."""
    keys: dict[Hashable, int] = {}
    return [
        keys.setdefault((p.scenario, p.compressed_tokens, p.token_ids) if p else at, at)
        for at, run in enumerate(results)
        for p in [run.prompt]
    ]


def _scenario(run: RunResult) -> str:
    return run.prompt.scenario if run.prompt else ""


def _check_models(results: Sequence[RunResult]) -> None:
    models = [run.model for run in results if run.model]
    weights = {model.sha256 or model.name for model in models}
    if len(weights) > 1:
        names = ", ".join(sorted({model.name for model in models}))
        raise ConfigError(
            f"The runs are of {len(weights)} different models ({names}); their figures have no "
            "common scale. Choose runs of one model."
        )
    if len(dtypes := {model.dtype for model in models}) > 1:
        raise ConfigError(
            f"The runs computed in {' and '.join(sorted(dtypes))}, which moves every figure. "
            "Choose runs of one type."
        )


def _named(
    by_identity: dict[Identity, dict[int, VariantResult]],
    floors: dict[Identity, dict[int, RoundingFloor | None]],
) -> list[JoinedVariant]:
    specs = told_apart({same: next(iter(on.values())).spec for same, on in by_identity.items()})
    full = {same.settings for same, on in by_identity.items() if _is_full([*on.values()])}
    others = dict.fromkeys(same.settings for same in by_identity if same.settings not in full)
    places = {settings: place for place, settings in enumerate(others, 1)}
    places |= dict.fromkeys(full, 0)
    curves: dict[object, str] = {}
    for identity, spec in specs.items():
        curves.setdefault(identity.settings, spec_without(spec, "budget"))
    return [
        JoinedVariant(
            identity=identity,
            spec=specs[identity],
            curve_spec=curves[identity.settings],
            place=places[identity.settings],
            prompts=tuple(on),
            variants=tuple(on.values()),
            floors=tuple(floors[identity].values()),
        )
        for identity, on in by_identity.items()
    ]


def _notes(n: int, variants: Sequence[JoinedVariant]) -> Iterator[str]:
    """What a reader of the means has to know about their variants."""
    compared = [each for each in variants if not _is_full(each.variants)]
    fewer = [each for each in compared if each.n < n]
    if fewer:
        yield (
            f"{len(fewer)} of {len(compared)} variants were run on fewer than all {n} prompts "
            f"({_listed(fewer)}); only figures of the same prompts compare."
        )
    yield from _namesake_notes(compared)
    unsure = [each for each in compared if each.n > 1 and each.identity.settings.unknown]
    if unsure:
        yield (
            f"Not every setting of {_listed(unsure)} is recorded "
            f"({', '.join(unsure[0].identity.settings.unknown)}); these are averaged by what their "
            "SPEC says."
        )


def _namesake_notes(compared: Sequence[JoinedVariant]) -> Iterator[str]:
    """Which SPECs mean different things in different runs; which of them do not say what."""
    rows_of: dict[str, dict[Hashable, JoinedVariant]] = {}
    for each in compared:
        meant = (each.identity.settings.without("scenario"), each.budget)
        for spec in dict.fromkeys(variant.spec for variant in each.variants):
            rows_of.setdefault(spec, {})[meant] = each
    rows = [list(alike.values()) for alike in rows_of.values() if len(alike) > 1]
    known = [[each for each in alike if not each.identity.settings.unknown] for alike in rows]
    apart = dict.fromkeys(each for alike in known if len(alike) > 1 for each in alike)
    if apart:
        yield (
            "The same SPEC stands for different settings in these runs, which are rows of their "
            f"own: {_listed(list(apart))}."
        )
    unsaid = dict.fromkeys(
        each for alike in rows for each in alike if each.identity.settings.unknown
    )
    if unsaid:
        yield (
            "Some runs do not record all settings of a SPEC that others do; what they measured is "
            f"in rows of its own: {_listed(list(unsaid))}."
        )


def _is_full(variants: Sequence[VariantResult]) -> bool:
    return variants[0].method == "full"


def _listed(variants: Sequence[JoinedVariant]) -> str:
    specs = [each.spec for each in variants]
    more = len(specs) - _NAMED
    return ", ".join(specs[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _repeats_note(repeats: int) -> str:
    left = "1 result is" if repeats == 1 else f"{repeats:,} results are"
    return (
        f"{left} left out: a newer run has the same variant on the same prompt, and that counts "
        "once."
    )
