"""What `ckv` runs. Imports live in functions: a worker that is spawned imports this file again."""

import os
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, see `ckv_core.cli`."""
    from ckv_core import __version__
    from ckv_core.cli import add_commands, follow
    from ckv_core.cli.options import Parser
    from ckv_core.runtime.home import keep_private
    from cli import library, study, users

    keep_private()
    parser = Parser(prog="ckv", description="Compare KV-cache eviction methods.")
    parser.add_argument("--version", action="version", version=f"ckv {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve the app; docs/operations.md has its settings")
    serve.set_defaults(command=lambda _: run_app())
    add_commands(commands)
    for module in (study, library, users):
        module.register(commands)
    return follow(parser, arguments)


def run_app() -> int:
    """Serve until told to stop; returns the exit code."""
    # Gradio looks at this when it is imported.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from ckv_core.errors import CkvError
    from ckv_core.runtime.terminal import say
    from ui.serve import serve
    from ui.settings import Settings

    try:
        serve(Settings.from_environ(os.environ))
    except CkvError as error:
        say(str(error), to_error=True)
        return error.exit_code
    except OSError as error:
        # A full disk shows anywhere: in a folder for temporary files, in what is printed.
        place = f" ({error.filename})" if error.filename else ""
        say(f"The app cannot go on: {error.strerror or error}{place}.", to_error=True)
        return 1
    return 0
