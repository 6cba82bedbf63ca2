"""The command line: the same engine without the app.

Exit code 0 on success, 2 on a bad argument, 1 on a failed run; errors are one line on stderr.
"""

from collections.abc import Sequence

from typer import Typer

from ckv_core.cli import (
    cache,
    compare,
    import_kvpress,
    methods,
    plan,
)
from ckv_core.cli.options import run_command

HELP = "Compare KV-cache eviction methods."
# Without markup, help texts appear as they are written.
app = Typer(help=HELP, rich_markup_mode=None, add_completion=False)
for _module in (compare, cache, import_kvpress, methods, plan):
    app.add_typer(_module.app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(app, "python -m ckv_core", arguments)
