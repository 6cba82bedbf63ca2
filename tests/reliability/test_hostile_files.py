"""Three small bundles that would become gigabytes, at once: the app goes on answering."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.app_runner import scripted_app
from tests.storage.bundles import sealed

MOST_BYTES = 2**30
BIG = 64 * 2**20 - 100


def hostile(filler: bytes) -> bytes:
    """A bundle of about 266 KiB whose run is `filler` again and again."""
    text = b'{"x": [' + filler * (BIG // len(filler))
    packed = sealed("a" * 12, text)
    assert len(packed) < BIG // 125
    return packed


def longest_wait(client: httpx.Client, until: threading.Event) -> float:
    longest = 0.0
    while not until.is_set():
        begin = time.monotonic()
        assert client.get("/healthz").status_code == 200
        longest = max(longest, time.monotonic() - begin)
    return longest


@pytest.mark.slow
def test_three_hostile_bundles_at_once_leave_the_app_answering(tmp_path):
    # Two that are parsed whole, as they keep within the bounds, and one that is refused before.
    objects, numbers = hostile(b"{},"), hostile(b"9999,")
    over = threading.Event()
    with (
        scripted_app(tmp_path) as app,
        httpx.Client(base_url=app.url, timeout=300) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        waited = pool.submit(longest_wait, client, over)
        begin = time.monotonic()
        sent = [pool.submit(give, app.url, data) for data in (objects, numbers, objects)]
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
    return answer.status_code, answer.json()["message"]


def peak_bytes(pid: int) -> int:
    """The most memory that a process had so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")
