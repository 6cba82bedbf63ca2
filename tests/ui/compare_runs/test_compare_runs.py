"""Saved runs side by side: what is equal, what differs, and addresses that name no runs."""

import dataclasses
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest

from ckv_core.results.external_selection_json import read_external_selection
from ckv_core.results.records import RetainedSet, VariantResult
from tests.factories.app import BAD_SLUGS, SLUG, FakeServices, request, running, snapshot
from tests.factories.runs import done_result, full_variant, kept_variant, selection_file
from ui.compare_runs.differences import (
    REFERENCE,
    UNMEASURED,
    differences_value,
    first_difference,
    layer_overlap,
)
from ui.compare_runs.page import CompareRunsPage

OTHER = "other0000000"


def opened(ids: str, *runs):
    with gr.Blocks(analytics_enabled=False):
        page = CompareRunsPage(FakeServices(*runs))
    return page.open(SimpleNamespace(query_params={"ids": ids}))


def beside(result, **changes):
    """What the page shows of a run as it is and one with this result."""
    return differences_value([snapshot(), snapshot(slug=OTHER, result=result, **changes)])


def changed_variant(**changes):
    result = done_result()
    result.variants[1] = dataclasses.replace(result.variants[1], **changes)
    return result


def test_runs_that_are_the_same_say_so():
    value = beside(done_result())
    assert value["settings"] == []
    assert value["same_prompt"]
    for row in value["variants"]:
        (other,) = row["others"]
        assert (other["first"], other["differs"]) == (None, [])
        assert other["kept"] is None or other["kept"]["equal"]


def test_only_settings_that_differ_are_listed():
    other = snapshot(slug=OTHER, request=request(max_new_tokens=9, defaults={"budget": "5"}))
    rows = differences_value([snapshot(), other])["settings"]
    assert [(row["name"], row["values"]) for row in rows] == [
        ("defaults", ["budget=4", "budget=5"]),
        ("max_new_tokens", ["64", "9"]),
    ]
    result = dataclasses.replace(done_result(), environment={"python": "3.12"})
    (row,) = beside(result)["settings"]
    assert (row["name"], row["values"]) == ("version of python", ["3.11", "3.12"])
    own = [read_external_selection(selection_file([at])) for at in (0, 1)]
    runs = [snapshot(request=request(own_indices=positions)) for positions in own]
    (row,) = differences_value(runs)["settings"]
    assert row["name"] == "own_indices"
    assert len({*row["values"]}) == 2
    assert all(value.startswith("Mine (") for value in row["values"])


def test_a_long_list_of_variants_is_shown_whole_and_a_long_text_cut():
    specs = tuple(f"snapkv+critical:budget={at},alpha=0.25" for at in range(64, 128))
    text = "word " * 100
    other = snapshot(slug=OTHER, request=request(variants=specs, context=f"{text} other"))
    first = snapshot(request=request(context=f"{text} first"))
    rows = {row["name"]: row["values"] for row in differences_value([first, other])["settings"]}
    assert rows["variants"][1].split("\n") == list(specs)
    assert all(value.endswith("(506 characters)") for value in rows["context"])


def parameters_of_critical(spec: str, **parameters):
    result = done_result()
    variant = result.variants[2]
    changed = dataclasses.replace(variant, spec=spec, params={**variant.params, **parameters})
    result.variants[2] = changed
    return result


def test_variants_are_matched_by_their_settings_and_not_by_what_their_spec_writes():
    spec = "snapkv+critical:budget=4"
    value = beside(parameters_of_critical(f"{spec},alpha=0.25"))
    assert [row["spec"] for row in value["figures"]] == ["full", "snapkv:budget=4", spec]
    assert all(len(row["others"]) == 1 for row in value["variants"])


def with_budget(budget: int, *, critical: bool = False, **changes) -> VariantResult:
    variant = kept_variant(critical=critical, kept=budget)
    return dataclasses.replace(variant, params={**variant.params, "budget": budget}, **changes)


def pairs(*runs) -> list[tuple[str, tuple[str, ...]]]:
    value = differences_value(
        [
            snapshot(slug=str(at), result=dataclasses.replace(done_result(), variants=list(run)))
            for at, run in enumerate(runs)
        ]
    )
    return [(row["spec"], tuple(row["differs"])) for row in value["figures"]]


def test_the_same_method_is_paired_though_a_parameter_differs_which_is_told():
    value = beside(parameters_of_critical("snapkv+critical:budget=4", alpha=0.5))
    row = value["figures"][2]
    assert (row["spec"], row["differs"]) == (
        "snapkv+critical:budget=4",
        ("alpha=0.25", "alpha=0.5"),
    )
    assert all(len(row["others"]) == 1 for row in value["variants"])
    assert value["alone"] == []


