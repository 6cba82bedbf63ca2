"""What `ckv` runs. Imports live in functions: a worker that is spawned imports this file again."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, see `ckv_core.cli`."""
    from ckv_core.base.home import keep_private
    from ckv_core.cli.options import run_command

    keep_private()
    return run_command(commands(), "ckv", arguments)


def commands() -> "Typer":
    """All commands: the core's, and those of the database."""
    from typer import Exit, Option, Typer

    from ckv_core import __version__
    from ckv_core import cli as core
    from ckv_core.base.terminal import say
    from cli import admin, library, run, why

    def show_version(given: bool) -> None:
        if given:
            say(f"ckv {__version__}")
            raise Exit

    app = Typer(help=core.HELP, rich_markup_mode=None, add_completion=False)

    @app.callback()
    def _all(
        version: bool = Option(False, "--version", callback=show_version, is_eager=True),
    ) -> None:
        pass

    app.command("serve", help="Serve the app; docs/reference/settings.md has its settings.")(
        run_app
    )
    for part in (core.app, run.app, library.app, why.app, admin.app):
        app.add_typer(part)
    return app


def run_app() -> int:
    """Serve until a signal to stop; returns the exit code."""
    # Gradio looks at this when it is imported.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from ckv_core.base.terminal import say
    from ckv_core.errors import CkvError
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
