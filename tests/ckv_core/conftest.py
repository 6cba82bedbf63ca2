"""What the tests of the core share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckv_core.engine import head_tables


@pytest.fixture(scope="session", autouse=True)
def head_tables_apart(tmp_path_factory) -> Iterator[Path]:
    """Tables of the tests' models are kept for the session, away from the user's own."""
    home = tmp_path_factory.mktemp("head-tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_tables, "head_tables_folder", lambda: home)
        yield home
