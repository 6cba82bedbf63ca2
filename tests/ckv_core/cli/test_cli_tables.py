"""What stands in which column of what is printed of known metrics."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.cli.tables import number, print_points, share
from ckv_core.experiment.ablation import ablation
from ckv_core.experiment.runs import together
from ckv_core.records.records import HeldSeries, VariantResult
from tests.factories.printed import printed, table
from tests.factories.runs import array, keeping, measured, on_prompt, receipt, variant


@pytest.fixture
def show(monkeypatch, capsys, tmp_path):
    """Run a command whose runs, each on a prompt of its own, come out with these variants."""
    path = tmp_path / "context.txt"
    path.write_text("text", encoding="utf-8")

    def run(command: str, *runs: list[VariantResult], more: tuple[str, ...] = ()) -> str:
        contexts = ["--context", str(path)] * len(runs)
        results = [on_prompt(at, *variants) for at, variants in enumerate(runs)]
        return printed(monkeypatch, capsys, [command, *contexts, *more], *results)

    return run


@pytest.fixture
def several(capsys):
    """What is printed of several runs, each on a prompt of its own."""

    def run(*runs: list[VariantResult]) -> str:
        print_points(together([on_prompt(at, *variants) for at, variants in enumerate(runs)]))
        return capsys.readouterr().out

    return run


def test_what_rounds_to_nothing_has_no_sign():
    assert (number(-0.0), number(0.0), number(-1e-9)) == ("0", "0", "-1e-09")
    assert (share(-1e-9), share(-0.002)) == ("0.0%", "-0.2%")


# --- the first decoding step and its ablation -----------------------------------------------


def ablated(heads: list[list[float]], finals: list[float], base: list[float]):
    """The full cache and the first steps of an ablation; the last one knows its base's heads."""
    specs = [step.spec for step in ablation("snapkv:budget=64")][:4]
    steps = [
        variant(spec, measured(array(head), final, final + 1))
        for spec, head, final in zip(specs, heads, finals, strict=True)
    ]
    steps[-1] = replace(
        steps[-1], perturbation=replace(steps[-1].perturbation, base_head_l1=array(base))
    )
    return [variant("full"), *steps]


ONE = ablated(
    [[4, 4, 4, 4], [3, 5, 5, 5], [3, 3, 5, 5], [1, 2, 3, 5]], [10, 8, 11, 2], [2, 1, 4, 6]
)


def test_compare_prints_each_step_of_the_ablation(show):
    out = show("compare", ONE)
    assert {name: [*row.values()] for name, row in table(out, "ablation over").items()} == {
        "base": ["4", "-", "10", "11"],
        "base, not pooled": ["4.5", "25.0%", "8", "9"],
        "stage 2, no norm": ["4", "50.0%", "11", "12"],
        "CriticalKV": ["2.75", "75.0%", "2", "3"],
    }
    assert "head L1  heads below base  final L1  KL" in out


def test_compare_prints_what_a_variant_keeps_and_holds_and_how_far_it_moved(show):
    sizes = {"requested_entries": 600, "cache_bytes": 2_048, "full_cache_bytes": 4_096}
    held = HeldSeries(entries=(512, 1_520), cache_bytes=(1, 2), evicted=b"")
    moved = measured(array([4, 4, 4, 4]), 10, 0.25, array([5, 3, 5, 5]))
    kept = receipt(64, 512, warnings=("Watch out.",), **sizes)
    out = show("compare", [variant("snapkv:budget=1MiB", moved, receipt=kept, held=held)])
    assert (
        "   kept 512 of 600 requested entries; 2,048 of 4,096 bytes (1,048,576 requested)\n"
        "   held 512 entries at the first new token, 1,520 at the last\n"
        "   note: Watch out.\n"
        "   final hidden L1 10.0, KL 0.25 nats (first decoding step); "
        "head L1 below its base's in 75.0% of heads\n"
    ) in out


# --- bounds and other measured quantities ---------------------------------------------------


