"""What the tests of models share."""

from pathlib import Path

import pytest

from ckv_core.models import default_model


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An empty CKV_HOME, and no Hub."""
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(default_model.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "home"
