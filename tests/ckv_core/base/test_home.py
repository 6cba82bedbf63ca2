"""Where the application keeps its data."""

import sys
from pathlib import Path

from ckv_core.base.home import home_folder


def test_without_platformdirs_the_engine_still_finds_a_folder(monkeypatch, tmp_path):
    """On a machine with little but torch."""
    monkeypatch.delenv("CKV_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert home_folder() == Path(tmp_path) / ".criticalkv-lab"