def bounded(sigma: list[float], hat: float = 0.0) -> list[VariantResult]:
    """The first head's theta-hat is `hat` beside its theta; what stage 2 kept has another mass."""
    theta = array([1, 2, 4, 4])
    arrays = {
        "sigma_stage1": array(sigma),
        "sigma_kept": array([0.25, 0.5, 0.25, 0.5]),
        "value_mass": theta * 8,
        "theta": theta,
        "theta_hat": theta + array([hat, 0, 0, 0]),
        "theta_relaxed": theta * 4,
    }
    moved = measured(array([0.25, 1.5, 1, 3]), 1, 1)
    return [
        variant("full"),
        replace(keeping("snapkv", [7], [7]), perturbation=moved, analysis=arrays),
    ]


COVERED = [0.6, 0.8, 0.4, 0.9]


def test_compare_prints_the_check_of_the_bounds(show):
    out = show("compare", bounded(COVERED, -0.5))
    told = out.partition("== snapkv")[2]
    assert "theta: bound of the kept set" not in told
    for line in (
        "Head L1, covered heads: 1.583",
        "theta, covered heads: 2.333",
        "theta-hat, covered heads: 2.167",
        "Relaxed theta, covered heads: 9.333",
        "covered, sigma > 0.5: 6 of 8 heads; chain broken in 2",
        "Attention mass of stage 1 (sigma): 0.675",
        "Tightness: head L1 / theta: 0.5",
        "Tightness per KV head: group L1 / theta: 0.5417",
        "Sigma over 0.5: 75.0%",
    ):
        assert f"   {line}\n" in told
    assert "chain broken" not in show("compare", [variant("full")])


def test_the_table_of_several_runs_has_bounds_and_quantities_with_the_n_of_each(several):
    none = bounded([0.1, 0.2, 0.5, 0.5])
    out = several(bounded(COVERED, -0.5), none)
    assert re.search(r"^Relaxed theta, covered heads +snapkv +9\.333, n = 1$", out, re.M)
    assert re.search(r"^Attention mass kept +snapkv +0\.375$", out, re.M)
    assert "covered heads" not in several(none, none)


# --- texts ----------------------------------------------------------------------------------


def scores(exact: float, f1: float, edit: float) -> dict[str, float]:
    return {"exact_match": exact, "token_f1": f1, "edit_similarity": edit}


def test_compare_prints_how_the_own_generations_differ(show):
    differs = {"agreement": 0.5, "first_difference": 1}
    judged = {"answer_found": True, "answer_scores": scores(0, 0.25, 0.75)}
    there = {"forced_kl": np.array([0, 0.5], np.float32)}
    out = show(
        "compare",
        [
            variant("full", answer_found=True),
            variant("snapkv", analysis=there, **differs, **judged),
            variant("adakv", agreement=1.0, answer_found=False),
            variant("pyramidkv", agreement=1.0, answer_found=False, stopped="length"),
        ],
    )
    found = table(out, "own generation")
    assert found["snapkv"] == {
        "outcome": "answered",
        "agreement": "50.0%",
        "first difference": "token 2",
        "KL there": "0.5",
        "token F1": "25.0%",
        "edit similarity": "75.0%",
        "bytes": "100.0%",
    }
    assert [*found["adakv"].values()] == ["missed", "100.0%", "none", "-", "-", "-", "100.0%"]
    assert [*found["pyramidkv"].values()] == ["cut", "100.0%", "none", "-", "-", "-", "100.0%"]
    assert [*found["full"].values()] == ["answered", "-", "-", "-", "-", "-", "100.0%"]
    plain = table(
        show("compare", [variant("full"), variant("snapkv", **differs)]), "own generation"
    )
    assert list(plain["snapkv"]) == [
        "outcome",
        "agreement",
        "first difference",
        "KL there",
        "bytes",
    ]
    assert plain["snapkv"]["outcome"] == "-"
    assert "own generation" not in show("compare", [variant("full")])


