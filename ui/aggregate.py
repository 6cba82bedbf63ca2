"""Several runs taken together: means over prompts with bootstrap intervals. No Gradio."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ckv_core.errors import ConfigError
from ckv_core.metrics.intervals import Interval, interval_note, mean_interval
from ckv_core.records import Float32Array, VariantResult
from ui.live_runs import RunSnapshot
from ui.summary import mean_head_l1

MAX_RUNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a variant, averaged over prompts.

    Attributes:
        read: variant -> value; None where it is not known.
        is_share: shown as percent.
    """

    key: str
    label: str
    unit: str
    read: Callable[[VariantResult], float | None]
    is_share: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WinMap:
    """The paper's Fig. 2: heads whose mean L1 over prompts is below the base's.

    Attributes:
        ratio: [layers, query_heads] log2(mean L1 / mean base L1); NaN where not evicted.
        wins, heads: counts of heads.
        n: prompts.
    """

    ratio: Float32Array
    wins: int
    heads: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """One variant over all prompts."""

    spec: str
    label: str
    figures: dict[str, Interval]
    wins: WinMap | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """What the runs have in common.

    Attributes:
        model: of all runs.
        n: prompts that differ.
        members: one per variant that every run has.
        notes: sentences on what limits the figures.
    """

    model: str
    n: int
    members: list[Member]
    notes: list[str]


def _moved(read: Callable[..., float | None]) -> Callable[[VariantResult], float | None]:
    return lambda variant: read(variant.perturbation) if variant.perturbation else None


def _sigma_share(variant: VariantResult) -> float | None:
    sigma = variant.analysis.get("sigma_stage1")
    if sigma is None:
        return None
    known = sigma[~np.isnan(sigma)]
    return float((known > 0.5).mean()) if known.size else None


FIGURES: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        Figure(
            key="final",
            label="Final hidden L1",
            unit="L1",
            read=_moved(lambda found: float(found.final_hidden_l1)),
        ),
        Figure(key="head", label="Mean head L1", unit="L1", read=mean_head_l1),
        Figure(key="kl", label="KL", unit="nats", read=_moved(lambda found: float(found.kl))),
        Figure(
            key="improved",
            label="Better heads",
            unit="share",
            read=_moved(lambda found: found.improved_head_share),
            is_share=True,
        ),
        Figure(key="sigma", label="Sigma over 0.5", unit="share", read=_sigma_share, is_share=True),
        Figure(
            key="agreement",
            label="Agreement",
            unit="share",
            read=lambda variant: variant.agreement,
            is_share=True,
        ),
    )
}


def aggregate(runs: Sequence[RunSnapshot]) -> Aggregate:
    """Means over the prompts of finished runs, per variant that all of them have.

    Raises:
        ConfigError: says why the runs cannot be taken together.
    """
    _check(runs)
    distinct, notes = _distinct(runs)
    specs = _common_specs(distinct)
    n = len(distinct)
    if note := interval_note(n):
        notes.append(note)
    scenarios = {run.request.scenario for run in distinct}
    if len(scenarios) > 1:
        notes.append("The runs mix the scenarios regular and context-only.")
    if len({run.request.max_new_tokens for run in distinct}) > 1:
        notes.append("The runs generate different numbers of tokens, which moves agreement.")
    members = [_member(spec, distinct) for spec in specs]
    model = distinct[0].result.model
    return Aggregate(model=model.name if model else "", n=n, members=members, notes=notes)


def _check(runs: Sequence[RunSnapshot]) -> None:
    if len(runs) < 2:
        raise ConfigError("Choose at least two runs to take together.")
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many; take up to {MAX_RUNS} together.")
    for run in runs:
        if run.state != "done" or run.result.model is None:
            raise ConfigError(f"Run {run.slug} is not done; leave it out or wait for its end.")
    models = {(run.result.model.name, run.result.model.sha256) for run in runs if run.result.model}
    if len(models) > 1:
        names = ", ".join(sorted({name for name, _ in models}))
        raise ConfigError(
            f"The runs are of {len(models)} different models ({names}); their figures have no "
            "common scale. Choose runs of one model."
        )


def _distinct(runs: Sequence[RunSnapshot]) -> tuple[list[RunSnapshot], list[str]]:
    """The first run of each prompt, and a note on those left out."""
    first: dict[tuple[int, ...], RunSnapshot] = {}
    for run in runs:
        first.setdefault(run.result.prompt.token_ids if run.result.prompt else (), run)
    left = len(runs) - len(first)
    if not left:
        return list(first.values()), []
    note = f"{left} of {len(runs)} runs repeat a prompt of another run and are left out."
    return list(first.values()), [note]


def _common_specs(runs: Sequence[RunSnapshot]) -> list[str]:
    common = set.intersection(*({v.spec for v in run.result.variants} for run in runs))
    specs = [v.spec for v in runs[0].result.variants if v.spec in common and v.method != "full"]
    if not specs:
        raise ConfigError(
            "The runs have no variant in common; run the same methods with the same budget, alpha "
            "and knobs on each prompt."
        )
    return specs


def _member(spec: str, runs: Sequence[RunSnapshot]) -> Member:
    variants = [next(v for v in run.result.variants if v.spec == spec) for run in runs]
    figures = {}
    for figure in FIGURES.values():
        values = [value for v in variants if (value := figure.read(v)) is not None]
        if values:
            figures[figure.key] = mean_interval(values)
    return Member(spec=spec, label=variants[0].label, figures=figures, wins=_win_map(variants))


def _win_map(variants: Sequence[VariantResult]) -> WinMap | None:
    found = [v.perturbation for v in variants if v.perturbation]
    pairs = [(p.head_l1, p.base_head_l1) for p in found if p.base_head_l1 is not None]
    if not pairs:
        return None
    mean = np.mean([heads for heads, _ in pairs], axis=0)
    base = np.mean([against for _, against in pairs], axis=0)
    known = ~np.isnan(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((mean == 0) & (base == 0), 0.0, np.log2(mean) - np.log2(base))
    return WinMap(
        ratio=ratio.astype(np.float32),
        wins=int((mean[known] < base[known]).sum()),
        heads=int(known.sum()),
        n=len(pairs),
    )
