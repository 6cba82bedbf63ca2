"""A few saved runs side by side: what is equal, and what differs."""

import dataclasses

import numpy as np
import pytest

from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.records import RetainedSet, VariantResult
from tests.factories.app import request, snapshot
from tests.factories.runs import done_result, full_variant, kept_variant, selection_file
from ui.several.differences import (
    OTHER_PROMPTS,
    REFERENCE,
    beside_value,
    figures_value,
    layer_overlap,
    pair_up,
)

OTHER = "other0000000"
SNAPKV = "snapkv:budget=4"


def beside(result, **changes):
    """The results that differ between a run as it is and one with this result."""
    return figures_value([snapshot(), snapshot(slug=OTHER, result=result, **changes)])


def rows_of(value, spec: str) -> dict[str, dict[str, str]]:
    """Texts of a variant's rows by run."""
    rows = [row["cells"] for row in value["rows"] if row["cells"]["variant"]["text"] == spec]
    return {row["run"]["text"]: {key: cell["text"] for key, cell in row.items()} for row in rows}


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
    value = beside(done_result())
    assert (value["rows"], settings_of(snapshot(), snapshot(slug=OTHER))) == ([], [])
    assert value["note"] == (
        f"Equal in all runs that have them: full, {SNAPKV}, snapkv+critical:budget=4."
    )


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


def test_a_long_list_of_variants_is_shown_whole_and_a_long_text_cut():
    specs = tuple(f"snapkv+critical:budget={at},alpha=0.25" for at in range(64, 128))
    text = "word " * 100
    other = snapshot(slug=OTHER, request=request(variants=specs, context=f"{text} other"))
    first = snapshot(request=request(context=f"{text} first"))
    rows = {name: values for name, *values in settings_of(first, other)}
    assert rows["Variants"][1].split("\n") == list(specs)
    assert all(value.endswith("(506 characters)") for value in rows["Context"])


def parameters_of_critical(spec: str, **parameters):
    result = done_result()
    variant = result.variants[2]
    changed = dataclasses.replace(variant, spec=spec, params={**variant.params, **parameters})
    result.variants[2] = changed
    return result


def test_variants_are_matched_by_their_settings_and_not_by_what_their_spec_writes():
    spec = "snapkv+critical:budget=4"
    value = beside(parameters_of_critical(f"{spec},alpha=0.25"))
    assert value["note"] == f"Equal in all runs that have them: full, {SNAPKV}, {spec}."


def with_budget(budget: int, *, critical: bool = False, **changes) -> VariantResult:
    variant = kept_variant(critical=critical, kept=budget)
    return dataclasses.replace(variant, params={**variant.params, "budget": budget}, **changes)


def pairs(*runs) -> list[tuple[str, tuple[str, ...]]]:
    results = [dataclasses.replace(done_result(), variants=list(run)) for run in runs]
    shared = [pair for pair in pair_up(results) if len(pair.present) > 1]
    return [(pair.spec, pair.differs) for pair in shared]


def test_the_same_method_is_paired_though_a_parameter_differs_which_is_told():
    value = beside(parameters_of_critical("snapkv+critical:budget=4", alpha=0.5))
    rows = rows_of(value, "snapkv+critical:budget=4")
    assert {at: row["differs"] for at, row in rows.items()} == {"A": "alpha=0.25", "B": "alpha=0.5"}
    assert len(value["rows"]) == 2


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


def test_a_method_is_one_row_with_a_column_per_run():
    one = snapshot(result=dataclasses.replace(done_result(), variants=[full_variant()]))
    found = outcomes_of(one, snapshot(slug=OTHER))
    assert [*found] == ["full", SNAPKV, "snapkv+critical:budget=4"]
    assert found[SNAPKV][0] is None
    assert found[SNAPKV][1] is not None
    columns = beside_value([one, snapshot(slug=OTHER)])["columns"]
    assert [each["href"] for each in columns[1:]] == [f"/run?id={one.slug}", f"/run?id={OTHER}"]


