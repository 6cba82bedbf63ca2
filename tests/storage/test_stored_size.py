"""A long run opens fast and takes little space."""

import sys
import time
from pathlib import Path

from ckv_core.config import CompareRequest
from storage import repository
from storage.database import default_url, open_database
from storage.recorder import Recorder
from tests.storage.run_strategies import assert_same_result, big_events, folded


def test_an_8k_run_of_eight_variants_opens_fast_and_stays_small(tmp_path: Path):
    database = open_database(default_url(tmp_path))
    recorder = Recorder(database)
    slug = recorder.create(CompareRequest(context="word " * 8000, question="What?"))
    stream = big_events()
    for event in stream:
        recorder.apply(slug, event)
    recorder.finish(slug)
    began = time.perf_counter()
    with database.read() as session:
        run = repository.load_run(session, slug)
    seconds = time.perf_counter() - began
    assert_same_result(run.result, folded(stream))
    database.close()
    megabytes = (tmp_path / "ckv.sqlite3").stat().st_size / 1e6
    sys.stdout.write(f"loaded in {seconds * 1000:.0f} ms, database {megabytes:.2f} MB\n")
    assert seconds < 1.0
    assert megabytes < 2.0
