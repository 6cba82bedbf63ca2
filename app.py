"""Serves the app. Imports live in main(): a worker that is spawned imports this file again."""

import sys


def main() -> int:
    """Serve the app until SIGTERM or SIGINT; returns the exit status."""
    from ckv_core.base.home import keep_private
    from ckv_core.base.terminal import say
    from cli.main import run_app

    keep_private()
    if len(sys.argv) > 1:
        say("app.py takes no arguments; the commands are those of `ckv --help`.", to_error=True)
        return 2
    return run_app()


if __name__ == "__main__":
    sys.exit(main())