@pytest.mark.parametrize("state", ["running", "failed", "cancelled", "queued"])
def test_an_unfinished_run_is_marked_and_has_no_outcomes(state):
    runs = [snapshot(), snapshot(slug=OTHER, state=state)]
    assert all(second is None for _, second in outcomes_of(*runs).values())
    assert beside_value(runs)["columns"][2]["unit"].endswith(f"not finished: {state}")
    assert figures_value(runs)["rows"] == []


def test_outcomes_and_figures_that_differ_are_shown_and_what_is_not_known_is_empty():
    runs = [changed_variant(answer_found=at) for at in (True, False, None)]
    value = figures_value([snapshot(slug=str(at), result=r) for at, r in enumerate(runs)])
    rows = rows_of(value, SNAPKV)
    assert [rows[at]["outcome"] for at in "ABC"] == ["answered", "cut", ""]
    assert (
        rows["A"]["agreement"],
        rows["A"]["kl"],
        rows["A"]["final"],
        rows["A"]["retained_entries"],
    ) == (
        "50%",
        "0.2500",
        "3.500",
        "24",
    )
    bare = rows_of(beside(changed_variant(agreement=None, perturbation=None)), SNAPKV)["B"]
    assert (bare["agreement"], bare["kl"], bare["final"]) == ("", "", "")
    moved = dataclasses.replace(full_variant(), answer_found=False, stopped="eos")
    result = dataclasses.replace(done_result(), variants=[moved])
    full = rows_of(figures_value([snapshot(), snapshot(slug=OTHER, result=result)]), "full")["B"]
    assert (full["agreement"], full["kl"], full["final"]) == (REFERENCE,) * 3


def test_a_variant_that_had_not_selected_is_left_out():
    result = done_result()
    blank = {"params": {}, "receipt": None, "perturbation": None, "agreement": None}
    result.variants = [dataclasses.replace(v, **blank) for v in result.variants]
    runs = snapshot(), snapshot(slug=OTHER, result=result)
    assert all(second is None for _, second in outcomes_of(*runs).values())


def test_differing_tokens_and_positions_are_named():
    kept = np.zeros((3, 2, 10), np.bool_)
    kept[..., 2:6] = True
    result = changed_variant(
        token_ids=(1, 9, 4), token_texts=("one", " x", " y"), retained=RetainedSet.from_mask(kept)
    )
    first, second = (row["cells"] for row in beside(result)["rows"])
    assert first["first"]["text"] == ""
    assert second["first"] == {"text": "A from token 2 on", "value": 2}
    runs = [snapshot(), snapshot(slug=OTHER, result=result)]
    (row,) = [
        r["cells"] for r in beside_value(runs)["rows"] if r["cells"]["name"].get("spec") == SNAPKV
    ]
    assert row["B"]["pieces"] == [("one", False), (" x", True), (" y", True)]
    assert not any(differs for _, differs in row["A"]["pieces"])
    assert second["overlap"] == {"text": "33.3%, least 33.3%", "value": pytest.approx(2 / 6)}
    assert second["layers"]["text"] == "0.333 0.333 0.333"
    assert second["only_base"]["text"] == "2 (0 't0 ', 1 't1 ')"
    assert second["only_own"]["text"] == "2 (4 't4 ', 5 't5 ')"


def test_other_prompts_are_compared_by_their_figures_alone():
    prompt = dataclasses.replace(done_result().prompt, token_ids=tuple(range(1, 11)))
    other = snapshot(slug=OTHER, result=dataclasses.replace(done_result(), prompt=prompt))
    value = figures_value([snapshot(), other])
    assert value["note"] == OTHER_PROMPTS
    assert not any(row["cells"]["first"]["text"] for row in value["rows"])
    assert {row["cells"]["run"]["text"] for row in value["rows"]} == {"A", "B"}


def test_layers_that_keep_nothing_overlap_fully():
    empty = RetainedSet.from_mask(np.zeros((2, 1, 4), np.bool_))
    assert layer_overlap(empty, empty) == [1.0, 1.0]
