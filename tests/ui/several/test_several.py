"""Several runs together: their table and files, what is refused, the page and its routes."""

import dataclasses
from datetime import timedelta
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.errors import ConfigError
from ckv_core.experiment.points_table import points_json, points_table
from ckv_core.experiment.runs import together
from ckv_core.experiment.stats import MIN_PROMPTS
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.records import VariantResult
from tests.factories.app import (
    BAD_SLUGS,
    SLUG,
    START,
    FakeServices,
    prompt_run,
    request,
    runs_of,
    snapshot,
    store_run,
)
from tests.factories.runs import done_result, full_variant, kept_variant, selection_file
from tests.factories.tables import rows_of
from tests.ui.served_app import by
from ui.several.page import SeveralPage, beside_value, pair_up, take_together
from ui.tables.points import look_values, points_csv

CRITICAL = "snapkv+critical:budget=64,alpha=0.25"


# --- a few saved runs side by side: what is equal, and what differs ------------------------

OTHER = "other0000000"


def runs_with(count: int, *specs: str, **changes):
    """Runs of these variants alone, changed; of all without a SPEC."""
    runs = runs_of(count)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(v, **changes)
            for v in run.result.variants
            if not specs or v.spec in specs
        ]
    return runs


def value_of(found) -> dict:
    return points_table(found).value(look_values(found))


def table_of(found) -> dict[str, dict[str, str]]:
    """Texts of the table by SPEC and column."""
    rows = [row["cells"] for row in value_of(found)["rows"]]
    return {row["spec"]["text"]: {key: cell["text"] for key, cell in row.items()} for row in rows}


def opened(ids: str, *runs, view: str = "") -> list:
    """Notice, then whether each part is shown, with its values: table, differences."""
    with gr.Blocks(analytics_enabled=False):
        page = SeveralPage(FakeServices(*runs))
    shown = page.open(SimpleNamespace(query_params={"ids": ids, "view": view}))
    for at in (1, 4):
        shown[at] = shown[at]["visible"]
    return shown


# --- the table ------------------------------------------------------------------------------


def test_a_variant_that_was_run_twice_on_a_prompt_counts_once_by_its_newest_run():
    newer = prompt_run(1, better=0.9, created_at=START + timedelta(days=1))
    for runs in ([*runs_of(2), newer], [newer, *runs_of(2)]):  # whatever the address says first
        found = take_together(runs)
        (critical,) = (row for row in found.rows if row.spec == CRITICAL)
        assert (found.n, critical.mean("final").n) == (2, 2)
        assert critical.mean("final").mean == pytest.approx(100 * (0.5 + 0.9) / 2)


def test_the_full_cache_is_shown_with_what_it_was_judged_by_and_as_what_is_subtracted():
    runs = runs_with(3, "full", CRITICAL, answer_found=False, stopped="eos")
    for run in runs[:2]:
        run.result.variants[0] = dataclasses.replace(run.result.variants[0], answer_found=True)
    rows = table_of(take_together(runs))
    assert rows["full"]["variant"] == "Full cache"
    assert (rows["full"]["answered"], rows["full"]["missed"]) == ("2", "1")
    assert rows["full"]["answer"].startswith("66.7 % (20.8 % to 93.9 %)")
    assert rows[CRITICAL]["answer"] == "0.0 % (0.0 % to 56.1 %)"
    assert rows[CRITICAL]["answer_full"] == "-66.7 % (-93.9 % to +26.9 %); +0 -2, p = 0.5"
    assert "answer_full" not in rows["full"]


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (runs_with(2, "full"), "full cache alone"),
        ([prompt_run(1), prompt_run(2, state="failed")], "runabc2 is not done"),
    ],
    ids=["nothing compared", "unfinished"],
)
def test_what_cannot_be_taken_together_is_refused(runs, sentence):
    with pytest.raises(ConfigError, match=sentence):
        take_together(runs)


# --- what was measured of the paper's quantities ---------------------------------------------


def test_the_file_has_every_difference_of_a_pair():
    found = take_together(runs_of(MIN_PROMPTS))
    rows = rows_of(points_csv(found))
    own = [row for row in rows if row["spec"] == CRITICAL]
    assert {(row["budget"], row["budget_unit"]) for row in own} == {("64", "tokens")}
    (pair,) = [each for each in found.pairs if each.row.spec == CRITICAL]
    (difference,) = [row for row in own if row["metric"] == "final" and row["minus"]]
    assert difference["minus"] == pair.other.spec == "snapkv:budget=64"
    wanted = pair.differences["final"]
    assert float(difference["mean"]) == wanted.mean.mean
    assert (difference["lower"], difference["p"]) == (str(wanted.lower), "")


# --- the page and its routes ----------------------------------------------------------------


def test_the_address_opens_the_runs_together_and_a_few_beside_one_another():
    ids = "runabc0,runabc1, runabc2"
    notice, together, table, _, beside, differences = opened(ids, *runs_of(3))
    assert (together, beside) == (True, True)
    assert notice["text"].startswith("3 prompts, tiny.")
    assert [address for _, address in notice["links"][:2]] == [
        f"/several/runabc0,runabc1,runabc2/means.{kind}" for kind in ("csv", "json")
    ]
    assert len(table["rows"]) == 17
    assert [column["key"] for column in differences["columns"]] == ["name", "A", "B", "C"]
    many = opened(",".join(f"runabc{at}" for at in range(5)), *runs_of(5))
    assert (many[1], many[4]) == (True, False)
    for view, seen in (("table", (True, False)), ("beside", (False, True))):
        one = opened(ids, *runs_of(3), view=view)
        assert (one[1], one[4]) == seen


