"""The same hostile texts for every reader of what comes from outside: one sentence, soon."""

import base64
import signal
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from ckv_core.base.process_limits import memory_limited
from ckv_core.base.read_apart import MEMORY_BYTES, TooMuchError, read_apart
from ckv_core.errors import CkvError
from ckv_core.experiment.data import read_samples
from ckv_core.experiment.export import read_export
from ckv_core.experiment.leaderboard import read_leaderboard
from ckv_core.experiment.study_file import read_study
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.kept_caches import read_record
from storage.bundle import reading
from tests.storage.bundles import sealed
from ui.api.endpoints import _read_object
from ui.compare.form_values import FormValues
from ui.compare.samples import sample_map
from ui.compare.setup_link import form_of

MOST_S = 4.0  # of this process's time; unbounded, they took from 8 s to minutes
MOST_BYTES = 384 * 2**20  # beyond what there is; unbounded, 21 MB took 774 MiB
SAMPLE = '{"context": "c", "answers": ["a"], "id": '
BOMBS = (
    "[" * 200_000,
    '{"a":' * 100_000,
    "- " * 40_000,
    "\n".join(f"k{at}: 1" for at in range(8_000)),
    "{" + ", ".join(f"a{at}" for at in range(13_800)) + "}",  # just below what a file may have
    SAMPLE + "9" * 9_000 + "}",
    "name: " + "9" * 9_000,
    "name: 0x" + "f" * 9_000,
    "name: 1" + ":1" * 9_000,
    "name: 1" + ":1" * 9_000 + ".5",
    SAMPLE + "9" * 300 + "}",
    SAMPLE + "1e999}",
    SAMPLE + "NaN}",
    SAMPLE + '"a", "id": "b"}',
    "name: !!int ''\nbudgets: !!timestamp x",
    SAMPLE + '"\\ud800"}',
    "context,answers," + ",".join(f"{at:x}" for at in range(100_000)) + "\n" + "c,a\n" * 4_999,
)
OBJECTS = "[" + "{}," * 7_000_000 + "{}]"  # 21 MB
LINES = "{}\n" * 7_000_000
QUOTES = "['" + "\\'" * 20_000
COLUMNS = "context,answers" + ",a" * 1_000_000 + "\nx,y\n" * 9
WIDE = "context,answers" + ",ab" * 6_000_000


def _bundle(text: str) -> None:
    with reading(sealed("a" * 12, text.encode())) as runs:
        list(runs)


def _results(text: str) -> None:
    with reading(text.encode()) as runs:
        list(runs)


def _kept_cache(text: str, path) -> None:
    head = text.encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    read_record(path)


def _leaderboard(text: str, path) -> None:
    """As the answers of a row, then as a table with all columns that are needed."""
    config = "dataset: ruler\nmodel: m\npress_name: snapkv\ncompression_ratio: 0.5"
    path.with_name("config.yaml").write_text(config, "utf-8")
    head = "task,question,answer_prefix,answer,max_new_tokens,predicted_answer,compression_ratio"
    cell = text.replace('"', '""')
    for table in (f'{head}\ncwe,q,,"{cell}",9,p,0.5', f"{head},{text}"):
        path.with_name("predictions.csv").write_text(table, "utf-8", newline="")
        with suppress(CkvError):
            read_leaderboard(path.parent)
    read_leaderboard(path.parent)


def _setup_link(text: str) -> None:
    form_of(base64.urlsafe_b64encode(zlib.compress(text.encode())).decode())


READERS = {
    "bundle": (lambda text, _: _bundle(text), ()),
    "results": (lambda text, _: _results(text), (LINES,)),
    "study": (lambda text, _: read_study(text), (OBJECTS,)),
    "samples": (lambda text, _: read_samples(text), (OBJECTS, LINES)),
    "CSV": (lambda text, _: read_samples(text, "a.csv"), (WIDE,)),
    "columns": (
        lambda text, _: sample_map(FormValues(source="pasted", data=text)),
        (OBJECTS, LINES),
    ),
    "leaderboard": (_leaderboard, (QUOTES, COLUMNS)),
    "setup link": (lambda text, _: _setup_link(text), (OBJECTS,)),
    "export": (lambda text, _: read_export(text), (OBJECTS,)),
    "selection": (lambda text, _: read_external_selection(text), (OBJECTS,)),
    "request": (lambda text, _: _read_object(text.encode()), (OBJECTS,)),
    "kept cache": (_kept_cache, (OBJECTS,)),
}


@contextmanager
def ended(sentence: str) -> Iterator[None]:
    """Fails the block at twice the time: what takes hours must not take them here."""

    def end(*_: object) -> None:
        pytest.fail(sentence)

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, 2 * MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_is_one_sentence_soon(reader, tmp_path):
    read, large = READERS[reader]
    for bomb in (*BOMBS, *large):
        begin = time.thread_time()
        with ended(f"{bomb[:40]} has no end"), memory_limited(MOST_BYTES):
            sentence = _sentence(read, bomb, tmp_path / "file")
        took = time.thread_time() - begin
        assert took < MOST_S, f"{bomb[:40]} took {took:.1f} s"
        assert "\n" not in sentence
        assert len(sentence) < 500


def _sentence(read, bomb: str, path) -> str:
    try:
        read(bomb, path)
    except CkvError as error:
        return str(error)
    return ""


def test_a_process_that_reads_has_an_end_of_its_memory():
    with (
        pytest.raises(TooMuchError, match="too much memory"),
        read_apart(partial(map, bytearray), (2 * MEMORY_BYTES,)),
    ):
        pass
