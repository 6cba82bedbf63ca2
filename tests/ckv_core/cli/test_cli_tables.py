"""What stands in which column of what is printed of known metrics."""

import re
from types import SimpleNamespace

import pytest

from ckv_core import cli
from ckv_core.cli.tables import number, share
from ckv_core.records.events import RunResult
from ckv_core.records.records import HeldSeries, VariantResult
from ckv_core.records.run_request import RunRequest
from tests.factories.runs import PROMPT, array, keeping, measured, on_prompt, receipt, variant


@pytest.fixture
def show(monkeypatch, capsys, tmp_path):
    """Return what a command prints for runs on different prompts that have these variants."""
    path, loaded = tmp_path / "context.txt", SimpleNamespace(parameters=None)
    path.write_text("text", encoding="utf-8")

    def printed(command: str, *runs: list[VariantResult], more: tuple[str, ...] = ()) -> str:
        left = [on_prompt(at, *variants) for at, variants in enumerate(runs)]

        def run(request: RunRequest, *_arguments: object) -> RunResult:
            result = left.pop(0)
            result.kind = request.kind
            return result

        monkeypatch.setattr("ckv_core.cli.running.load", lambda _request: (loaded, 0.0))
        monkeypatch.setattr("ckv_core.cli.running.run", run)
        monkeypatch.setattr("ckv_core.cli.running.tokenised", lambda *_arguments: PROMPT)
        assert cli.main([command, *["--context", str(path)] * len(runs), *more]) == 0
        assert not left
        return capsys.readouterr().out

    return printed


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """Cells by the first column and the head of the table whose title begins like this."""
    (found,) = [part for part in out.split("\n\n") if f"\n{part}".count(f"\n{title}")]
    lines = f"\n{found}".split(f"\n{title}")[1].splitlines()[1:]
    rows = [re.split(r" {2,}", line) for line in lines if "  " in line]
    head, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def test_what_rounds_to_nothing_has_no_sign():
    assert (number(-0.0), number(0.0), number(-1e-9)) == ("0", "0", "-1e-09")
    assert (share(-1e-9), share(-0.002)) == ("0.0 %", "-0.2 %")


# --- the first decoding step and its ablation -----------------------------------------------


def test_compare_prints_the_table_of_the_page_a_row_per_spec(show):
    sizes = {"requested_entries": 600, "cache_bytes": 2**20, "full_cache_bytes": 2**21}
    held = HeldSeries(entries=(512, 1_520), cache_bytes=(1, 2), evicted=b"")
    moved = measured(array([4, 4, 4, 4]), 10, 0.25, array([5, 3, 5, 5]))
    kept = receipt(64, 512, warnings=("Watch out.",), **sizes)
    spec = "snapkv:budget=2MiB"
    out = show("compare", [variant(spec, moved, receipt=kept, held=held)])
    assert table(out, "Metrics of every method")[spec] == {
        "Cache share (of full)": "50.0 %",
        "Kept entries (requested / used)": "600 / 512",
        "Cache (MiB, requested / used)": "2.02 / 1.00",
        "KL, first step (nats)": "0.250",
        "Final hidden (L1)": "10.00",
        "Mean head (L1)": "4.000",
        "Heads closer to the full cache (than without CriticalKV)": "75 % of 8",
    }
    assert table(out, "Further metrics") == {
        "Held at the end (entries)": {"SPEC": spec, "Value": "1,520"},
        "Worst head L1": {"SPEC": spec, "Value": "4.000"},
    }
    assert "\nSnapKV: Watch out.\n" in out


# --- who holds a passage --------------------------------------------------------------------


def test_compare_prints_who_holds_a_passage_and_the_reference_answer(show):
    variants = [variant("full"), keeping("snapkv:budget=64", [3, 4, 7], [3, 7])]
    held = {
        "snapkv:budget=64": {
            "slots kept": "6 of 8",
            "share": "75.0 %",
            "expected at random": "21.4 %",
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
