"""What one app takes at most: constants, which the Methods page shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ckv_core.errors import CkvError
from ckv_core.experiment.tasks import listed
from ckv_core.records.external_selection import MAX_TEXT_CHARS, MAX_VARIANTS
from ckv_core.records.run_request import (
    MAX_NEW_TOKENS,
    MAX_SWEEP_POINTS,
)


class LimitError(CkvError):
    """A request is for more than the app takes."""


def _limit(default: int, label: str) -> Any:
    return field(default=default, metadata={"label": label})


# What `RunRequest.validate` refuses.
OF_A_REQUEST = {
    "Characters of a context": MAX_TEXT_CHARS,
    "Methods of a run": MAX_VARIANTS,
    "Methods x budgets of a run": MAX_SWEEP_POINTS,
    "New tokens of each method": MAX_NEW_TOKENS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Those of one user count only with logins."""

    queue: int = _limit(32, "Unfinished runs at a time")
    queue_per_user: int = _limit(8, "Unfinished runs of one user")
    runs: int = _limit(100_000, "Saved runs")
    study_tokens: int = _limit(20_000_000, "Prompt tokens of a run of built-in tasks")
    user_mib: int = _limit(16_384, "Runs and kept caches on disk")
    # Others take 1 MiB. 4 million characters of JSON-escaped text need 24 MB at most.
    body_mib: int = _limit(32, "Size of a request with a context or a file")

    @property
    def body_bytes(self) -> int:
        """Size of a request with a context or a file."""
        return self.body_mib * 2**20

    def check_task(self, data: Mapping[str, Any]) -> None:
        """LimitError for a study's tasks, `{task, length, samples}`, with too much to be made."""
        tokens = data["samples"] * len(listed(data["task"])) * sum(listed(data["length"]))
        if tokens > self.study_tokens:
            raise LimitError(
                f"The run's samples have {tokens:,} tokens; this app makes {self.study_tokens:,} "
                "for one run. Choose fewer samples or shorter ones."
            )

    def check_queue(self, waiting: int, own: int | None) -> None:
        """LimitError for one more unfinished run than fits; `own` None without logins."""
        if waiting >= self.queue:
            raise LimitError(
                f"The queue is full ({self.queue} runs); wait for one to end or cancel one."
            )
        if own is not None and own >= self.queue_per_user:
            raise LimitError(
                f"You have {own} unfinished runs, which is this app's limit for one user; wait "
                "for one to end or cancel one."
            )

    def check_saved(self, saved: int) -> None:
        """LimitError for one more run than may be saved."""
        if saved >= self.runs:
            raise LimitError(
                f"{saved:,} runs are saved, which is this app's limit; delete some first."
            )

    def check_bytes(self, runs: int, caches: int, more: int) -> int:
        """Bytes that are left beside those that are stored; LimitError for fewer than `more`."""
        taken = {"runs": runs, "kept caches": caches}
        left = self.user_mib * 2**20 - sum(taken.values())
        if left >= more:
            return left
        stored = (f"{what} {size / 2**20:,.1f}" for what, size in taken.items())
        most = max(taken, key=lambda what: taken[what])
        raise LimitError(
            f"There is no room: this app stores {self.user_mib:,} MiB ({', '.join(stored)}); "
            f"delete {most} first."
        )

    def rows(self, *, with_logins: bool) -> list[tuple[str, str]]:
        """Name and value of each limit, for people."""
        whose = dict.fromkeys(("runs", "user_mib"), " of one user") if with_logins else {}
        rows = []
        for f in fields(self):
            value, unit = getattr(self, f.name), " MiB" if f.name.endswith("_mib") else ""
            if with_logins or f.name != "queue_per_user":
                label = f.metadata["label"] + whose.get(f.name, "")
                rows.append((label, f"{value:,}{unit}"))
        return [*rows, *((label, f"{value:,}") for label, value in OF_A_REQUEST.items())]
