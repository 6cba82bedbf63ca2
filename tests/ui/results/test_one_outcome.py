"""What a run came to is one answer wherever it is read: page, list, command line, API, file."""

from contextlib import redirect_stdout
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckv_core.cli.tables import print_table, print_verdict
from ckv_core.experiment.summary import summary_table
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import Generated, RunFinished, RunPrepared, VariantFinished
from ckv_core.records.outcomes import OUTCOME_WORDS
from ckv_core.records.records import VariantResult
from storage import library
from storage.recorder import Recorder
from tests.factories.app import request
from tests.factories.runs import MODEL, PROMPT, variant
from tests.storage.conftest import load
from ui.api.endpoints import run_json
from ui.results import views
from ui.runs.query import outcome_line
from ui.services.live_runs import RunSnapshot, stored_snapshot
from ui.tables.points import summary_value

ENDS = {  # stopped, whether the answer is in the text
    "answered": ("eos", True),
    "missed": ("eos", False),
    "cut": ("length", False),
    "none": ("eos", None),
    "": (None, None),  # the run ended before it did
}


def ran(spec: str, end: str, same: bool, looping: bool) -> VariantResult:
    """A variant with that outcome; not finished for an empty one."""
    stopped, found = ENDS[end]
    known = stopped is not None and spec != "full"
    return variant(
        spec,
        token_ids=(7,) * 20 if looping else tuple(range(20)),
        token_texts=("x",) * 20,
        text="x" * 20,
        stopped=stopped,
        answer_found=found,
        agreement=(1.0 if same else 0.5) if known else None,
        first_difference=None if same or not known else 10,
    )


@st.composite
def runs(draw) -> list[VariantResult]:
    """The full cache or not, and up to four methods; an answer is expected or none is."""
    ends = ["none", ""] if draw(st.booleans()) else ["answered", "missed", "cut", ""]
    specs = [f"{name}:budget=64" for name in ("snapkv", "adakv", "pyramidkv", "knorm")]
    chosen = specs[: draw(st.integers(1, 4))]
    full = draw(st.booleans())
    return [
        ran(spec, draw(st.sampled_from(ends)), draw(st.booleans()), draw(st.booleans()))
        for spec in (["full"] if full else []) + chosen
    ]


def stored(database, variants: list[VariantResult], failed: bool) -> RunSnapshot:
    """The same run through the recorder, as a page opens it."""
    recorder = Recorder(database)
    slug = recorder.create(request(), "T")
    recorder.start(slug)
    blank = tuple(variant(v.spec) for v in variants)
    recorder.apply(slug, RunPrepared(MODEL, PROMPT, blank, {}, "compare"))
    texts = tuple(v.text for v in variants)
    ids, stops = (tuple(getattr(v, n) for v in variants) for n in ("token_ids", "stopped"))
    recorder.apply(slug, Generated(texts, ids, tuple(v.token_texts for v in variants), stops))
    for at, each in enumerate(variants):
        if each.stopped:
            judged = (each.agreement, each.first_difference, each.answer_found)
            recorder.apply(slug, VariantFinished(at, *judged))
    if failed:
        recorder.end(slug, "failed", "Out of memory.")
    else:
        recorder.apply(slug, RunFinished({}))
        recorder.end(slug)
    return stored_snapshot(load(database, slug))


def outcomes_in(groups: list[dict]) -> dict[int, str]:
    return {m["index"]: g["outcome"] for g in groups for m in g["variants"] if g["outcome"]}


def printed_by(show, *given) -> str:
    with redirect_stdout(StringIO()) as written:
        show(*given)
    return written.getvalue()


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@settings(max_examples=25)
@given(variants=runs(), failed=st.booleans())
def test_verdict_table_list_command_line_and_api_agree(opened, variants, failed):
    run = stored(opened, variants, failed)
    result = run.result
    expected = {i: v.outcome for i, v in enumerate(result.variants)}
    unfinished = {v.outcome for v in result.variants if not v.stopped}
    assert unfinished <= {"failed" if failed else None}
    by_answer = any(outcome in ("answered", "missed", "cut") for outcome in expected.values())

    verdict, table, api = views.verdict_value(run), summary_value(result, ended=True), run_json(run)
    assert [row["outcome"] for row in api["variants"]] == [*expected.values()]
    assert {row["answer_found"] for row in api["variants"] if row["outcome"] == "cut"} <= {None}
    copy = from_json(to_json(result))
    assert [v.outcome for v in copy.variants] == [*expected.values()]
    shown = [row["cells"].get("answer", {}).get("text", "") for row in table["rows"]]
    cells = shown if by_answer else []
    words = [cell.split(",")[0] for cell in cells]
    known = [v.outcome or "none" for v in result.variants] if by_answer else []
    assert [word if word in OUTCOME_WORDS else "none" for word in words] == known

    (summary,) = opened.read_with(library.list_runs)[0][:1]
    line, came = outcome_line(summary), summary.outcome
    if verdict is None or not verdict["groups"]:
        return
    if by_answer:  # groups are the table's column, and their sizes what every place counts
        judged = {i: o for i, o in expected.items() if o not in (None, "none")}
        assert outcomes_in(verdict["groups"]) == judged
    names = [member["name"] for group in verdict["groups"] for member in group["variants"]]
    if summary.state == "done" and by_answer:
        assert came.about_full in line["more"]
        count = came.answered + came.missed + came.cut + came.failed
        assert line["words"].startswith(f"{came.answered} of {count}" if count else "Full cache")
    phrases = {came.phrase(one=name).lower() for name in names}
    assert any(phrase in verdict["headline"].lower() for phrase in phrases)
    if came.about_full.startswith("The model gets this wrong"):
        assert verdict["headline"].startswith("The model gets this wrong even with the full cache.")
    assert api["verdict"]["headline"] == verdict["headline"]
    assert verdict["headline"] in printed_by(print_verdict, result)
    printed = printed_by(print_table, summary_table(result, ended=True)).splitlines()
    printed = printed[3 : 3 + len(cells)]
    rows = zip(cells, words, printed, strict=True) if by_answer else ()
    assert all(cell in line for cell, word, line in rows if word in OUTCOME_WORDS)
