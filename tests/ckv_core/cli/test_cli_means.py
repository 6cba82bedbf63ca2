"""Known values in every cell of what `analyse` prints; all are means over two prompts."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.ablation import ablation
from ckv_core.results.records import VariantResult
from tests.factories.printed import printed, table
from tests.factories.runs import array, keeping, measured, run_of, variant


@pytest.fixture
def show(monkeypatch, capsys, tmp_path):
    """Run `analyse` on two prompts whose results are these variants, and return what it prints."""
    path = tmp_path / "context.txt"
    path.write_text("text", encoding="utf-8")

    def run(first: list[VariantResult], second: list[VariantResult], answer: str = "") -> str:
        arguments = ["analyse", "--context", str(path), "--context", str(path), "--answer", answer]
        one, two = run_of(*first), run_of(*second)
        two.prompt = replace(two.prompt, token_ids=two.prompt.token_ids[::-1])
        return printed(monkeypatch, capsys, arguments, one, two)

    return run


def test_the_first_decoding_step(show):
    spec = "snapkv+critical:budget=64"
    one = measured(array([1, 2, 3, 4]), 10, 0.25, array([2, 1, 4, 5]))
    two = measured(array([3, 2, 1, 2]), 13, 0.5, array([2.5, 3, 2, 1]))
    out = show([variant("full"), variant(spec, one)], [variant("full"), variant(spec, two)])
    found = table(out, "first decoding step")
    assert found[spec] == {
        "head L1": "2.25",
        "final L1": "11.5",
        "KL": "0.375",
        "heads closer": "62.5%",
        "heads won": "4/8 50.0%",
    }
    assert set(found["full"].values()) == {"-"}


def test_the_ablation(show):
    specs = [step.spec for step in ablation("snapkv:budget=64")][:4]

    def steps(heads: tuple[list[int], ...], finals: tuple[int, ...]) -> list[VariantResult]:
        return [
            variant(spec, measured(array(head), final, 9))
            for spec, head, final in zip(specs, heads, finals, strict=True)
        ]

    one = steps(([4, 4, 4, 4], [3, 5, 5, 5], [3, 5, 5, 5], [1, 1, 1, 1]), (10, 8, 11, 2))
    two = steps(([2, 2, 2, 2], [1, 1, 3, 3], [3, 3, 3, 3], [1, 1, 1, 5]), (20, 12, 24, 6))
    found = table(show(one, two), "ablation over snapkv:budget=64")
    columns = ("head L1", "heads below base", "final L1 / base's", "n")
    assert {step: tuple(cells[each] for each in columns) for step, cells in found.items()} == {
        "base": ("3", "-", "1", "2"),
        "base, not pooled": ("3.25", "37.5%", "0.7", "2"),
        "stage 2, no norm": ("3.75", "12.5%", "1.15", "2"),
        "CriticalKV": ("1.5", "87.5%", "0.25", "2"),
    }


def bounded(heads: list[float], theta: list[float], sigma: list[float], hat: float):
    """The first head's theta-hat is `hat` in both layers; what stage 2 kept has another mass."""
    own = array(theta)
    lifted = own + array([hat, 0, 0, 0])
    arrays = {
        "sigma_stage1": array(sigma),
        "sigma_kept": array([0.3, 0.3, 0.3, 0.3]),
        "value_mass": own * 8,
        "theta": own,
        "theta_hat": lifted,
        "theta_relaxed": own * 4,
    }
    kept = keeping("snapkv", [7], [7]).retained
    return [variant("snapkv", measured(array(heads), 1, 1), analysis=arrays, retained=kept)]


def test_the_bounds(show):
    one = bounded([0.25, 1.5, 1, 3], [1, 2, 4, 4], [0.6, 0.8, 0.4, 0.9], 0.5)
    two = bounded([1, 1, 0.5, 1], [2, 2, 2, 4], [0.7, 0.7, 0.7, 0.9], -0.5)
    out = show(one, two)
    assert table(out, "bounds; the chain")["snapkv"] == {
        "covered heads": "14 of 16",
        "L1": "1.229",  # (4.75 / 3 + 3.5 / 4) / 2: the first prompt's third head is left out
        "theta": "2.417",
        "theta-hat": "2.438",
        "relaxed": "9.667",
        "n": "2",
        "chain broken": "2 of 14",
    }
    assert (
        table(out, "attention mass of stage 1")["snapkv"].items()
        >= {
            "sigma": "0.7125",
            "L1 / theta": "0.4375",
            "group L1 / theta": "0.4583",
            "sigma > 0.5": "87.5%",
        }.items()
    )


def forced(top1: list[float], kl: list[float], rank: list[float]) -> list[VariantResult]:
    arrays = {"forced_top1": top1, "forced_kl": kl, "forced_rank": rank}
    found = {name: np.array(values, np.float32) for name, values in arrays.items()}
    return [variant("full"), variant("snapkv", analysis=found)]


def test_the_full_caches_own_continuation(show):
    out = show(forced([1, 0, 1, 1], [0.5], [1, 4]), forced([1, 1], [0.25], [1.5]))
    assert table(out, "on the full cache's own continuation") == {
        "snapkv": {"same first choice": "0.875", "KL": "0.375", "rank": "2"}
    }


