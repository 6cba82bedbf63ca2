"""The command line: the same engine without the app.

Exit code 0 on success, 2 on a bad argument, 1 on a failed run; errors are one line on stderr.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from ckv_core.cli import (
    analyse,
    cache,
    check_method,
    compare,
    heads,
    import_kvpress,
    lists,
)
from ckv_core.cli.options import Commands, Parser
from ckv_core.errors import CkvError
from ckv_core.methods.plug_ins import fault
from ckv_core.runtime.terminal import neutralised, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = Parser(prog="python -m ckv_core", description="Compare KV-cache eviction methods.")
    add_commands(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    return follow(parser, arguments)


def add_commands(commands: Commands) -> None:
    """All that need no database."""
    for module in (compare, analyse, cache, heads, import_kvpress, check_method, lists):
        module.register(commands)


def follow(parser: Parser, arguments: Sequence[str] | None) -> int:
    """Run the command that was typed; one that returns a text says it."""
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int | str] = options.command
    try:
        with neutralised():
            ended = command(options)
    except CkvError as error:
        say(f"error: {error}", to_error=True)
        return error.exit_code
    except KeyboardInterrupt:
        say("error: stopped by Ctrl-C.", to_error=True)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # noqa: TID251 - nothing is printed
        return 1
    except Exception as error:  # of another package's method, or a fault of ours
        if not (sentence := fault(error)):
            raise
        say(f"error: {sentence}", to_error=True)
        return 1
    if isinstance(ended, str):
        say(ended)
        return 0
    return ended
