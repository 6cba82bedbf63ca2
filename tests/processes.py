"""Processes that must end with their parent."""

import contextlib

import psutil

PATIENCE_S = 30


def assert_gone(pids: list[int]) -> None:
    """They have ended, or do so soon."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []
