"""`python -m ckv_core`."""

import sys

from ckv_core.cli import main
from ckv_core.runtime.home import keep_private

if __name__ == "__main__":
    keep_private()
    sys.exit(main())
