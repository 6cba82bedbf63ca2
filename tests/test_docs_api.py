"""The examples of docs/how-to/programs.md that log in run as they stand, against a served app.

Those without logins run on the real model in tests/e2e/test_default_model.py.
"""

from pathlib import Path

from tests.doc_blocks import blocks, run_as_shown
from tests.ui.served_app import by

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "programs.md"
LOGIN = "ckv_TOKEN"  # stands for one of served_app's ann


def test_the_examples_with_logins_run(team_app, tmp_path):
    with by("ann"):
        token = team_app.services.accounts.make_token("docs", "Read and write", "7 days")
    found = [
        (language, text.replace("http://127.0.0.1:7860", team_app.url).replace(LOGIN, token))
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
