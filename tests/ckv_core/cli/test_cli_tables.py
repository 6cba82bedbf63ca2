"""Known values in every cell of what `compare` and `sweep` print."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.ablation import ablation
from ckv_core.cli.tables import number, share
from ckv_core.results.records import VariantResult
from tests.factories.printed import printed, table
from tests.factories.runs import array, keeping, measured, run_of, variant


@pytest.fixture
def show(monkeypatch, capsys, tmp_path):
    """Run a command whose result is these variants."""
    path = tmp_path / "context.txt"
    path.write_text("text", encoding="utf-8")

    def run(command: str, *variants: VariantResult, more: tuple[str, ...] = ()) -> str:
        arguments = [command, "--context", str(path), *more]
        return printed(monkeypatch, capsys, arguments, run_of(*variants))

    return run


def test_what_rounds_to_nothing_has_no_sign():
    assert (number(-0.0), number(0.0), number(-1e-9)) == ("0", "0", "-1e-09")
    assert (share(-1e-9), share(-0.002)) == ("0.0%", "-0.2%")


def test_compare_prints_each_step_of_the_ablation(show):
    specs = [step.spec for step in ablation("snapkv:budget=64")][:4]
    heads = ([4, 4, 4, 4], [3, 5, 5, 5], [3, 3, 5, 5], [1, 2, 3, 5])
    out = show(
        "compare",
        *(
            variant(spec, measured(array(head), final, kl))
            for spec, head, final, kl in zip(
                specs, heads, (10, 8, 11, 2), (6, 7, 9, 12), strict=True
            )
        ),
    )
    assert {name: [*row.values()] for name, row in table(out, "ablation over").items()} == {
        "base": ["4", "-", "10", "6"],
        "base, not pooled": ["4.5", "25.0%", "8", "7"],
        "stage 2, no norm": ["4", "50.0%", "11", "9"],
        "CriticalKV": ["2.75", "75.0%", "2", "12"],
    }
    assert "head L1  heads below base  final L1  KL" in out


def test_compare_prints_how_the_own_generations_differ(show):
    scores = {"exact_match": 0.0, "token_f1": 0.25, "edit_similarity": 0.75}
    out = show(
        "compare",
        variant("full", answer_found=True),
        variant(
            "snapkv",
            agreement=0.5,
            first_difference=1,
            answer_found=True,
            answer_scores=scores,
            analysis={"forced_kl": np.array([0, 0.5], np.float32)},
        ),
        variant("adakv", agreement=1.0, answer_found=False),
        variant("pyramidkv", agreement=1.0, answer_found=False, stopped="length"),
    )
    found = table(out, "own generation")
    assert found["snapkv"] == {
        "answer": "yes",
        "agreement": "50.0%",
        "first difference": "token 2",
        "KL there": "0.5",
        "token F1": "25.0%",
        "edit similarity": "75.0%",
        "bytes": "100.0%",
    }
    assert [*found["adakv"].values()] == ["no", "100.0%", "none", "-", "-", "-", "100.0%"]
    assert [*found["pyramidkv"].values()] == ["cut", "100.0%", "none", "-", "-", "-", "100.0%"]
    assert [*found["full"].values()] == ["yes", "-", "-", "-", "-", "-", "100.0%"]
    plain = show("compare", variant("full"), variant("snapkv", agreement=0.25, first_difference=0))
    assert table(plain, "own generation")["snapkv"] == {
        "answer": "-",
        "agreement": "25.0%",
        "first difference": "token 1",
        "KL there": "-",
        "bytes": "100.0%",
    }
    assert "own generation" not in show("compare", variant("full"))


def test_compare_prints_the_check_of_the_bounds(show):
    theta = array([1, 2, 4, 4])
    lower = array([1, 1.5, 4, 4])
    bounds = {
        "sigma_stage1": array([0.6, 0.8, 0.4, 0.9]),
        "sigma_kept": array([0.3, 0.3, 0.3, 0.3]),
        "value_mass": theta * 8,
        "theta": theta,
        "theta_hat": lower,
        "theta_relaxed": theta * 2,
    }
    out = show(
        "compare",
        variant("full"),
        replace(
            keeping("snapkv", [7], [7]),
            perturbation=measured(array([0.25, 1.5, 1, 3]), 1, 1),
            analysis=bounds,
        ),
    )
    found = table(out, "bounds; the chain")
    assert list(found) == ["snapkv"]
    assert found["snapkv"] == {
        "covered heads": "6 of 8",
        "L1": "1.583",
        "theta": "2.333",
        "theta-hat": "2.167",
        "relaxed": "4.667",
        "n": "1",
        "chain broken": "2 of 6",
    }
    assert (
        table(out, "attention mass of stage 1")["snapkv"].items()
        >= {
            "sigma": "0.675",
            "L1 / theta": "0.5",
            "group L1 / theta": "0.5417",
            "sigma > 0.5": "75.0%",
        }.items()
    )
    told = out.partition("== snapkv")[2].partition("bounds;")[0]
    assert "theta: bound of the kept set" not in told
    for line in (
        "Head L1, covered heads: 1.583",
        "theta, covered heads: 2.333",
        "theta-hat, covered heads: 2.167",
        "Relaxed theta, covered heads: 4.667",
        "covered, sigma > 0.5: 6 of 8 heads",
    ):
        assert f"   {line}\n" in told
    assert "bounds; the chain" not in show("compare", variant("full"))


def test_compare_prints_who_holds_a_passage(show):
    out = show(
        "compare",
        variant("full"),
        keeping("snapkv:budget=64", [3, 4, 7], [3, 7]),
        more=("--evidence", "blue door"),
    )
    assert "evidence 'blue door': once in the compressed prompt, 2 tokens" in out
    found = table(out, "evidence 'blue door'")
    assert found == {
        "snapkv:budget=64": {
            "slots kept": "6 of 8",
            "share": "75.0%",
            "expected at random": "21.4%",
            "heads keeping all": "2 of 4",
        }
    }


def test_compare_prints_who_holds_the_reference_answer(show):
    variants = (variant("full"), keeping("snapkv:budget=64", [3, 4, 7], [3, 7]))
    out = show("compare", *variants, more=("--answer", "Blue  door"))
    assert "reference answer 'Blue  door': once in the compressed prompt, 2 tokens" in out
    found = table(out, "reference answer")["snapkv:budget=64"]
    assert (found["slots kept"], found["expected at random"]) == ("6 of 8", "21.4%")
    same = show("compare", *variants, more=("--answer", "door", "--evidence", "door"))
    assert same.count("in the compressed prompt, ") == 1
    missed = show("compare", *variants, more=("--answer", "Zanzibar"))
    assert missed.count("does not occur in the compressed prompt") == 1
    assert "slots kept" not in missed + show("compare", *variants)


def point(text: str, head: float, **more) -> VariantResult:
    """Final L1 and KL rise with the head L1; a base of 5 in the first head and 1 elsewhere."""
    heads = array([head] * 4)
    base = array([5, 1, 1, 1]) if "+" in text else None
    return variant(text, measured(heads, head * 10, head / 100, base), **more)


def scores(exact: float, f1: float, edit: float) -> dict[str, float]:
    return {"exact_match": exact, "token_f1": f1, "edit_similarity": edit}


def swept(exact: float = 0.0) -> list[VariantResult]:
    sigma = {"sigma_stage1": array([0.4, 0.6, 0.7, 0.8], [0.9, 0.4, 0.6, 0.7])}
    critical = "snapkv+critical:alpha=0.5,budget="
    shared = {"answer_found": True, "analysis": sigma}
    return [
        variant("full"),
        point("snapkv:budget=64", 8, agreement=0.0, answer_scores=scores(0, 0.125, 0.5)),
        point("snapkv:budget=256", 4, agreement=0.5, answer_scores=scores(exact, 0.25, 0.5)),
        point(f"{critical}64", 3, agreement=0.3, answer_scores=scores(0, 0.2, 0.5), **shared),
        point(f"{critical}256", 2, agreement=0.6, answer_scores=scores(exact, 0.7, 0.5)),
        point("adakv:budget=64", 12, agreement=0.1, answer_scores=scores(0, 0.1, 0.5)),
        point("adakv:budget=256", 6, agreement=0.2, answer_scores=scores(0, 0.1, 0.5)),
    ]


def test_sweep_prints_every_figure_of_a_point(show):
    out = show("sweep", *swept(), more=("--yes",))
    points = out.partition("\n\nbudget of equal")[0]
    (line,) = re.findall(r"^method .*$", points, re.M)
    (row,) = re.findall(r"^snapkv\+critical:alpha=0\.5 +64 .*$", points, re.M)
    cells = dict(zip(re.split(r" {2,}", line), re.split(r" {2,}", row), strict=True))
    known = {
        "method": "snapkv+critical:alpha=0.5",
        "budget": "64",
        "head L1": "3",
        "final L1": "30",
        "KL": "0.03",
        "heads closer": "25.0%",
        "agreement": "30.0%",
        "answer": "yes",
        "Sigma over 0.5": "75.0%",
        "Token F1": "20.0%",
        "Edit similarity": "50.0%",
    }
    assert cells.items() >= known.items()


def test_sweep_prints_the_budget_of_equal_quality_and_the_saving(show):
    out = show("sweep", *swept(), more=("--yes",))
    found = table(out, "budget of equal Mean head L1 as adakv")
    assert found["snapkv"] == {"at 64": "64 or less", "at 256": "128, 50 % less"}
    found = table(out, "budget of equal Mean head L1 as snapkv")
    assert found["adakv"] == {"at 64": "161, 152 % more", "at 256": "over 256"}
    assert found["snapkv+critical:alpha=0.5"] == {"at 64": "64 or less", "at 256": "64 or less"}
    assert "N or less: already reached at the smallest budget; over N: not reached with" in out


def test_a_target_that_no_setting_reaches_has_no_saving(show):
    out = show("sweep", *swept(), more=("--yes",))
    found = table(out, "budget of equal Agreement as snapkv")
    assert found["adakv"] == {"at 64": "nothing to match", "at 256": "over 256"}
    assert "; nothing to match: the point to be matched is at 0 itself\n" in out
    assert "budget of equal Answer" not in out  # nothing lies between yes and no


def test_sweep_prints_what_oracles_reach_at_each_budget(show):
    def limited(text: str, attention: float) -> VariantResult:
        found = {"oracle_attention_l1": attention, "oracle_critical_l1": attention / 2}
        arrays = {name: array([value] * 4) for name, value in found.items()}
        return point(text, 8, analysis=arrays)

    out = show(
        "sweep",
        limited("snapkv:budget=64", 6),
        limited("snapkv:budget=256", 2),
        limited("snapkv+critical:alpha=0.0,budget=64", 6),
        limited("snapkv+critical:alpha=0.0,budget=256", 2),
        limited("adakv:budget=64", 5),
        more=("--yes",),
    )
    assert table(out, "mean head L1 of oracles with the head budgets of snapkv and 1 more;") == {
        "true attention": {"at 64": "6", "at 256": "2"},
        "true attention times value norm": {"at 64": "3", "at 256": "1"},
    }
    found = table(out, "mean head L1 of oracles with the head budgets of adakv;")
    assert found["true attention"] == {"at 64": "5"}
    assert "oracles" not in show("sweep", *swept(), more=("--yes",))


def test_sweep_prints_the_gain_of_an_alpha_per_layer_and_per_head(show):
    by_alpha = {"0.5": ([1, 1, 4, 4], [3, 3, 3, 3]), "0.0": ([2, 2, 2, 2], [6, 6, 2, 2])}
    out = show(
        "sweep",
        *(
            variant(f"snapkv+critical:alpha={alpha},budget=64", measured(np.array(heads), 1, 1))
            for alpha, heads in by_alpha.items()
        ),
        more=("--yes",),
    )
    assert table(out, "best alpha by head L1") == {
        "snapkv+critical": {
            "budget": "64",
            "best alpha": "0.5",
            "outcome at it": "-",
            "gain by layer": "9.1%",
            "gain by head": "27.3%",
        }
    }
