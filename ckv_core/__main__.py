"""`python -m ckv_core`."""

import sys

from ckv_core.base.home import keep_private
from ckv_core.cli import main

if __name__ == "__main__":
    keep_private()
    sys.exit(main())
