"""Every `bash` and `python` block of the README and the documents runs as written.

A page's blocks run in one bare shell, in a folder that has what the repository has; pages share a
data folder, as a reader's do. Blocks marked `sh` set a machine up (make, docker, pip, a cluster)
and `py` are parts of files: neither is run. docs/how-to/programs.md needs an app: its blocks run in
tests/e2e/test_default_model.py.
"""

from pathlib import Path

import pytest

from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.steps import silent
from tests.doc_blocks import blocks, run_as_shown

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {ROOT / "docs" / "how-to" / "programs.md"}
pytestmark = pytest.mark.slow
# The README first: later pages go on with what it computed.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page not in OTHERS and {"bash", "python"} & {language for language, _ in blocks(page)}
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder like the repository's, where nothing that is written touches that."""
    folder = tmp_path_factory.mktemp("place")
    for each in ROOT.iterdir():
        (folder / each.name).symlink_to(each)
    (folder / "home").mkdir()
    (folder / "home" / "models").symlink_to(prepare_default_model(silent).parent)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_its_commands_print(page, place):
    run_as_shown(blocks(page), place, {"CKV_HOME": str(place / "home")})


def test_the_study_shown_is_the_example():
    example = (ROOT / "examples" / "needles.yaml").read_text("utf-8")
    page = blocks(ROOT / "docs" / "tutorials" / "choose_a_method.md")
    (shown,) = [text for language, text in page if language == "yaml"]
    assert example.endswith(shown)
