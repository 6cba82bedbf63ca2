"""What stands in which column of what is printed of known metrics."""

import re
from dataclasses import replace

import pytest

from ckv_core.cli.tables import number, share
from ckv_core.experiment.ablation import ablation
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
    assert {name: [*row.values()] for name, row in table(out, "Ablation over").items()} == {
        "base": ["4", "-", "10", "11"],
        "base, not pooled": ["4.5", "25.0%", "8", "9"],
        "stage 2, no norm": ["4", "50.0%", "11", "12"],
        "CriticalKV": ["2.75", "75.0%", "2", "3"],
    }
    assert "Head L1  Heads below base  Final L1  KL" in out


def test_compare_prints_the_table_of_the_page_a_row_per_spec(show):
    sizes = {"requested_entries": 600, "cache_bytes": 2**20, "full_cache_bytes": 2**21}
    held = HeldSeries(entries=(512, 1_520), cache_bytes=(1, 2), evicted=b"")
    moved = measured(array([4, 4, 4, 4]), 10, 0.25, array([5, 3, 5, 5]))
    kept = receipt(64, 512, warnings=("Watch out.",), **sizes)
    spec = "snapkv:budget=2MiB"
    out = show("compare", [variant(spec, moved, receipt=kept, held=held)])
    assert table(out, "Receipt and metrics of every variant")[spec] == {
        "Of full (bytes)": "50.0%",
        "Kept entries (requested / used)": "600 / 512",
        "Cache (MiB, requested / used)": "2.02 / 1.00",
        "KL, first step (nats)": "0.250",
        "Final hidden (L1)": "10.00",
        "Mean head (L1)": "4.000",
        "Heads closer to the full cache (than without CriticalKV)": "75% of 8",
    }
    assert table(out, "Further metrics") == {
        "Held at the end (entries)": {"SPEC": spec, "Value": "1,520"},
        "Worst head L1": {"SPEC": spec, "Value": "4.000"},
    }
    assert "\nSnapKV: Watch out.\n" in out


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
    assert "   covered, sigma > 0.5: 6 of 8 heads; chain broken in 2\n" in out
    assert "theta: bound of the kept set" not in out
    for label, value in {
        "Head L1, covered heads": "1.583",
        "theta, covered heads": "2.333",
        "theta-hat, covered heads": "2.167",
        "Relaxed theta, covered heads": "9.333",
        "Attention mass of stage 1 (sigma)": "0.6750",
        "Tightness: head L1 / theta": "0.5000",
        "Tightness per KV head: group L1 / theta": "0.5417",
        "Sigma over 0.5": "75%",
    }.items():
        assert re.search(rf"^{re.escape(label)}.* +snapkv +{value}$", out, re.M), label
    assert "chain broken" not in show("compare", [variant("full")])


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


def test_sweep_prints_the_budgets_of_equal_quality(show):
    critical = "snapkv+critical:alpha=0.5,budget="
    swept = [
        variant("full"),
        point("snapkv:budget=64", 8, agreement=0.0),
        point("snapkv:budget=256", 4, agreement=0.5),
        point(f"{critical}64", 3, agreement=0.3, answer_found=True),
        point(f"{critical}256", 2, agreement=0.6),
        point("adakv:budget=64", 12, agreement=0.1),
        point("adakv:budget=256", 6, agreement=0.2),
    ]
    out = show("compare", swept, more=SEVERAL)
    assert table(out, "All points of the sweep")[f"{critical}64"]["Outcome"] == "answered"
    title = "Budget needed for equal quality"
    part = out.partition(title)[2]
    saved = re.findall(r"^(\S+)(.*?)  +(\S+ at \d+) +(.*)$", part, re.M)
    needed = {(own, at): re.split(r" {2,}", cells) for own, _, at, cells in saved}
    (head,) = re.findall(r"^Method +Matches +(.*)$", part, re.M)
    by_agreement = re.split(r" {2,}", head).index("Needs, by Agreement (budget)")
    assert needed["AdaKV", "SnapKV at 64"][by_agreement].startswith("nothing to match")
    assert needed["AdaKV", "SnapKV at 256"][by_agreement].startswith("over 256 (not reached")
    for row in ("SnapKV .*64 or less", "SnapKV .*160, 38 % less", "AdaKV .*192, 200 % more"):
        assert re.search(rf"^{row}", part, re.M)
    assert "by Answer found" not in head  # nothing lies between yes and no
