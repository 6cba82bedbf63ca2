"""A request for what a run would give, of which nothing is recorded. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from ckv_core.records.run_request import RunRequest

Until = Literal["kept", "step", "answers"]
UNTIL: tuple[Until, ...] = get_args(Until)


@dataclass(frozen=True, kw_only=True)
class PreviewRequest:
    """A comparison that is only looked at; it gives way to every job that is recorded."""

    run: RunRequest
    until: Until = "answers"  # what comes last: kept sets, figures of the first step, or texts

    @property
    def model(self) -> str:
        return self.run.model

    @property
    def device(self) -> str:
        return self.run.device

    @property
    def dtype(self) -> str:
        return self.run.dtype