OTHER_KERNEL = dataclasses.replace(
    with_budget(4),
    spec="snapkv:budget=4,kernel=3",
    params={**with_budget(4).params, "kernel": 3},
)
PAIRED = {
    "a method with itself at another budget and with no other method": (
        [
            (full_variant(), with_budget(3), with_budget(3, critical=True)),
            (with_budget(4, critical=True), full_variant(), with_budget(5)),
        ],
        [
            ("full", ("", "")),
            ("snapkv", ("budget=3", "budget=5")),
            ("snapkv+critical", ("budget=3", "budget=4")),
        ],
    ),
    "equal settings first and then the nearest budget": (
        [(with_budget(3), with_budget(4), with_budget(8)), (with_budget(9), with_budget(4))],
        [("snapkv:budget=4", ("", "")), ("snapkv", ("budget=8", "budget=9"))],
    ),
    "a parameter more in common before a near budget": (
        [(with_budget(3),), (OTHER_KERNEL, with_budget(8))],
        [("snapkv", ("budget=3", "budget=8"))],
    ),
    "each of three runs in one place of a pair": (
        [(with_budget(3),), (with_budget(4), with_budget(6)), (with_budget(5),)],
        [("snapkv", ("budget=3", "budget=4", "budget=5"))],
    ),
}


@pytest.mark.parametrize("case", PAIRED)
def test_variants_are_paired(case):
    runs, found = PAIRED[case]
    assert pairs(*runs) == found


def test_what_only_one_run_has_is_a_footnote():
    one = snapshot(result=dataclasses.replace(done_result(), variants=[full_variant()]))
    value = differences_value([one, snapshot(slug=OTHER)])
    assert [row["spec"] for row in value["figures"]] == ["full"]
    assert value["alone"] == [{"run": 1, "specs": ["snapkv:budget=4", "snapkv+critical:budget=4"]}]


def test_whether_the_answer_was_found_comes_first_and_what_is_not_there_says_why():
    found = [changed_variant(answer_found=at) for at in (True, False, None)]
    value = differences_value([snapshot(slug=str(at), result=r) for at, r in enumerate(found)])
    assert value["figure_names"][0] == "Outcome"
    cells = value["figures"][1]["cells"]
    assert [each[0] for each in cells] == ["answered", "cut", UNMEASURED]
    bare = changed_variant(agreement=None, perturbation=None)
    full, first, *_ = (row["cells"][1] for row in beside(bare)["figures"])
    assert (full[1:4], first[1:4]) == ([REFERENCE] * 3, [UNMEASURED] * 3)


def test_without_a_reference_answer_none_is_listed():
    result = done_result()
    result.variants = [dataclasses.replace(v, answer_found=None) for v in result.variants]
    value = differences_value([snapshot(result=result)] * 2)
    assert value["figure_names"][0] == "Agreement"
    assert value["figures"][1]["cells"][0] == ["50%", "0.2500", "3.500", "24"]


def test_a_variant_that_is_not_selected_yet_is_matched_by_its_spec():
    result = done_result()
    blank = {"params": {}, "receipt": None, "perturbation": None, "agreement": None}
    result.variants = [dataclasses.replace(v, **blank) for v in result.variants]
    value = beside(result, state="failed")
    assert len(value["figures"]) == 3
    assert value["figures"][1]["cells"][1][1:] == [UNMEASURED] * 4


def test_differing_tokens_and_positions_are_named():
    kept = np.zeros((3, 2, 10), np.bool_)
    kept[..., 2:6] = True
    result = changed_variant(
        token_ids=(1, 9, 4), token_texts=("one", " x", " y"), retained=RetainedSet.from_mask(kept)
    )
    (other,) = beside(result)["variants"][1]["others"]
    assert (other["first"], other["differs"]) == (1, [1, 2])
    assert other["kept"]["jaccard"] == [pytest.approx(2 / 6)] * 3
    assert other["kept"]["only_base"] == {"count": 2, "tokens": [[0, "t0 "], [1, "t1 "]]}
    assert other["kept"]["only_other"] == {"count": 2, "tokens": [[4, "t4 "], [5, "t5 "]]}


def test_other_prompts_are_compared_by_their_figures_alone():
    prompt = dataclasses.replace(done_result().prompt, token_ids=tuple(range(1, 11)))
    other = snapshot(slug=OTHER, result=dataclasses.replace(done_result(), prompt=prompt))
    for run, same in ((other, False), (running(slug=OTHER), None)):
        value = differences_value([snapshot(), run])
        assert value["same_prompt"] is same
        assert value["variants"] == []
    assert value["figures"] == []
    assert [each["run"] for each in value["alone"]] == [0]


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((), (1,), 0)],
)
def test_the_first_difference_of_two_generations(left, right, index):
    assert first_difference(left, right) == index


def test_layers_that_keep_nothing_overlap_fully():
    empty = RetainedSet.from_mask(np.zeros((2, 1, 4), np.bool_))
    assert layer_overlap(empty, empty) == [1.0, 1.0]


CHOOSE, NO_RUN = "Choose 2 to 4 different runs", "There is no run of this name"
TOO_FEW_OR_MANY = ("", SLUG, f"{SLUG},{SLUG}", ",".join("abcdef"))


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        *((ids, CHOOSE) for ids in TOO_FEW_OR_MANY),
        *((f"{SLUG},{slug}", NO_RUN) for slug in BAD_SLUGS if slug.strip()),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(ids, sentence):
    notice, value = opened(ids)
    assert (notice["tone"], value) == ("error", None)
    assert sentence in notice["text"]


def test_two_known_runs_are_shown():
    notice, value = opened(f"{SLUG},{OTHER}", snapshot(), snapshot(slug=OTHER))
    assert notice["text"] == ""
    assert [run["slug"] for run in value["runs"]] == [SLUG, OTHER]
