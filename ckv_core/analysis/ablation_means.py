"""The ablation ladder over several prompts: what each rung changes, with intervals. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckv_core.analysis.ablation import Rung, RungResult, ladder_of
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.intervals import Interval, mean_interval, share_interval
from ckv_core.analysis.sweep import mean_head_l1
from ckv_core.errors import ConfigError
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult

Pair = tuple[RungResult, RungResult]  # a rung and its ladder's base, of one prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RungMeans:
    """One rung over the prompts that have it.

    Attributes:
        head_l1, final_hidden_l1: of `RungResult`.
        head_of_base, final_of_base: the same as a share of the base's on the same prompt; None
            where the base moves nothing.
        better_heads: share of heads below the base's L1; None of the base.
        n: prompts.
    """

    rung: Rung
    head_l1: Interval
    final_hidden_l1: Interval
    head_of_base: Interval | None
    final_of_base: Interval | None
    better_heads: Interval | None
    n: int


def ladder_means(variants: Sequence[JoinedVariant]) -> list[RungMeans]:
    """The rungs, the base first; empty where no prompt has a ladder.

    A prompt's ladder may be spread over several runs. Of ladders over different bases that of
    the most prompts counts, of equally many the first.
    """
    by_base: dict[str, list[tuple[RungResult, ...]]] = {}
    for found in _ladders(variants):
        by_base.setdefault(found[0].rung.spec, []).append(found)
    ladders = max(by_base.values(), key=len, default=[])
    rungs: dict[Rung, list[Pair]] = {}
    for found in sorted(ladders, key=len, reverse=True):  # the longest one knows the order
        for each in found:
            rungs.setdefault(each.rung, []).append((each, found[0]))
    return [_means(rung, pairs) for rung, pairs in rungs.items()]


def has_ladder(variants: Sequence[JoinedVariant]) -> bool:
    """Whether any prompt has one; draws no interval."""
    return next(_ladders(variants), None) is not None


def _ladders(variants: Sequence[JoinedVariant]) -> Iterator[tuple[RungResult, ...]]:
    prompts: dict[int, list[VariantResult]] = {}
    for each in variants:
        for prompt, variant in zip(each.prompts, each.variants, strict=True):
            if mean_head_l1(variant) is not None:
                prompts.setdefault(prompt, []).append(variant)
    without: set[frozenset[object]] = set()  # to look through 256 variants takes long
    for together in prompts.values():
        looks = frozenset((variant.spec, variant.critical) for variant in together)
        if looks in without:
            continue
        try:
            found = ladder_of(RunResult(variants=together))
        except ConfigError:  # an imported SPEC that nobody can parse
            found = ()
        if found:
            yield found
        else:
            without.add(looks)


def _means(rung: Rung, pairs: Sequence[Pair]) -> RungMeans:
    better = [own.better_heads for own, _ in pairs if own.better_heads is not None]
    return RungMeans(
        rung=rung,
        head_l1=mean_interval([own.head_l1 for own, _ in pairs]),
        final_hidden_l1=mean_interval([own.final_hidden_l1 for own, _ in pairs]),
        head_of_base=_mean([o.head_l1 / b.head_l1 for o, b in pairs if b.head_l1]),
        final_of_base=_mean(
            [o.final_hidden_l1 / b.final_hidden_l1 for o, b in pairs if b.final_hidden_l1]
        ),
        better_heads=share_interval(better) if better else None,
        n=len(pairs),
    )


def _mean(values: Sequence[float]) -> Interval | None:
    return mean_interval(values) if values else None
