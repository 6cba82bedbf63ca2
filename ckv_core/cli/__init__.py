"""The command line: the same engine without the app.

Exit code 0 on success, 2 on a bad argument, 1 on a failed run; errors are one line on stderr.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from ckv_core.cli import analyse, cache, compare, heads, import_kvpress, lists, study, sweep
from ckv_core.cli.options import Parser
from ckv_core.errors import CkvError
from ckv_core.runtime.terminal import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = Parser(prog="python -m ckv_core", description="Compare KV-cache eviction methods.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (compare, sweep, analyse, study, cache, heads, import_kvpress, lists):
        module.register(commands)
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except CkvError as error:
        say(f"error: {error}", to_error=True)
        return error.exit_code
    except KeyboardInterrupt:
        say("error: stopped by Ctrl-C.", to_error=True)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # noqa: TID251 - nothing is printed
        return 1
