"""CriticalKV Lab: settings, database, worker, pages. Imports live in main(): spawn re-imports."""

import os
import sys


def main() -> int:
    """Serve the app until it is told to stop, or run one command; returns the exit status."""
    # Gradio looks at this when it is imported.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if len(sys.argv) > 1:
        from ui import commands

        return commands.main(sys.argv[1:])
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


if __name__ == "__main__":
    sys.exit(main())
