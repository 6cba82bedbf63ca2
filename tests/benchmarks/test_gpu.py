"""`make gpu` from end to end, with a tiny shape on the CPU; its figures here mean nothing."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import gpu


@pytest.fixture
def quick() -> gpu.Setting:
    methods = ("snapkv", "adakv:store=int4")
    return replace(gpu.SMALL, lengths=(100, 120), batches=(1,), methods=methods, warm=1, steps=2)


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose header has this cell."""
    (found,) = (part for part in text.split("\n\n") if f"| {header} |" in part)
    return [line[2:-2].split(" | ") for line in found.splitlines()[2:]]


def test_every_cell_is_measured_and_a_length_that_is_refused_costs_no_other(quick, monkeypatch):
    whole = gpu.prefill

    def prefill(loaded, ids, *given):
        if len(ids) == 100:
            raise torch.OutOfMemoryError("CUDA out of memory | here\nTried to allocate")
        return whole(loaded, ids, *given)

    monkeypatch.setattr(gpu, "prefill", prefill)
    text = gpu.report(quick, lambda: "3 passed")
    assert f"torch {torch.__version__}" in text
    assert "GPU tests: 3 passed." in text
    assert [row[0] for row in table(text, "prefill ms")] == ["120"]
    rows = {tuple(row[:4]): row[5:] for row in table(text, "1 row: ms")}
    assert rows.pop(("100", "the lab", "full", "100%"))[0] == "CUDA out of memory / here"
    flash = [key for key, row in rows.items() if row[0] == "flash_attn is not installed"]
    assert {key[1] for key in flash} <= {"transformers, flash_attention_2"}
    cells = {key: row for key, row in rows.items() if key[0] == "120" and key not in flash}
    shares = [("full", "100%"), *((m, s) for s in ("10%", "20%", "50%") for m in quick.methods)]
    expected = [("120", "the lab", method, share) for method, share in shares]
    assert list(cells) == [*expected, ("120", "transformers, sdpa", "full", "100%")]
    for (_, _, method, share), (one, most) in cells.items():
        assert re.fullmatch(r"[\d.]+ \([\d.]+\)", one)
        is_left_out = "store" in method and share != "10%"
        pattern = "" if is_left_out else r"3: [\d.]+ \([\d.]+\)"
        assert re.fullmatch(pattern, most)


def test_a_row_reads_what_it_keeps_and_the_full_cache_is_each_rows_own(quick):
    loaded = gpu.wrap_model(gpu.build(quick), gpu.tiny_tokenizer(), name="random", sha256="0" * 64)
    side = gpu.Ours(quick, loaded, 120)
    width = 2 * 2 * 2 * 16 * 2  # layers, KV heads, keys and values, numbers, bytes
    assert side.row_bytes(gpu.FULL, 1.0) == 120 * width
    assert side.row_bytes("snapkv", 0.5) == 60 * width
    assert side.row_bytes("adakv:store=int4", 0.5) < 60 * width
    plain = gpu.Transformers(gpu.build(quick), 120)
    assert plain.row_bytes(gpu.FULL, 1.0) == 120 * width


def test_nothing_is_begun_once_the_time_is_up():
    begun = []

    def lines():
        for rows in (1, 2, 3):
            begun.append(rows)
            yield gpu.Cell("the lab", "full", 100, 1.0, rows)

    found = list(gpu.in_time(lines(), 0.0))
    assert begun == [1]
    assert "the time was up" in found[-1].reason
    assert len(list(gpu.in_time(lines(), float("inf")))) == 3


def test_without_a_device_it_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"^make gpu needs a CUDA device .* there is none here\.$"):
        gpu.main()
