"""Kept caches in the app: kept, asked and stopped by jobs; files of their owners alone."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gradio as gr
import numpy as np
import pytest

from ckv_core.errors import CkvError, ConfigError
from ckv_core.records import kept_caches
from ckv_core.records.kept_caches import KeptFolder, KeptRecord, metadata_of
from ckv_core.records.run_request import RunRequest
from tests.factories.app import FakeServices, snapshot
from tests.factories.kept import kept_bytes, kept_record
from tests.factories.runs import receipt, run_of, variant
from tests.processes import wait_for
from tests.ui.served_app import by
from ui.caches.keep_section import KeepSection
from ui.caches.page import CachesPage, answers_value
from ui.limits import LimitError
from ui.server.route_answers import IMPORT_TYPE
from ui.services.caches import CacheJob, Caches
from ui.services.services import Services
from ui.settings import Settings

TYPE = {"content-type": IMPORT_TYPE}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def asked(question: str = "steps 2", **changes: object) -> RunRequest:
    run = RunRequest(
        context="one two three",
        question=question,
        scenario="context-only",
        model="tiny",
        variants=("full", "snapkv:budget=48", "h2o:budget=48"),
    )
    return replace(run, **changes)


def wait_until(caches: Caches, job: str, wanted: Callable[[CacheJob], object]) -> CacheJob:
    return wait_for(lambda: caches.job(job), wanted)


def end_of(caches: Caches, job: str) -> CacheJob:
    return wait_until(caches, job, lambda found: found.is_final)


def test_a_cache_is_kept_asked_and_stopped(services):
    caches = services.caches
    kept = end_of(caches, caches.keep(asked(), 1, "report"))
    assert kept.state == "done"
    (entry,) = caches.entries()
    assert entry.name == "report"
    assert entry.record == kept_record()
    job = caches.ask("report", "steps 4", 9)

    async def watched() -> list[CacheJob]:
        return [each async for each in caches.watch(job)]

    seen = asyncio.run(watched())
    assert seen[-1].state == "done"
    assert seen[-1].text == "w0 w1 w2 w3 "
    stopped = caches.ask("report", "steps 1000000", 9)
    wait_until(caches, stopped, lambda found: found.text)
    caches.cancel(stopped)
    assert end_of(caches, stopped).state == "cancelled"
    failed = end_of(caches, caches.ask("report", "refuse", 9))
    assert (failed.state, failed.reason) == ("failed", "Budget 3 is below the protected tokens.")
    told = answers_value(caches.answers("report"))["rows"]
    assert [row["question"] for row in told] == ["refuse", "steps 1000000", "steps 4"]
    assert [row["message"] for row in told] == [failed.reason, "Cancelled.", ""]


def test_what_cannot_be_is_refused_before_a_worker_is_asked(services):
    caches = services.caches
    unfit = ((2, "evicts while it"), (7, "no such variant"), (-1, "no such variant"))
    for index, sentence in unfit:
        with pytest.raises(ConfigError, match=sentence):
            caches.keep(asked(), index, "x")
    with pytest.raises(ConfigError, match="A cache's name"):
        caches.keep(asked(), 1, "../x")
    end_of(caches, caches.keep(asked(), 1, "x"))
    with pytest.raises(ConfigError, match="kept already"):
        caches.keep(asked(), 1, "x")
    for name, question, tokens, sentence in (
        ("none", "What?", 9, "No cache is kept"),
        ("x", " ", 9, "question is empty"),
        ("x", "What?", 0, "New tokens"),
        ("x", "\ud800", 9, "lone surrogate"),
    ):
        with pytest.raises(CkvError, match=sentence):
            caches.ask(name, question, tokens)
    with pytest.raises(CkvError, match="no longer remembers"):
        caches.job("cache:none")


def test_limits_hold(services):
    caches = services.caches
    end_of(caches, caches.keep(asked(), 1, "x"))
    for _ in range(3):
        caches.ask("x", "steps 1000000", 9)
    with pytest.raises(LimitError, match="queue is full"):
        caches.ask("x", "What?", 9)
    for job in caches.answers("x"):
        caches.cancel(job.job_id)
        end_of(caches, job.job_id)


def test_users_have_their_own_files_and_answers(app):
    data = kept_bytes()
    with app.client("ann") as ann, app.client("bob") as bob, app.client() as guest:
        sent = {"content": data, "headers": TYPE}
        assert ann.post("/caches/import?name=report", **sent).json()["message"] == "report is kept."
        again = ann.post("/caches/import?name=report", **sent)
        assert (again.status_code, "kept already" in again.json()["message"]) == (400, True)
        found = ann.get("/caches/file?name=report")
        assert found.content == data
        assert found.headers["content-type"] == IMPORT_TYPE
        assert 'attachment; filename="report.safetensors"' in found.headers["content-disposition"]
        assert bob.get("/caches/file?name=report").status_code == 404
        assert guest.get("/caches/file?name=report").status_code in (303, 401, 403, 404)
        assert guest.post("/caches/import?name=mine", **sent).status_code in (303, 401, 403)
    with by("bob"):
        assert app.services.caches.entries() == []
        with pytest.raises(ConfigError, match="No cache"):
            app.services.caches.ask("report", "What?", 9)
    with by("ann"):
        job = app.services.caches.ask("report", "steps 1", 9)
        assert end_of(app.services.caches, job).state == "done"
    with by("bob"):
        assert app.services.caches.answers("report") == []
        for act in (app.services.caches.job, app.services.caches.cancel):
            with pytest.raises(CkvError, match="no longer remembers"):
                act(job)


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"", TYPE, 400),
        (b"PK\x03\x04" * 9, TYPE, 400),
        (kept_bytes()[:-1], TYPE, 400),
        (kept_bytes(), {"content-type": "text/plain"}, 415),
    ],
)
def test_a_wrong_file_is_one_sentence_and_keeps_nothing(app, home, data, headers, status):
    with app.client("bob") as bob:
        answer = bob.post("/caches/import?name=x", content=data, headers=headers)
    assert answer.status_code == status
    assert answer.json()["message"].endswith(".")
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_cache_that_could_never_be_asked_is_refused_when_it_comes():
    ints, one = np.int32, kept_record()
    unfit = (
        (kept_bytes(kept_record(spec="h2o:budget=48")), "evicts while it generates"),
        (kept_bytes(kept_record(spec="nothing")), "its method cannot be used here"),
        (kept_bytes(more=np.zeros(1)), "a tensor in it is unknown"),
        (kept_bytes(token_ids=np.zeros(9, ints)), "do not fit its receipt"),
        (kept_bytes(replace(one, model=replace(one.model, kv_heads=1))), "another number"),
        (kept_bytes(**{"layers.2.0.heads": np.zeros(1, ints)}), "the 2 layers"),
        (kept_bytes(**{"layers.1.0.heads": np.zeros(2, ints)}), "each of the 2 KV heads once"),
        (kept_bytes(**{"layers.1.0.heads": np.zeros(2)}), "lacks heads or positions"),
        (kept_bytes(**{"layers.1.0.keys": np.zeros((1, 48, 4))}), "lacks keys or values"),
        (kept_bytes(**{"layers.0.0.positions": np.zeros((2, 48), ints)}), "not ascending"),
    )
    for data, sentence in unfit:
        with pytest.raises(ConfigError, match=sentence):
            KeptFolder().add("x", lambda path, data=data: path.write_bytes(data))
    assert KeptFolder().entries() == []


def fat_file(record: KeptRecord) -> bytes:
    """149,000 empty tensors."""
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    header = {"__metadata__": metadata_of(record)} | {f"{at:x}": empty for at in range(149_000)}
    raw = json.dumps(header, separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw


def test_a_fat_head_is_refused_or_read_once(services, home, monkeypatch):
    fat = fat_file(kept_record())
    with pytest.raises(ConfigError, match="more than the 80 tensors"):
        KeptFolder().add("fat", lambda path: path.write_bytes(fat))
    model = replace(kept_record().model, layers=1024, query_heads=1024, kv_heads=1024)
    allowed = fat_file(kept_record(model=model))
    KeptFolder().add("good", lambda path: path.write_bytes(kept_bytes()))
    for name, data in (("a", fat), ("b", allowed), ("c", b"\xff" * 99)):  # put there by hand
        (home / "caches" / f"{name}.safetensors").write_bytes(data)
    read = []
    known = kept_caches.read_record
    monkeypatch.setattr(
        kept_caches, "read_record", lambda path: (read.append(path), known(path))[1]
    )
    begin = time.thread_time()
    for _ in range(5):
        entries = services.caches.entries()
    assert [entry.name for entry in entries if entry.record] == ["b", "good"]
    assert len(read) == 4
    assert time.thread_time() - begin < 1.0  # each of five opens took as long as that


@pytest.mark.parametrize("name", ["", "../x", "/etc/passwd", "a%00", "x" * 900])
def test_a_name_that_is_none_leads_to_no_file(app, name):
    with app.client("bob") as bob:
        assert bob.get("/caches/file", params={"name": name}).status_code == 404
        answer = bob.post(
            "/caches/import", params={"name": name}, content=kept_bytes(), headers=TYPE
        )
    assert answer.status_code == 400


def page_of(services: Services) -> CachesPage:
    with gr.Blocks():
        return CachesPage(services, Settings.from_environ({}))


def test_the_page_lists_and_deletes(services, home):
    page = page_of(services)
    table, choice, answers, notice = page.refresh("")
    assert (table["rows"], choice["choices"], answers) == ([], [], {"rows": []})
    KeptFolder().add("c d", lambda path: path.write_bytes(kept_bytes()))
    (home / "caches" / "a.safetensors").write_bytes(kept_bytes(kept_record(spec=HOSTILE)))
    table, choice, _, notice = page.refresh("c d")
    assert [row["cells"]["name"]["text"] for row in table["rows"]] == ["a", "c d"]
    assert table["rows"][0]["cells"]["variant"]["text"] == HOSTILE  # the component sets text
    assert (choice["value"], notice["text"]) == ("c d", "")
    assert table["rows"][1]["cells"]["take"]["href"] == "/caches/file?name=c%20d"
    assert page.delete("none")[3]["tone"] == "error"
    assert page.delete("c d")[3]["text"] == "c d is deleted."
    assert [entry.name for entry in KeptFolder().entries()] == ["a"]
    KeptFolder().free("x").write_bytes(b"spoilt")
    spoilt = page.refresh("a")[0]["rows"][1]["cells"]
    assert spoilt["variant"]["text"] == "cannot be read; delete it"
    for odd in (None, 3, ["a"], {"a": 1}):
        assert page.ask(odd, odd, odd)[1]["tone"] == "error"
        page.choose(odd)


def section_of(services: FakeServices) -> KeepSection:
    with gr.Blocks():
        return KeepSection(services)


def test_the_section_offers_what_can_be_kept():
    section, fits = section_of(FakeServices()), snapshot(request=asked())
    area, choice = section.open(fits)
    assert (area["title"], choice["choices"]) == ("Keep a cache", ["full", "snapkv:budget=48"])
    unfit = ({"scenario": "regular"}, {"budgets": ("64", "128")}, {"variants": ("gone:x",)})
    others = [replace(fits, request=asked(**changes)) for changes in unfit]
    for run in (*others, replace(fits, state="running"), None):
        assert "title" not in section.open(run)[0]
    assert section.keep("nope", "full", "x")[1]["tone"] == "error"


@pytest.mark.parametrize(
    ("found", "same", "offered"),
    [  # of the full cache and of those that hold 3, 2 and 1 of its 4 bytes
        ((True, True, True, False), (1, 0, 0, 0), 2),
        ((True, False, False, False), (1, 0, 0, 0), 0),
        ((False, True, False, False), (1, 0, 1, 1), 1),
        ((None,) * 4, (1, 1, 1, 0), 2),
        ((None,) * 4, (None,) * 4, 0),
    ],
)
def test_of_those_that_keep_the_answer_the_smallest_is_chosen_before(found, same, offered):
    specs = ("full", "snapkv:budget=48", "adakv:budget=48", "knorm:budget=48")
    values = zip(specs, found, same, (4, 3, 2, 1), strict=True)
    made = [
        variant(
            spec,
            receipt=receipt(48, size),
            stopped="eos",
            answer_found=right,
            agreement=alike,
            first_difference=None if alike else 0,
        )
        for spec, right, alike, size in values
    ]
    run = snapshot(request=asked(variants=specs), result=run_of(*made))
    assert section_of(FakeServices()).open(run)[1]["value"] == specs[offered]
