"""What the components are shown of a run, and the JSON that they fetch of it."""

import dataclasses
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from starlette.testclient import TestClient

from ckv_core.records.events import Progress, RunResult, TokensCounted
from ckv_core.records.records import RetainedSet, Timed
from tests.factories.app import (
    SLUG,
    START,
    FakeServices,
    request,
    running,
    snapshot,
    sweep_snapshot,
)
from tests.factories.runs import KV_HEADS, LAYERS, POSITIONS, analysed, done_result, sweep_result
from tests.ui.run.test_routes import client as client_of
from ui.results import views
from ui.results.answers import answers_value, differing, shortened
from ui.results.grid import chosen_value, grid_value, points_kept_value
from ui.results.next_steps import at_searched, next_value
from ui.results.views import state_value
from ui.tables.points import summary_value


def with_variant(at: int, **changes) -> RunResult:
    """`done_result` with one variant changed."""
    result = done_result()
    result.variants[at] = dataclasses.replace(result.variants[at], **changes)
    return result


def rows_of(run, **given) -> list[dict]:
    return answers_value(run, **given)["rows"]


# --- how far it is --------------------------------------------------------------------------


def test_a_running_run_has_one_bar_of_its_steps_and_about_how_long_it_takes():
    run = running()
    value = state_value(run, START + timedelta(seconds=3))
    assert value["sentence"] == "Reading the text: layer 1 of 3."
    assert [step["is_now"] for step in value["steps"]] == [True, False, False]
    assert value["steps"][0]["fraction"] == pytest.approx(0.3 + 0.7 * 0.5)
    assert value["left_s"] > 3.0
    answering = running(progress=Progress("decode", 0.25, "token 1 of 4"), result=done_result())
    value = state_value(answering, START + timedelta(seconds=4))
    assert value["sentence"] == "Answering: 2 of 2 methods have finished."
    assert [step["fraction"] for step in value["steps"]] == [1.0, 1.0, 0.25]
    spent = 4 - sum(answering.stage_ms.values()) / 1000
    assert value["left_s"] == pytest.approx(3 * spent)


def test_a_failed_run_says_its_reason_and_a_queued_one_how_many_are_ahead():
    run = running(state="failed", reason="It broke.", progress=Progress("decode", 0.1, "x"))
    value = state_value(run, START)
    assert (value["sentence"], value["steps"]) == ("It broke.", [])
    value = state_value(running(state="queued", queue_ahead=2, progress=None), START)
    assert value["sentence"].startswith("Waiting: 2 runs are ahead of this one.")
    assert state_value(snapshot(), START)["sentence"] == ""


def test_a_run_that_was_cut_shows_what_there_is_and_nothing_else():
    result = done_result()
    unborn = {"text": "", "token_ids": (), "token_texts": (), "stopped": None}
    unborn |= {"perturbation": None, "agreement": None, "answer_found": None}
    result.variants[1:] = [dataclasses.replace(each, **unborn) for each in result.variants[1:]]
    run = snapshot(state="cancelled", result=dataclasses.replace(result, finished=False))
    assert [bool(row["pieces"]) for row in rows_of(run)] == [True, False, False]
    keys = {column["key"] for column in summary_value(run.result, ended=True)["columns"]}
    assert {"retained_entries", "cache_bytes"} <= keys
    assert not {"agreement", "kl", "final", "improved_heads"} & keys


def test_before_the_run_begins_the_table_has_the_methods_that_were_asked_for():
    run = running()
    assert summary_value(run.result) is views.kept_value(run) is None
    rows = rows_of(run)
    assert [row["state"] for row in rows] == ["waiting"] * len(run.request.variants)
    assert [row["mib"] for row in rows] == [None] * len(rows)
    assert rows[0]["reference"]


# --- answers and kept tokens -----------------------------------------------------------------


def test_the_full_cache_stands_first_and_then_who_answered():
    result = done_result()
    outcomes = [(True, "eos"), (False, "eos"), (True, "eos")]
    result.variants = [
        dataclasses.replace(each, answer_found=found, stopped=stop)
        for each, (found, stop) in zip(result.variants, outcomes, strict=True)
    ]
    rows = rows_of(snapshot(result=result))
    assert [row["index"] for row in rows] == [0, 2, 1]
    assert [row["outcome"] for row in rows] == ["answered", "answered", "missed"]
    assert [row["index"] for row in rows_of(snapshot(result=result), sort=False)] == [0, 1, 2]
    assert rows[2]["pieces"] == [("one ", ""), ("three", "diff")]
    assert rows[1]["mib"] is not None


def test_agreement_has_a_column_only_beside_the_full_cache():
    def has_column(kept: slice) -> bool:
        result = done_result()
        result.variants = result.variants[kept]
        columns = answers_value(snapshot(result=result))["columns"]
        return "agreement" in {column["key"] for column in columns}

    assert [has_column(kept) for kept in (slice(2), slice(1), slice(1, 2))] == [True, False, False]


