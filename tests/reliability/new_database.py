"""`python -m tests.reliability.new_database FOLDER`: an empty library there."""

import sys
from pathlib import Path

from storage.database import default_url, open_database

if __name__ == "__main__":
    open_database(default_url(Path(sys.argv[1]))).close()
