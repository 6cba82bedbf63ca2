"""What stops a run in the middle is one line too."""

from pathlib import Path

import pytest

from ckv_core import cli
from ckv_core.errors import OUT_OF_MEMORY
from tests.factories.models import tiny_model


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")],
    ids=["python", "torch"],
)
def test_no_memory_is_one_line(capsys, tmp_path: Path, monkeypatch, error) -> None:
    context = tmp_path / "context.txt"
    context.write_text("The ferry left at nine. " * 6, encoding="utf-8")

    def fail(*_args: object, **_named: object) -> None:
        raise error

    loaded = tiny_model("llama")
    monkeypatch.setattr("ckv_core.models.loading.load_model", lambda *_, **__: loaded)
    monkeypatch.setattr(loaded.model, "forward", fail)
    assert cli.main(["compare", "--context", str(context), "--budget", "40"]) == 1
    assert capsys.readouterr().err.strip() == f"error: {OUT_OF_MEMORY}"
