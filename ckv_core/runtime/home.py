"""Where the application keeps its data: `CKV_HOME`, or the platform's user data folder."""

import os
from pathlib import Path

import platformdirs


def home_folder() -> Path:
    """The data folder; it may not exist yet, whoever writes creates it."""
    given = os.environ.get("CKV_HOME", "").strip()
    if given:
        return Path(given).expanduser().absolute()
    return platformdirs.user_data_path("criticalkv-lab", appauthor=False)