def generated(
    agreement: float, differs: int | None, found: bool, exact: float, f1: float, edit: float
) -> VariantResult:
    scores = {"exact_match": exact, "token_f1": f1, "edit_similarity": edit}
    return variant(
        "snapkv",
        agreement=agreement,
        first_difference=differs,
        answer_found=found,
        answer_scores=scores,
    )


def test_the_own_generation(show):
    full = variant("full", answer_found=True)
    early = variant("adakv", agreement=0.25, first_difference=3)
    late = variant("adakv", agreement=0.5, first_difference=6)
    one = [full, generated(0.5, 1, True, 0, 0.25, 0.5), early]
    two = [full, generated(1, None, False, 0, 0.5, 0.75), late]
    found = table(show(one, two), "own generation")
    assert found["snapkv"] == {
        "agreement": "75.0%",
        "texts that differ": "1 of 2",
        "at token": "2",
        "answer found": "50.0% [1.3%, 98.7%]",
        "exact match": "0.0% [0.0%, 84.2%]",
        "token F1": "37.5%",
        "edit similarity": "62.5%",
    }
    assert [*found["adakv"].values()] == ["37.5%", "2 of 2", "5.5", "-", "-", "-", "-"]
    assert [*found["full"].values()] == ["-", "-", "-", "100.0% [15.8%, 100.0%]", "-", "-", "-"]


def test_a_cut_text_is_counted_apart_and_in_pairs_answers_are_told_by_who_changed(show):
    def texts(found: bool, cut: bool) -> list[VariantResult]:
        stopped = "length" if cut else "eos"
        plain = variant("snapkv", answer_found=True, stopped="eos")
        moved = variant("snapkv+critical", answer_found=found, stopped=stopped)
        return [variant("full", answer_found=True, stopped="eos"), plain, moved]

    out = show(texts(False, True), texts(False, False), "blue")
    found = table(out, "own generation")
    assert {spec: cells["cut before it"] for spec, cells in found.items()} == {
        "full": "0 of 2",
        "snapkv": "0 of 2",
        "snapkv+critical": "1 of 2",
    }
    assert found["snapkv+critical"]["answer found"] == "0.0% [0.0%, 97.5%]"  # of one text
    assert "warning: 1 of 6 generated texts were cut at the limit of new tokens before" in out
    lines = re.findall(r"^(snapkv\S*) +(full|snapkv) +(\+.*)$", out, re.M)
    assert lines == [
        ("snapkv+critical", "snapkv", "+0 -1, p = 1"),
        ("snapkv", "full", "+0 -0, p = 1"),
        ("snapkv+critical", "full", "+0 -1, p = 1"),
    ]


def test_an_own_generation_has_no_scores_without_a_reference_answer(show):
    texts = [variant("full"), variant("snapkv", agreement=1.0)]
    found = table(show(texts, texts), "own generation")
    assert found["snapkv"] == {
        "agreement": "100.0%",
        "texts that differ": "0 of 2",
        "at token": "-",
    }
    assert "own generation" not in show([variant("full")], [variant("full")])


def test_every_measured_quantity_with_its_own_n(show):
    kept = {"sigma_kept": array([0.25, 0.5, 0.25, 0.5])}
    other = {"sigma_kept": array([0.5, 0.5, 0.5, 0.5]), "value_mass": array([1, 2, 3, 5])}
    out = show([variant("snapkv", analysis=kept)], [variant("snapkv", analysis=other)])
    assert re.search(r"^Attention mass kept +snapkv +0\.4375 +2$", out, re.M)
    assert re.search(r"^C: all attention times value norm +snapkv +2\.75 +1$", out, re.M)


def test_the_chain_is_averaged_over_covered_heads_and_a_prompt_without_any_is_not_counted(show):
    one = bounded([0.25, 1.5, 1, 3], [1, 2, 4, 4], [0.6, 0.8, 0.4, 0.9], 1e9)
    none = bounded([1, 1, 1, 1], [2, 2, 2, 2], [0.1, 0.2, 0.5, 0.5], 1e9)
    out = show(one, none)
    found = table(out, "bounds; the chain")["snapkv"]
    assert (found["covered heads"], found["n"], found["theta"]) == ("6 of 16", "1", "2.333")
    assert re.search(r"^Relaxed theta, covered heads +snapkv +9\.333 +1$", out, re.M)
    assert "of heads with sigma over 0.5): known in 1 of 2 prompts." in out
    nothing = table(show(none, none), "bounds; the chain")["snapkv"]
    assert [*nothing.values()] == ["0 of 16", "-", "-", "-", "-", "0", "0 of 0"]


def test_the_slots_that_hold_the_answer(show):
    full = variant("full")
    one = [full, keeping("snapkv:budget=64", [3, 7], [0, 7])]
    two = [full, keeping("snapkv:budget=64", [1, 3, 7], [3, 7])]
    found = table(show(one, two, "blue"), "slots that keep the reference answer's occurrences")
    assert found == {"snapkv:budget=64": {"kept": "75.0%", "expected at random": "17.9%", "n": "2"}}
