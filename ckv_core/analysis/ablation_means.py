"""The ablation over several prompts: what each step changes, with intervals. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckv_core.analysis.ablation import AblationStep, AblationStepResult, ablation_of
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import Interval, mean_interval, score_interval
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult

Pair = tuple[
    AblationStepResult, AblationStepResult
]  # a step and its ablation's base, of one prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationStepMeans:
    """One step over the prompts that have it.

    Attributes:
        head_l1, final_hidden_l1: of `AblationStepResult`.
        head_l1_of_base, final_hidden_l1_of_base: the same as a share of the base's on the same
            prompt; None where the base moves nothing.
        better_heads: share of heads below the base's L1; None of the base.
        n: prompts.
    """

    step: AblationStep
    head_l1: Interval
    final_hidden_l1: Interval
    head_l1_of_base: Interval | None
    final_hidden_l1_of_base: Interval | None
    better_heads: Interval | None
    n: int


def ablation_means(variants: Sequence[JoinedVariant]) -> list[AblationStepMeans]:
    """The steps, the base first; empty where no prompt has an ablation.

    A prompt's ablation may be spread over several runs. Of ablations over different bases that of
    the most prompts counts, of equally many the first.
    """
    by_base: dict[str, list[tuple[AblationStepResult, ...]]] = {}
    for ablation in _ablations(variants):
        by_base.setdefault(ablation[0].step.spec, []).append(ablation)
    ablations = max(by_base.values(), key=len, default=[])
    steps: dict[str, list[Pair]] = {}
    for ablation in sorted(ablations, key=len, reverse=True):  # the longest one knows the order
        for each in ablation:
            steps.setdefault(each.step.spec, []).append((each, ablation[0]))
    return [_means(pairs) for pairs in steps.values()]


def _ablations(variants: Sequence[JoinedVariant]) -> Iterator[tuple[AblationStepResult, ...]]:
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
            ablation = ablation_of(RunResult(variants=together))
        except ConfigError:  # an imported SPEC that nobody can parse
            ablation = ()
        if ablation:
            yield ablation
        else:
            without.add(looks)


def _means(pairs: Sequence[Pair]) -> AblationStepMeans:
    better = [own.better_heads for own, _ in pairs if own.better_heads is not None]
    return AblationStepMeans(
        step=pairs[0][0].step,
        head_l1=mean_interval([own.head_l1 for own, _ in pairs]),
        final_hidden_l1=mean_interval([own.final_hidden_l1 for own, _ in pairs]),
        head_l1_of_base=_mean([o.head_l1 / b.head_l1 for o, b in pairs if b.head_l1]),
        final_hidden_l1_of_base=_mean(
            [o.final_hidden_l1 / b.final_hidden_l1 for o, b in pairs if b.final_hidden_l1]
        ),
        better_heads=score_interval(better) if better else None,
        n=len(pairs),
    )


def _mean(values: Sequence[float]) -> Interval | None:
    return mean_interval(values) if values else None