def test_runs_without_a_common_table_still_differ():
    notice, together, _, _, beside, differences = opened(
        f"{SLUG},{OTHER}", snapshot(), snapshot(slug=OTHER, state="failed")
    )
    assert (notice["tone"], together, beside) == ("warn", False, True)
    assert notice["text"] == (
        f"No common table: Run {OTHER} is not done; leave it out or wait for its end."
    )
    assert differences["columns"][2]["unit"].endswith("not finished: failed")


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        *((ids, "Choose 2 to 100 different runs") for ids in ("", SLUG, f"{SLUG},{SLUG}")),
        (",".join(f"run{at}" for at in range(101)), "the address names 101"),
        *((f"{SLUG},{slug}", "no") for slug in BAD_SLUGS if len(slug.split()) == 1),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(ids, sentence):
    notice, together, _, _, beside, _ = opened(ids, *runs_of(2))
    assert (notice["tone"], together, beside) == ("error", False, False)
    assert sentence in notice["text"]
    assert notice["text"].endswith(".")


@pytest.fixture(scope="module")
def guarded(team_app):
    """An app with logins, with two runs of Ann's and one of Bob's."""
    slugs = [
        store_run(team_app.services, run.request, run.result, owner)
        for run, owner in zip(runs_of(3), ("ann", "ann", "bob"), strict=True)
    ]
    return team_app, slugs


PATHS = ("figure/budget", "means.csv", "means.json")


@pytest.mark.parametrize("path", PATHS)
def test_charts_and_data_of_several_runs_are_for_whoever_may_read_all_of_them(guarded, path):
    app, (first, second, foreign) = guarded
    with app.client("ann") as ann, app.client() as nobody:
        own = ann.get(f"/several/{first},{second}/{path}")
        assert own.status_code == 200
        assert own.headers["cache-control"] == "no-store"
        mixed = ann.get(f"/several/{first},{foreign}/{path}")
        unknown = ann.get(f"/several/{first},zzz999zzz999/{path}")
        assert (mixed.status_code, unknown.status_code) == (404, 404)
        assert mixed.text.replace(foreign, "") == unknown.text.replace("zzz999zzz999", "")
        assert nobody.get(f"/several/{first},{second}/{path}").status_code == 401
        with by("ann"):
            token = app.services.shares.create(first, "1 day")
        nobody.get(f"/s/{token}")  # a link to one of them opens not both
        assert nobody.get(f"/several/{first},{second}/{path}").status_code == 401


@pytest.mark.parametrize(
    "name", ["figure/nothing", "figure/budget?x=<b>", "means.csv", "means.json"]
)
def test_a_hostile_address_is_answered_plainly(guarded, name):
    app, (first, *_) = guarded
    with app.client("ann") as ann:
        for slugs in (f"{first},{first}", "..%2f..%2fetc", ",", f"{first},<script>"):
            answer = ann.get(f"/several/{slugs}/{name}")
            assert answer.status_code == 404
            assert not answer.headers["content-type"].startswith("text/html")


def test_the_json_is_what_the_command_writes(guarded):
    app, (first, second, _) = guarded
    with app.client("ann") as ann:
        found = ann.get(f"/several/{second},{first}/means.json").json()
    assert found == points_json(together([run.result for run in runs_of(2)]))


@pytest.mark.parametrize("former", ["aggregate", "compare-runs"])
def test_a_former_address_leads_to_the_page_with_its_query(guarded, former):
    app, _ = guarded
    with app.client("ann") as ann:
        answer = ann.get(f"/{former}?ids=a,b", follow_redirects=False)
    assert answer.status_code == 308
    assert answer.headers["location"].endswith("/several?ids=a,b")


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
        ["Budgets", "4 tokens", "5 tokens"],
        ["New tokens", "64", "9"],
    ]
    result = dataclasses.replace(done_result(), environment={"python": "3.12"})
    (row,) = settings_of(snapshot(), snapshot(slug=OTHER, result=result))
    assert row == ["Version of python", "3.11", "3.12"]
    own = [read_external_selection(selection_file([at])) for at in (0, 1)]
    ((name, *values),) = settings_of(*(snapshot(request=request(own_indices=at)) for at in own))
    assert name == "External selections"
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
    assert row["B"]["href"] == f"/run?id={OTHER}#variant=1"


def test_other_prompts_mark_no_text():
    prompt = dataclasses.replace(done_result().prompt, token_ids=tuple(range(1, 11)))
    result = dataclasses.replace(changed_variant(token_ids=(1, 9, 4)), prompt=prompt)
    runs = [snapshot(), snapshot(slug=OTHER, result=result)]
    cells = [row["cells"]["B"] for row in beside_value(runs)["rows"] if row["look"]]
    assert not any(differs for cell in cells for _, differs in cell["pieces"])
