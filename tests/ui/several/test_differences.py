"""A few saved runs side by side: what is equal, and what differs."""

import dataclasses

import pytest

from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.records import VariantResult
from tests.factories.app import request, snapshot
from tests.factories.runs import done_result, full_variant, kept_variant, selection_file
from ui.several.page import beside_value, pair_up

OTHER = "other0000000"
SNAPKV = "snapkv:budget=4"


def settings_of(*runs) -> list[list[str]]:
    """Name and values of each setting that differs."""
    rows = beside_value(runs)["rows"]
    return [
        [cell["text"] for cell in row["cells"].values()]
        for row in rows
        if not row.get("equal") and not row["look"]
    ]


def changed_variant(**changes):
    result = done_result()
    result.variants[1] = dataclasses.replace(result.variants[1], **changes)
    return result


def test_runs_that_are_the_same_say_so():
    runs = snapshot(), snapshot(slug=OTHER)
    assert settings_of(*runs) == []
    assert all(row["equal"] for row in beside_value(runs)["rows"])


def test_only_settings_that_differ_are_listed():
    other = snapshot(slug=OTHER, request=request(max_new_tokens=9, budgets=("5",)))
    assert settings_of(snapshot(), other) == [
        ["Budgets", "4", "5"],
        ["Max new tokens", "64", "9"],
    ]
    result = dataclasses.replace(done_result(), environment={"python": "3.12"})
    (row,) = settings_of(snapshot(), snapshot(slug=OTHER, result=result))
    assert row == ["Version of python", "3.11", "3.12"]
    own = [read_external_selection(selection_file([at])) for at in (0, 1)]
    ((name, *values),) = settings_of(*(snapshot(request=request(own_indices=at)) for at in own))
    assert name == "Own indices"
    assert len({*values}) == 2
    assert all(value.startswith("Mine (") for value in values)


def parameters_of_critical(spec: str, **parameters):
    result = done_result()
    variant = result.variants[2]
    changed = dataclasses.replace(variant, spec=spec, params={**variant.params, **parameters})
    result.variants[2] = changed
    return result


def test_variants_are_matched_by_their_settings_and_not_by_what_their_spec_writes():
    spec = "snapkv+critical:budget=4"
    other = snapshot(slug=OTHER, result=parameters_of_critical(f"{spec},alpha=0.25"))
    assert [*outcomes_of(snapshot(), other)] == ["full", SNAPKV, spec]


def with_budget(budget: int, *, critical: bool = False, **changes) -> VariantResult:
    variant = kept_variant(critical=critical, kept=budget)
    return dataclasses.replace(variant, params={**variant.params, "budget": budget}, **changes)


def pairs(*runs) -> list[tuple[str, tuple[str, ...]]]:
    results = [dataclasses.replace(done_result(), variants=list(run)) for run in runs]
    shared = [pair for pair in pair_up(results) if len(pair.present) > 1]
    return [(pair.spec, pair.differs) for pair in shared]


def test_the_same_method_is_paired_though_a_parameter_differs_which_is_told():
    result = parameters_of_critical("snapkv+critical:budget=4", alpha=0.5)
    *_, row = beside_value([snapshot(), snapshot(slug=OTHER, result=result)])["rows"]
    assert row["cells"]["name"]["spec"] == "snapkv+critical:budget=4"
    assert [row["cells"][at]["title"] for at in "AB"] == ["alpha=0.25", "alpha=0.5"]


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
    "equal settings first and then by their order": (
        [(with_budget(3), with_budget(4), with_budget(8)), (with_budget(9), with_budget(4))],
        [("snapkv", ("budget=3", "budget=9")), ("snapkv:budget=4", ("", ""))],
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


def outcomes_of(*runs) -> dict[str, list]:
    """Of each method's row: outcome and text of every run, None where it has none."""
    rows = [row["cells"] for row in beside_value(runs)["rows"] if row["look"]]
    return {
        row["name"]["spec"]: [(c.get("outcome"), c["text"]) if c["text"] else None for c in each]
        for row in rows
        for each in [[cell for key, cell in row.items() if key != "name"]]
    }


@pytest.mark.parametrize("state", ["running", "failed", "cancelled", "queued"])
def test_an_unfinished_run_is_marked_and_has_no_outcomes(state):
    runs = [snapshot(), snapshot(slug=OTHER, state=state)]
    assert all(second is None for _, second in outcomes_of(*runs).values())
    assert beside_value(runs)["columns"][2]["unit"].endswith(f"not finished: {state}")


def test_differing_tokens_are_marked():
    result = changed_variant(token_ids=(1, 9, 4), token_texts=("one", " x", " y"))
    runs = [snapshot(), snapshot(slug=OTHER, result=result)]
    (row,) = [
        r["cells"] for r in beside_value(runs)["rows"] if r["cells"]["name"].get("spec") == SNAPKV
    ]
    assert row["B"]["pieces"] == [("one", False), (" x", True), (" y", True)]
    assert not any(differs for _, differs in row["A"]["pieces"])


def test_other_prompts_mark_no_text():
    prompt = dataclasses.replace(done_result().prompt, token_ids=tuple(range(1, 11)))
    result = dataclasses.replace(changed_variant(token_ids=(1, 9, 4)), prompt=prompt)
    runs = [snapshot(), snapshot(slug=OTHER, result=result)]
    cells = [row["cells"]["B"] for row in beside_value(runs)["rows"] if row["look"]]
    assert not any(differs for cell in cells for _, differs in cell["pieces"])
