"""A second app where one serves already."""

import sys

import pytest

from app import main
from ckv_core.runtime import logs
from tests.e2e.app_runner import App
from tests.ports import free_port


@pytest.mark.parametrize("taken", ["data", "port"])
def test_a_second_app_in_the_same_place_is_one_sentence(
    app: App, tmp_path, monkeypatch, capsys, taken
):
    port = app.url.rpartition(":")[2]
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setenv("CKV_HOME", str(app.log.parent if taken == "data" else tmp_path))
    monkeypatch.setenv("CKV_PORT", str(free_port()) if taken == "data" else port)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    assert main() == 1
    told = {
        "data": "Another CriticalKV Lab serves",
        "port": f"Port {port} on 127.0.0.1 cannot be used",
    }
    (line,) = capsys.readouterr().err.splitlines()
    assert told[taken] in line
