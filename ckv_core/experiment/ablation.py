"""The ablation: controls that tell un-pooling, value norm and alpha apart. No torch.

Every step changes one thing against another step, so that a gain can be put down to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Parameter
from ckv_core.methods.parts.critical import CRITICAL
from ckv_core.records.chain import mean_head_l1
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import OWN
from ckv_core.records.records import Float32Array, VariantResult
from ckv_core.records.variants import VariantSpec

ALPHAS = ("0", "0.25", "0.5", "1")  # the one that CriticalKV's own step has is left out


@dataclass(frozen=True, slots=True)
class AblationStep:
    """One variant of the ablation.

    Attributes:
        variant: every parameter resolved.
        label: two or three words.
        change: what it changes, and against which step.
    """

    variant: VariantSpec
    label: str
    change: str

    @property
    def spec(self) -> str:
        """Its SPEC, complete."""
        return self.variant.spec


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationStepResult:
    """What one step of a finished run measured.

    Attributes:
        index: of the variant.
        head_l1: mean over heads.
        better_heads: share of heads whose L1 is below the ablation's base; None for the base.
        heads: heads counted.
        final_hidden_l1: before the final norm.
        kl: nats.
    """

    step: AblationStep
    index: int
    head_l1: float
    better_heads: float | None
    heads: int
    final_hidden_l1: float
    kl: float


_STEPS: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("base", "", {}, "the method itself"),
    ("base, not pooled", "", {"pool": "none"}, "base without smoothing the scores"),
    (
        "stage 2, no norm",
        "+critical",
        {"norm": "off"},
        "base with a second stage by un-pooled attention, without the value norm",
    ),
    ("CriticalKV", "+critical", {}, "as before, with the value norm in stage 2"),
    (
        "stage 2 pooled",
        "+critical",
        {"stage2": "pooled"},
        "CriticalKV with the smoothed score in stage 2: the value norm without un-pooling",
    ),
    *(
        (f"alpha {alpha}", "+critical", {"alpha": alpha}, f"CriticalKV with alpha {alpha}")
        for alpha in ALPHAS
    ),
    (
        "group max",
        "+critical",
        {"group": "max"},
        "CriticalKV with the largest instead of the mean score of a query group",
    ),
    (
        "preset kvpress",
        "+critical",
        {"preset": "kvpress"},
        "CriticalKV as kvpress has it: pooled second stage, group product, its count of stage 1, "
        "and window 64 where the budget holds more",
    ),
)


def ablation(
    base: VariantSpec | str, defaults: Mapping[str, str] | None = None
) -> tuple[AblationStep, ...]:
    """The steps over one base; its budget and other parameters are kept.

    A step that would be the same as an earlier one, because the base already has that setting,
    is left out, and so is one that sets what the method does not read. The step of the preset
    keeps what the base sets by hand, and the base's window where the budget holds no more than the
    preset's.

    Args:
        base: the plain method; a `+critical` one stands for its base, and its alpha and
            second-stage parameters are kept.
        defaults: run-wide parameter values, where `base` is text.

    Raises:
        ConfigError: CriticalKV cannot be put on that method.
    """
    spec = VariantSpec.parse(base, defaults) if isinstance(base, str) else base
    if not spec.method.supports_critical:
        raise ConfigError(
            f"{spec.method.label} has no attention score, so it has no ablation; take one of the "
            "methods that '+critical' applies to."
        )
    steps: dict[tuple[object, ...], AblationStep] = {}
    for label, selector, changes, change in _STEPS:
        if not changes.keys() <= _allowed(spec, selector).keys():
            continue
        step = _variant(spec, selector, changes)
        steps.setdefault(_key(step), AblationStep(step, label, change))
    return tuple(steps.values())


# Every page that follows a run asks at each of its updates.
@lru_cache(maxsize=256)
def _parsed(text: str) -> VariantSpec:
    return VariantSpec.parse(text)


@lru_cache(maxsize=64)
def _steps(text: str) -> tuple[AblationStep, ...]:
    return ablation(_parsed(text))


def ablation_of(result: RunResult) -> tuple[AblationStepResult, ...]:
    """The steps among a run's variants, the base first; empty where they form no ablation.

    An ablation is there if the base, its un-pooled form and CriticalKV with and without the norm
    are. Of several, the first.
    """
    specs = {
        index: _parsed(variant.spec)
        for index, variant in enumerate(result.variants)
        if variant.method != OWN
    }
    index_of = {_key(spec): index for index, spec in specs.items()}
    with_critical = {variant.method for variant in result.variants if variant.critical}
    for at in index_of.values():
        variant, spec = result.variants[at], specs[at]
        if variant.method not in with_critical:
            continue
        if spec.critical or not spec.method.supports_critical or variant.perturbation is None:
            continue
        steps = _steps(variant.spec)
        known = [(step, index_of[key]) for step in steps if (key := _key(step.variant)) in index_of]
        needed = {label for label, *_ in _STEPS[:4]} & {step.label for step in steps}
        if needed <= {step.label for step, _ in known}:
            base = variant.perturbation.head_l1
            read = (_read(step, i, result.variants[i], base) for step, i in known)
            return tuple(step for step in read if step is not None)
    return ()


def _variant(spec: VariantSpec, selector: str, changes: dict[str, str]) -> VariantSpec:
    name = f"{spec.method.name}{selector}"
    allowed = _allowed(spec, selector)
    kept = {key: str(spec.params[key]) for key in spec.given if key in allowed}
    window = {key: str(spec.params[key]) for key in ("window",) if key in allowed}
    try:
        step = VariantSpec.parse(name, {**kept, **changes})
    except ConfigError:  # the preset's window is wider than the budget
        return VariantSpec.parse(name, {**kept, **window, **changes})
    # Whether the budget holds more than what is always kept; one in shares or bytes may.
    budget = step.budget
    can_choose = budget.unit != "tokens" or budget.amount > step.protected_tokens
    if step.protected == spec.protected or can_choose:
        return step
    return VariantSpec.parse(name, {**kept, **window, **changes})


def _allowed(spec: VariantSpec, selector: str) -> dict[str, Parameter]:
    return spec.method.parameters(CRITICAL if selector else None)


def _key(spec: VariantSpec) -> tuple[object, ...]:
    """Equal for variants that keep the same entries."""
    unread = ("preset", "stage2") if spec.params.get("pool") == "none" else ("preset",)
    return spec.settings(*unread)


def _read(
    step: AblationStep, index: int, variant: VariantResult, base: Float32Array
) -> AblationStepResult | None:
    perturbation, mean = variant.perturbation, mean_head_l1(variant)
    if perturbation is None or mean is None:
        return None
    heads = perturbation.head_l1
    measured = ~(np.isnan(heads) | np.isnan(base))
    is_base = heads is base
    return AblationStepResult(
        step=step,
        index=index,
        head_l1=mean,
        better_heads=None if is_base else float((heads < base)[measured].mean()),
        heads=int(measured.sum()),
        final_hidden_l1=perturbation.final_hidden_l1,
        kl=perturbation.kl,
    )
