"""The examples of docs/how-to/programs.md that log in run as they stand, against a served app.

Those without logins run on the real model in tests/e2e/test_default_model.py.
"""

from pathlib import Path

import pytest

from tests.doc_blocks import blocks, run_as_shown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "programs.md"
LOGIN = "ann-secret"  # the password of served_app's ann


@pytest.fixture(scope="module")
def address(team_app) -> str:
    return team_app.url


def test_the_examples_with_logins_run(address, tmp_path):
    found = [
        (language, text.replace("http://127.0.0.1:7860", address))
        for language, text in blocks(PAGE)
        if LOGIN in text
    ]
    assert [language for language, _ in found] == ["python", "bash"]
    begin = [
        ("bash", f"source '{ROOT}/.venv/bin/activate'\n"),
        ("python", "from gradio_client import Client\n"),
    ]
    printed = run_as_shown([*begin, *found], tmp_path, {})
    assert '"runs":' in printed