def test_times_have_columns_where_something_is_timed_and_a_step_has_its_range():
    time = Timed(
        added_first_token_ms=1234.5,
        step_ms=(29.24, 30.0, 310.0),
        steps=33,
        tokens_per_s={"1": 33.3, "8": 170.0, "21": 200.0},
        bound="memory",
        others=0.25,
    )
    keys = {"added_first_token_ms", "step_ms"}

    def columns(run) -> set[str]:
        return keys & {column["key"] for column in answers_value(run)["columns"]}

    asked = dataclasses.replace(request(), time=True)
    assert columns(running(request=asked, result=done_result())) == keys, "they are on their way"
    assert columns(snapshot()) == columns(snapshot(request=asked)) == set()
    run = snapshot(result=with_variant(1, time=time))
    assert columns(run) == keys
    figures = {row["index"]: row["figures"] for row in rows_of(run)}
    assert figures[0] == {}
    shown = {key: cell["text"] for key, cell in figures[1].items()}
    assert shown == {"added_first_token_ms": "1,234", "step_ms": "30.0 (29.2 to 310)"}
    assert "33 steps each" in answers_value(run)["note"]
    assert "took up to 25 % of the processors" in summary_value(run.result)["note"]
    cells = summary_value(run.result, ended=True)["rows"][1]["cells"]
    assert (cells["tokens_per_s_8"]["text"], cells["largest_batch"]["text"]) == (
        *("170", "21, by memory"),
    )


def test_a_difference_is_marked_by_words_and_a_text_that_only_stops_says_so():
    assert differing("It is 582.", "It is 5829.") == [("It is ", ""), ("582", "diff"), (".", "")]
    assert differing("It is", "It is so.", ended=False) == [("It is", "")]
    assert differing("It is", "It is so.")[-1] == ("\u27e8end\u27e9", "diff")
    assert differing("a b", "a b") == [("a b", "")]


def test_a_long_text_is_cut_to_the_part_that_differs():
    pieces = [("w" * 400, ""), ("lost", "diff"), ("e" * 400, "")]
    short = shortened(pieces)
    assert [kind for _, kind in short] == ["", "", "diff", "", ""]
    assert sum(len(text) for text, _ in short) < 160
    assert shortened(pieces[:1], at_end=True)[0][0] == "… "
    assert shortened([("short", "")]) == [("short", "")]


def test_kept_tokens_wait_until_all_variants_have_selected():
    result = with_variant(2, receipt=None, retained=None)
    assert views.kept_value(running(result=result)) is None
    early = views.kept_value(snapshot(state="failed", result=result))
    assert [v["index"] for v in early["variants"]] == [1]


def test_a_map_says_where_entries_are_no_tokens():
    result = with_variant(2, method="attention_matching", label="Attention Matching")
    labels = [each["label"] for each in views.kept_value(snapshot(result=result))["variants"]]
    assert [label for label in labels if "no tokens" in label] == [
        "Attention Matching (no tokens: whose keys it has)"
    ]


def test_kept_tokens_describe_the_bits_that_the_route_sends():
    value = views.kept_value(snapshot())
    assert (value["layers"], value["kv_heads"], value["positions"]) == (LAYERS, KV_HEADS, POSITIONS)
    known = {"window": 2, "sinks": 1}
    assert value["variants"][0] | known == value["variants"][0]
    assert [v["index"] for v in value["variants"]] == [1, 2]


# --- links, settings and the prompt's length ------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "tone", "words"),
    [
        (100, "", "100 of 200 tokens"),
        (136, "", "136 of 200 tokens"),
        (137, "error", "1 over the model's limit of 200"),
    ],
)
def test_the_token_count_leaves_room_for_the_new_tokens(tokens, tone, words):
    value = views.count_value(TokensCounted(tokens, tokens, 200), request())
    assert value["tone"] == tone
    assert words in value["text"]


# --- routes ---------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    """Of a run with every diagnostic."""
    return client_of(FakeServices(snapshot(result=analysed())))


def test_figures_come_as_json(client):
    figure = client.get(f"/data/{SLUG}/figure/sigma?variant=2").json()
    assert figure["layout"]["title"]["text"].startswith("CriticalKV-SnapKV")


@pytest.mark.parametrize("path", ["x/figure/sigma", f"{SLUG}/figure/x", f"{SLUG}/9/retained"])
def test_what_does_not_exist_is_a_404(client, path):
    assert client.get(f"/data/{path}").status_code == 404


def test_the_chart_library_is_our_own_file(client):
    answer = client.get("/plotly.js")
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js v" in answer.text[:200]


# --- the values of the grid, the chosen cell, the maps and the next steps: what each cell says ---

FULL = "The code is 5829."


def sweep(texts: dict[int, str], answer: str = "5829", **changes: object):
    """Each line writes `texts` by budget; what holds the answer answers."""
    result = sweep_result(generated=True)
    shape = (result.model.layers, result.model.kv_heads, result.prompt.compressed_tokens)
    for at, variant in enumerate(result.variants):
        text = texts.get(variant.params.get("budget", 0), FULL)
        result.variants[at] = replace(
            variant,
            text=text,
            stopped="eos",
            answer_found=answer in text if answer else None,
            agreement=None if variant.method == "full" else float(text == FULL),
            first_difference=None if text == FULL else 3,
            retained=RetainedSet.from_mask(np.ones(shape, np.bool_)) if at else None,
        )
    shown = sweep_snapshot(result=result, **changes)
    return replace(shown, request=replace(shown.request, answer=answer))


