"""`python -m ckv_core`."""

import sys

from ckv_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
