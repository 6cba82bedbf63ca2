"""Three small bundles that would become gigabytes, at once: the app goes on answering."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from storage.bundle_reader import MAX_RATIO
from tests.e2e.app_runner import App, scripted_app
from tests.storage.bundles import sealed

MOST_BYTES = 2**30
BIG = 64 * 2**20 - 100
# What is parsed whole, as it keeps within the bounds, and what is refused before.
FILLERS = {"empty objects": b"{},", "numbers": b"9999,"}


def hostile(filler: bytes) -> bytes:
    """A bundle of about 266 KiB whose run is `filler` again and again."""
    text = b'{"x": [' + filler * (BIG // len(filler))
    packed = sealed("a" * 12, text)
    assert len(packed) < 2 * BIG // MAX_RATIO
    return packed


def longest_wait(client: httpx.Client, until: threading.Event) -> float:
    longest = 0.0
    while not until.is_set():
        begin = time.monotonic()
        assert client.get("/healthz").status_code == 200
        longest = max(longest, time.monotonic() - begin)
    return longest


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Iterator[App]:
    with scripted_app(tmp_path_factory.mktemp("hostile")) as app:
        yield app


@pytest.mark.slow
@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS.keys())
def test_three_hostile_bundles_at_once_leave_the_app_answering(app, filler):
    data = hostile(filler)
    over = threading.Event()
    with httpx.Client(base_url=app.url, timeout=300) as client, ThreadPoolExecutor(4) as pool:
        waited = pool.submit(longest_wait, client, over)
        begin = time.monotonic()
        sent = [pool.submit(give, app.url, data) for _ in range(3)]
        told = [each.result() for each in sent]
        took = time.monotonic() - begin
        over.set()
    peak = peak_bytes(app.process.pid)
    for status, sentence in told:
        assert status == 400, sentence
        assert "refused, nothing was imported" in sentence
    # Each held up everybody for as long as it was parsed; now nobody waits for it.
    assert waited.result() < took / 5
    assert peak < MOST_BYTES
    print(f"{peak / 2**20:.0f} MiB at most; waited {waited.result():.2f} s of {took:.1f} s")


def give(url: str, data: bytes) -> tuple[int, str]:
    answer = httpx.post(
        f"{url}/runs/import",
        content=data,
        headers={"content-type": "application/octet-stream"},
        timeout=300,
    )
    return answer.status_code, answer.json()["told"]


def peak_bytes(pid: int) -> int:
    """The most memory that a process had so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")
