"""The process in which kvpress runs, in its own environment: `kvpress_side.py` is what it does."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ckv_core.base.home import models_folder
from ckv_core.records.run_request import DEFAULT_MODEL

Side = Callable[[Mapping[str, object]], float]


@contextmanager
def kvpress_side(python: str, device: str, *, ignore_eos: bool) -> Iterator[Side]:
    """A function from a line of `kvpress_side.py` to the milliseconds that it took there.

    Args:
        python: of an environment with kvpress.
        device: cpu or cuda.
        ignore_eos: generate all new tokens.
    """
    side = subprocess.Popen(
        [python, str(Path(__file__).with_name("kvpress_side.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TQDM_DISABLE": "1"},
    )

    def ask(line: Mapping[str, object]) -> dict[str, float]:
        assert side.stdin is not None
        assert side.stdout is not None
        side.stdin.write(json.dumps(line) + "\n")
        side.stdin.flush()
        return json.loads(side.stdout.readline())  # type: ignore[no-any-return]

    model = str(models_folder() / DEFAULT_MODEL)
    try:
        ask({"model": model, "device": device, "ignore_eos": ignore_eos})
        yield lambda line: ask(line)["ms"]
    finally:
        side.kill()
