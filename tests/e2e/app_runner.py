"""One running app as a process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready at (http://\S+)/")
START_LIMIT_S = 180
STOP_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class App:
    """One running app."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def workers(self) -> list[int]:
        """Process ids of the model workers."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "spawn_main"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in found.stdout.split()]

    def stop(self) -> int:
        """SIGTERM, as a service manager would; the exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The app's address, once it says so."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := READY.search(log.read_text()):
            return match[1]
        time.sleep(0.1)
    process.kill()
    told = "\n".join(path.read_text() for path in log.parent.glob("*.txt"))
    raise AssertionError(f"The app did not start:\n{told}")


def start(program: list[str], home: Path, **environ: str) -> App:
    """Run a Python program that serves, with its data and its two logs in this folder."""
    log, settings = home / "log.txt", {"CKV_HOME": str(home), "CKV_PORT": str(free_port())}
    settings["CKV_EXAMPLE"] = "0"  # it would run beside what is tested
    with log.open("wb") as out, (home / "err.txt").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *program],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(ROOT), **settings, **environ},
            stdout=out,
            stderr=err,
        )
    return App(wait_until_ready(process, log), process, log)


@contextlib.contextmanager
def scripted_app(home: Path, **environ: str) -> Iterator[App]:
    """The app with a worker that plays scripts; killed in the end if it still runs."""
    app = start(["-m", "tests.ui.served_process"], home, CKV_MODEL="tiny", **environ)
    try:
        yield app
    finally:
        app.process.kill()
        app.process.wait()
