"""What a run came to, in sentences made from its figures. No torch."""

from dataclasses import replace

from ckv_core.analysis.regimes import run_regimes
from ckv_core.analysis.verdict.base import Group, Verdict
from ckv_core.analysis.verdict.run import run_verdict
from ckv_core.analysis.verdict.sweep import alpha_outcome, sweep_verdict
from ckv_core.results.events import RunResult

__all__ = ["alpha_outcome", "verdict_of"]


def verdict_of(result: RunResult) -> Verdict | None:
    """Of a comparison or a sweep that is over."""
    verdict = sweep_verdict(result) if result.kind == "sweep" else run_verdict(result)
    regimes = run_regimes(result)
    if verdict is None or not regimes.head:
        return verdict

    def told(group: Group) -> Group:
        members = (replace(m, regime=regimes.marks[m.index]) for m in group.members)
        return replace(group, members=tuple(members))

    return replace(verdict, regimes=regimes.head, groups=tuple(map(told, verdict.groups)))