TEXTS = {64: "I do not know.", 128: "The code is 582.", 256: "The code is"}


def test_a_cell_shows_the_answer_or_the_words_that_differ():
    value = grid_value(sweep(TEXTS))
    (line, *_) = value["lines"]
    cells = [(cell["shown"], cell["state"], cell["least"]) for cell in line["cells"]]
    assert cells == [
        ("I do not know", "lost", False),
        ("582", "lost", False),
        ("ends early", "lost", False),
        ("5829", "kept", True),
    ]
    assert line["cells"][1]["words"] == "SnapKV at 128 tokens: missed. 582"
    assert (line["least"], line["never"]) == (value["columns"][3], "not up to 512 tokens")
    assert (value["full"]["shown"], value["full"]["outcome"]) == ("5829", "answered")
    assert value["chosen"] == line["cells"][3]["index"]


def test_without_an_expected_answer_a_cell_shows_the_agreement():
    value = grid_value(sweep(TEXTS, answer=""))
    shown = [cell["shown"] for cell in value["lines"][0]["cells"]]
    assert shown == ["0 %", "0 %", "0 %", "100 %"]
    assert "agreement" in value["note"]


def test_without_texts_a_cell_shows_how_far_heads_move():
    shown = sweep_snapshot(result=sweep_result())
    value = grid_value(replace(shown, request=replace(shown.request, max_new_tokens=0)))
    assert [cell["shown"] for cell in value["lines"][0]["cells"]] == ["1", "0.5", "0.25", "0.12"]
    assert value["least"] == ""


def test_while_it_runs_cells_wait_and_nothing_is_chosen_below():
    running = replace(sweep(TEXTS), state="running")
    waiting = [
        replace(v, stopped=None, text="", answer_found=None) for v in running.result.variants
    ]
    running = replace(running, result=replace(running.result, variants=waiting))
    value = grid_value(running)
    assert {cell["shown"] for line in value["lines"] for cell in line["cells"]} == {"…"}
    assert (chosen_value(running), points_kept_value(running)) == (None, None)


def test_the_chosen_cell_has_both_texts_and_its_cost():
    value = chosen_value(sweep(TEXTS))
    cell = next(each for each in value["cells"] if each["at"] == "128 tokens")
    assert cell["pieces"] == [("The code is ", ""), ("582", "diff"), (".", "")]
    assert "".join(text for text, _ in cell["full"]) == FULL
    assert " tokens per KV head." in cell["cost"]
    assert "short" not in cell


def test_maps_are_of_one_budget_and_that_of_the_chosen_cell_comes_first():
    shown = sweep(TEXTS)
    value, chosen = points_kept_value(shown), grid_value(shown)["chosen"]
    groups = [variant["group"] for variant in value["variants"]]
    assert groups[:4] == [3, 3, 3, 3]
    assert len(groups) == 16
    assert value["variants"][0]["index"] == chosen
    assert "one" not in value


def test_the_next_steps_of_a_sweep_add_budgets_below_the_smallest_that_answers():
    shown = sweep(TEXTS)
    asked = replace(shown.request, budgets=("10%", "20%"), places=(), variants=("snapkv",))
    result = shown.result
    points = [
        replace(v, spec=f"snapkv:budget={b}", params={"budget": n, "window": 32})
        for v, b, n in zip(result.variants[3:5], ("10%", "20%"), (10, 20), strict=True)
    ]
    result = replace(result, variants=[result.variants[0], *points])
    value = next_value(replace(shown, request=asked, result=result))
    assert value["find"] == ""
    more, add, fits = value["links"]
    assert fits["href"].startswith("/methods?model=")
    assert fits["href"].endswith("variants=snapkv&budget=10%25#capacity")
    assert more["href"].endswith("&source=pasted")
    assert add["text"] == "Add budgets between 10 and 20 %"
    assert "budget=12%25%2C+14%25%2C+16%25%2C+18%25" in add["href"]


def test_the_search_has_the_same_methods_and_none_of_what_several_budgets_refuse():
    asked = request(
        variants=("full", "snapkv:budget=64", "snapkv:window=8"),
        analysis=("bounds", "forced"),
        follow_ups=("And?",),
        scenario="context-only",
    )
    wanted = at_searched(asked)
    wanted.validate()
    assert wanted.variants == ("full", "snapkv", "snapkv:window=8")
    assert len(wanted.points()) == 1 + 2 * 6
    assert at_searched(request(variants=("full",))) is None
    assert at_searched(replace(asked, reference=False)) == wanted
    assert at_searched(sweep(TEXTS).request) is None


@pytest.mark.parametrize("state", ["queued", "running"])
def test_nothing_is_next_before_the_end(state):
    assert next_value(snapshot(result=done_result(), state=state)) is None