def test_the_table_of_several_runs_has_how_their_texts_differ(several):
    def texts(forced: dict[str, list[float]], late: int, **own) -> list[VariantResult]:
        analysis = {f"forced_{name}": np.array(row, np.float32) for name, row in forced.items()}
        return [
            variant("full", answer_found=True),
            variant("snapkv", analysis=analysis, **own),
            variant("adakv", agreement=0.25, first_difference=late),
        ]

    one = {"answer_found": True, "answer_scores": scores(0, 0.25, 0.5)}
    two = {"answer_found": False, "answer_scores": scores(0, 0.5, 0.75)}
    out = several(
        texts(
            {"top1": [1, 0, 1, 1], "kl": [0.5], "rank": [1, 4]},
            3,
            agreement=0.5,
            first_difference=1,
            **one,
        ),
        texts({"top1": [1, 1], "kl": [0.25], "rank": [1.5]}, 6, agreement=1.0, **two),
    )
    for line in (
        r"Same first choice.* +snapkv +87.5% \(32.8% to 99.0%\)",
        r"Exact match +snapkv +0.0% \(0.0% to 65.8%\)",
        r"Token F1 +snapkv +37.5% \(7.5% to 81.7%\)",
        r"Edit similarity +snapkv +62.5% \(18.3% to 92.5%\)",
    ):
        assert re.search(f"^{line}$", out, re.M)
    found = table(out, "A row is a variant")
    keys = ("Answered", "Missed", "Answer found", "Agreement", "Same text")
    assert {spec: tuple(row[key] for key in keys) for spec, row in found.items()} == {
        "full": ("2", "0", "100.0% (34.2% to 100.0%)", "-", "-"),
        "snapkv": ("1", "1", "50.0% (9.5% to 90.5%)", "75.0% (23.4% to 96.7%)", "1 of 2"),
        "adakv": ("0", "0", "-", "25.0% (3.7% to 74.2%)", "0 of 2"),
    }
    plain = [variant("full"), variant("snapkv", agreement=1.0)]
    (row,) = [r for s, r in table(several(plain, plain), "A row is").items() if s != "full"]
    assert (row["Agreement"], row["Same text"]) == ("100.0% (34.2% to 100.0%)", "2 of 2")
    assert "Answer found" not in row


def test_a_cut_text_is_counted_apart_and_in_pairs_answers_are_told_by_who_changed(several):
    def texts(cut: bool) -> list[VariantResult]:
        stopped = "length" if cut else "eos"
        plain = variant("snapkv", answer_found=True, stopped="eos")
        moved = variant("snapkv+critical", answer_found=False, stopped=stopped)
        return [variant("full", answer_found=True, stopped="eos"), plain, moved]

    out = several(texts(True), texts(False))
    found = table(out, "A row is a variant")
    assert {spec: cells["Cut"] for spec, cells in found.items()} == {
        "full": "0",
        "snapkv": "0",
        "snapkv+critical": "1",
    }
    assert found["snapkv+critical"]["Answer found"] == "0.0%, n = 1"
    assert "note: 1 of 6 texts was cut at 0 new tokens before an answer: neither right nor" in out
    lines = re.findall(r"^Answer found minus (.*?)  +(snapkv\S*) .*; (\+.*)$", out, re.M)
    assert lines == [
        ("the full cache's", "snapkv", "+0 -0, p = 1"),
        ("the full cache's", "snapkv+critical", "+0 -1, p = 1, n = 1"),
        ("the base's", "snapkv+critical", "+0 -1, p = 1, n = 1"),
    ]


# --- who holds a passage --------------------------------------------------------------------


def test_compare_prints_who_holds_a_passage_and_the_reference_answer(show):
    variants = [variant("full"), keeping("snapkv:budget=64", [3, 4, 7], [3, 7])]
    held = {
        "snapkv:budget=64": {
            "slots kept": "6 of 8",
            "share": "75.0%",
            "expected at random": "21.4%",
            "heads keeping all": "2 of 4",
        }
    }
    for option, words, title in (
        ("--evidence", "blue door", "evidence"),
        ("--answer", "Blue  door", "reference answer"),
    ):
        out = show("compare", variants, more=(option, words))
        assert f"{title} {words!r}: once in the compressed prompt, 2 tokens" in out
        assert table(out, title) == held
    same = show("compare", variants, more=("--answer", "door", "--evidence", "door"))
    assert same.count("in the compressed prompt, ") == 1
    missed = show("compare", variants, more=("--answer", "Zanzibar"))
    assert missed.count("does not occur in the compressed prompt") == 1
    assert "slots kept" not in missed + show("compare", variants)


