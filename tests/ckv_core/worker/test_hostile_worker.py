"""A hostile chat template in the process that counts: others' counts and the worker go on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker import count_runner
from ckv_core.worker.client import WorkerClient
from tests.factories.models import saved_model

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class HastyCounts(count_runner.CountRunner):
    """The real one, but for how long a count may take."""

    def __init__(self) -> None:
        super().__init__()
        count_runner.COUNT_S = 1.0


def counted(model: Path) -> CompareRequest:
    return CompareRequest(context=TEXT, model=str(model))


@pytest.mark.slow
def test_a_looping_template_stops_neither_counts_nor_the_worker(tmp_path: Path) -> None:
    good, looping = tmp_path / "good", tmp_path / "looping"
    for path in (good, looping):
        saved_model(path)
    (looping / "chat_template.jinja").write_text(ENDLESS)
    client = WorkerClient(
        lambda _: None,
        runner="tests.ckv_core.worker.scripted_runner:ScriptedRunner",
        counter="tests.ckv_core.worker.test_hostile_worker:HastyCounts",
    )
    client.start()
    with closing(client), ThreadPoolExecutor(1) as pool:
        loop = pool.submit(client.count_tokens, counted(looping), 300)
        assert client.count_tokens(counted(good), 300).tokens > 0
        assert "chat template" in loop.result().error
        assert client.count_tokens(counted(good), 300).tokens > 0
        assert client.is_ready(60)
