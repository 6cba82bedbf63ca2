"""Variants over several prompts: what each one's figures, heads and bounds come to. No torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

import numpy as np
from numpy.typing import NDArray

from ckv_core.analysis.aggregate_runs import Joined, JoinedVariant, join
from ckv_core.analysis.chain import (
    COVERED,
    check_chain,
    covered_means,
    mean_tightness,
    over_half,
    shared_kv_heads,
)
from ckv_core.analysis.intervals import MIN_PROMPTS, Intervals
from ckv_core.analysis.known import mean_of_known
from ckv_core.analysis.sweep import FIGURES, is_cut
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import VariantResult

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadWins:
    """Heads whose mean L1 over the prompts is below the base's (the paper's figure 2).

    Attributes:
        own, base: [layers, query_heads] mean L1 of the variant and of its base; NaN where
            nothing was measured.
        n: prompts.
    """

    own: Values
    base: Values
    n: int

    @property
    def wins(self) -> NDArray[np.bool_]:
        """[layers, query_heads]; False where nothing was measured."""
        return self.own < self.base

    @property
    def heads(self) -> int:
        """Heads counted."""
        return int((~np.isnan(self.own)).sum())

    @property
    def count(self) -> int:
        """Heads that improve."""
        return int(self.wins.sum())

    @property
    def share(self) -> float:
        """Of the heads counted."""
        return self.count / self.heads if self.heads else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """One variant over all prompts.

    Attributes:
        figures: by key of `sweep_reading.FIGURES`; `improved_heads`; `oracle_over_half`, the share
            of heads whose `sigma_oracle` is over 0.5; `tightness`, the mean over heads of
            L1 / theta; `group_tightness`, the same over KV heads, of the sums over the
            query heads that share one; by key of `chain.COVERED`, means over the heads of a prompt
            with sigma over 0.5, where it has any; and by name of a quantity, its mean over heads,
            layers or steps.
        head_wins: None without a base in every prompt.
        violations: (prompt, head) pairs with sigma over 0.5 where the chain
            L1 <= theta <= theta-hat <= relaxed does not hold; None if the bounds were not measured.
        checked: such pairs in all.
        bounded: pairs with all bounds, whatever sigma is.
        cut: prompts where generation met the limit of new tokens before the reference answer.
        alpha_note: set where the prompts' bounds may speak of stage 1 with different alphas.
        joined: what it is a mean of.
    """

    spec: str
    label: str
    figures: Intervals
    head_wins: HeadWins | None
    violations: int | None
    checked: int = 0
    bounded: int = 0
    cut: int = 0
    notes: tuple[str, ...] = field(default=())
    alpha_note: str | None = None
    joined: JoinedVariant


def aggregate(results: Sequence[RunResult]) -> list[Aggregate]:
    """Every variant of several runs over its prompts; see `join` for what is one variant.

    Raises:
        ConfigError: no run, other models, or no variant in common.
    """
    return aggregate_joined(join(results))


def aggregate_joined(found: Joined) -> list[Aggregate]:
    """The same of runs whose `notes` the caller wants too."""
    kv_heads = shared_kv_heads(found.model)
    return [_aggregate(each, kv_heads) for each in found.variants]


def _aggregate(joined: JoinedVariant, kv_heads: int | None) -> Aggregate:
    variants = joined.variants
    readers: dict[str, Callable[[VariantResult], float | None]] = {
        **{key: figure.read for key, figure in FIGURES.items()},
        "improved_heads": _improved,
        "oracle_over_half": lambda variant: over_half(variant, "sigma_oracle"),
        "tightness": mean_tightness,
        **({} if kv_heads is None else {"group_tightness": lambda v: mean_tightness(v, kv_heads)}),
        **{name: _mean_of(name) for name in QUANTITIES if name not in COVERED},
    }
    known = {
        key: [value for value in map(read, variants) if value is not None and not isnan(value)]
        for key, read in readers.items()
    }
    covered = [means for means in map(covered_means, variants) if means]
    known |= {key: [means[key] for means in covered] for key in COVERED}
    figures = Intervals({key: values for key, values in known.items() if values})
    alpha_note = _alpha_note(variants)
    violations, checked, bounded = _chain(variants)
    return Aggregate(
        spec=joined.spec,
        label=variants[0].label,
        figures=figures,
        head_wins=_head_wins(variants),
        violations=violations,
        checked=checked,
        bounded=bounded,
        cut=sum(map(is_cut, variants)),
        notes=(*([alpha_note] if alpha_note else []), *_partial_notes(figures, len(variants))),
        alpha_note=alpha_note,
        joined=joined,
    )


def _partial_notes(figures: Intervals, n: int) -> Iterator[str]:
    """A sentence for each figure that only some prompts have; one for all of the chain."""
    first, *others = COVERED
    for key in figures:
        if key not in others and (known := figures.prompts(key)) < n:
            few = ", too few for an interval" if known < MIN_PROMPTS <= n else ""
            what = f"{', '.join(COVERED)} (of heads with sigma over 0.5)" if key == first else key
            yield f"{what}: known in {known} of {n} prompts{few}."


def _improved(variant: VariantResult) -> float | None:
    return variant.perturbation.improved_head_share if variant.perturbation else None


def _alpha_note(variants: Sequence[VariantResult]) -> str | None:
    """SPEC and params of a method without CriticalKV do not tell such runs apart."""
    bounded = [v for v in variants if "sigma_stage1" in v.analysis and not v.critical]
    alphas = set(map(_mean_of("stage1_alpha"), bounded))
    of = "sigma, theta-hat and relaxed theta of methods without CriticalKV"
    if len(alphas) > 1:
        told = sorted("not recorded" if alpha is None else f"{alpha:g}" for alpha in alphas)
        return (
            f"The runs' alphas of stage 1 differ ({', '.join(told)}), and {of} with them; average "
            "runs of one alpha to read these."
        )
    if None in alphas and len(bounded) > 1:
        return (
            f"The alpha of stage 1 is not recorded in these runs, so {of} may be means over "
            "different alphas."
        )
    return None


def _mean_of(name: str) -> Callable[[VariantResult], float | None]:
    return lambda variant: mean_of_known(variant.analysis.get(name))


def _head_wins(variants: Sequence[VariantResult]) -> HeadWins | None:
    measured = [variant.perturbation for variant in variants if variant.perturbation]
    bases = [each.base_head_l1 for each in measured if each.base_head_l1 is not None]
    if not bases or len(bases) != len(variants):
        return None
    own: Values = np.mean([each.head_l1 for each in measured], axis=0, dtype=np.float64)
    base: Values = np.mean(bases, axis=0, dtype=np.float64)
    return HeadWins(own=own, base=base, n=len(variants))


def _chain(variants: Sequence[VariantResult]) -> tuple[int | None, int, int]:
    """Violations of the chain, heads with sigma over 0.5, and heads with all bounds."""
    found = [each for each in map(check_chain, variants) if each is not None]
    violations = sum(each.violations for each in found) if found else None
    return violations, sum(each.covered for each in found), sum(each.heads for each in found)
