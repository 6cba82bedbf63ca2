"""The values of the grid, the chosen cell, the maps and the next steps: what each cell says."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.records.records import RetainedSet
from tests.factories.app import request, snapshot, sweep_snapshot
from tests.factories.runs import done_result, sweep_result
from ui.results.grid import chosen_value, grid_value, points_kept_value
from ui.results.next_steps import at_searched, next_value

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
    assert more["href"].endswith("&source=file")
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