# --- a sweep --------------------------------------------------------------------------------


def point(text: str, head: float, **more) -> VariantResult:
    """Final L1 and KL rise with the head L1; a base of 5 in the first head and 1 elsewhere."""
    base = array([5, 1, 1, 1]) if "+" in text else None
    return variant(text, measured(array([head] * 4), head * 10, head / 100, base), **more)


SEVERAL = ("--variant", "snapkv", "--budget", "64,256")


def swept() -> list[VariantResult]:
    sigma = {"sigma_stage1": array([0.4, 0.6, 0.7, 0.8], [0.9, 0.4, 0.6, 0.7])}
    judged = {"answer_found": True, "answer_scores": scores(0, 0.2, 0.5), "analysis": sigma}
    critical = "snapkv+critical:alpha=0.5,budget="
    return [
        variant("full"),
        point("snapkv:budget=64", 8, agreement=0.0),
        point("snapkv:budget=256", 4, agreement=0.5),
        point(f"{critical}64", 3, agreement=0.3, **judged),
        point(f"{critical}256", 2, agreement=0.6),
        point("adakv:budget=64", 12, agreement=0.1),
        point("adakv:budget=256", 6, agreement=0.2),
    ]


def test_sweep_prints_every_metric_of_a_point_and_the_budgets_of_equal_quality(show):
    out = show("compare", swept(), more=SEVERAL)
    known = {
        "Outcome": "answered",
        "Agreement": "30.0%",
        "Mean head L1": "3",
        "Final hidden L1": "30",
        "KL": "0.03",
        "Sigma over 0.5": "75.0%",
        "Token F1": "20.0%",
        "Edit similarity": "50.0%",
    }
    row = table(out, "every method and budget")["snapkv+critical:alpha=0.5,budget=64"]
    assert row.items() >= known.items()
    title = "budget needed for equal quality"
    saved = re.findall(r"^(\S+) +(\S+ at \d+) +(.*)$", out.partition(title)[2], re.M)
    needed = {(own, at): re.split(r" {2,}", cells) for own, at, cells in saved}
    (head,) = re.findall(r"^method +matches +(.*)$", out, re.M)
    heads = re.split(r" {2,}", head)
    by_head, by_agreement = heads.index("Mean head L1"), heads.index("Agreement")
    assert needed["snapkv", "adakv at 64"][by_head] == "64 or less"
    assert needed["snapkv", "adakv at 256"][by_head] == "160, 38 % less"
    assert needed["adakv", "snapkv at 64"][by_head] == "192, 200 % more"
    assert needed["adakv", "snapkv at 64"][by_agreement] == "nothing to match"
    assert needed["adakv", "snapkv at 256"][by_agreement] == "over 256"
    assert "N or less: already reached at the smallest budget; over N: not reached with" in out
    assert "Answer found" not in heads  # nothing lies between yes and no


def test_sweep_prints_the_gain_of_an_alpha_per_layer_and_per_head(show):
    by_alpha = {"0.5": ([1, 1, 4, 4], [3, 3, 3, 3]), "0.0": ([2, 2, 2, 2], [6, 6, 2, 2])}
    points = [
        variant(f"snapkv+critical:alpha={alpha},budget=64", measured(np.array(heads), 1, 1))
        for alpha, heads in by_alpha.items()
    ]
    assert table(show("compare", points, more=SEVERAL), "best alpha by head L1") == {
        "snapkv+critical": {
            "budget": "64",
            "best alpha": "0.5",
            "outcome at it": "-",
            "gain by layer": "9.1%",
            "gain by head": "27.3%",
        }
    }
