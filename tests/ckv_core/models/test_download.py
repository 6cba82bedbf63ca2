"""A download tells how far it is in bytes, and what the report raises stops it."""

from typing import Any

import pytest

from ckv_core.errors import RunCancelledError
from ckv_core.models import checkpoint, steps
from ckv_core.models.checkpoint import find_checkpoint
from ckv_core.models.steps import Report, Step


def fetch(report: Report, monkeypatch: pytest.MonkeyPatch, parts: int = 4) -> None:
    """A download as the Hub's client does it: bars of bytes whose total grows, and one of files."""

    def download(_id: str, *, tqdm_class: Any, **_: object) -> str:
        received = tqdm_class(desc="bytes", total=0, initial=0, unit="B", unit_scale=True)
        written = tqdm_class(desc="bytes", total=0, initial=0, unit="B", unit_scale=True)
        with tqdm_class(desc="files", total=1) as files:
            for bar in (received, written):
                bar.total = (bar.total or 0) + 1024 * parts
                bar.refresh()
            for _part in range(parts):
                received.update(512)
                written.update(1024)
            files.update(1)
        received.close()
        written.close()
        raise OSError("nothing was there")

    monkeypatch.setattr(checkpoint, "snapshot_download", download)
    monkeypatch.setattr(steps, "TELL_EVERY_S", 0.0)
    find_checkpoint("org/model", report, with_weights=True)


def test_bytes_are_told_with_the_share_and_a_limit(monkeypatch, capfd):
    told: list[Step] = []
    with pytest.raises(checkpoint.ModelError, match="nothing was there"):
        fetch(told.append, monkeypatch)
    bytes_told = [step for step in told if step.sentence.startswith("Downloading")]
    assert [step.fraction for step in bytes_told][-1] == 1.0
    assert bytes_told[-1].sentence == "Downloading org/model: 4 KiB of 4 KiB."
    assert all(step.limit_s == steps.STALL_S for step in bytes_told)
    fractions = [step.fraction or 0.0 for step in bytes_told]
    assert fractions == sorted(fractions)
    assert capfd.readouterr() == ("", "")


def test_what_the_report_raises_stops_the_download(monkeypatch):
    def stop(step: Step) -> None:
        if step.fraction:
            raise RunCancelledError

    with pytest.raises(RunCancelledError):
        fetch(stop, monkeypatch)
