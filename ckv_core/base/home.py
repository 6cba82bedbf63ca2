"""Where the application keeps its data: `CKV_HOME`, or the platform's user data folder.

Nothing of it may exist yet; the code that writes creates it.
"""

import os
from pathlib import Path


def home_folder() -> Path:
    """All of it, the database too."""
    given = os.environ.get("CKV_HOME", "").strip()
    if given:
        return Path(given).expanduser().absolute()
    try:
        import platformdirs  # noqa: PLC0415 - an image with little but torch runs the engine
    except ImportError:
        return Path.home() / ".criticalkv-lab"
    return platformdirs.user_data_path("criticalkv-lab", appauthor=False)


def keep_private() -> None:
    """From here on, what this process and those that it starts write is its user's alone.

    Files are made 0600 and folders 0700: the database with its log, backups, exports, caches.
    """
    os.umask(0o077)


def models_folder() -> Path:
    """Prepared models, and those that users put there."""
    return home_folder() / "models"


def weights_file() -> Path:
    """Hashes of weights that were read before, by file, size and date."""
    return home_folder() / "weights-sha256.json"


def head_tables_folder() -> Path:
    """Scores of heads that were measured once, by model."""
    return home_folder() / "head_tables"
