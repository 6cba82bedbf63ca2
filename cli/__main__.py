"""`python -m cli`: the command `ckv` where the package is not installed."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
