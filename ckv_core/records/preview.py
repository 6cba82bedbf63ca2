"""A request for a run that is shown but not stored. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from ckv_core.records.run_request import OfRun

Until = Literal["kept", "step", "answers"]
UNTIL: tuple[Until, ...] = get_args(Until)


@dataclass(frozen=True, kw_only=True)
class PreviewRequest(OfRun):
    """A comparison that is only looked at; it gives way to every job that is recorded."""

    until: Until = "answers"  # what comes last: kept sets, figures of the first step, or texts
