"""`python -m tests.ui.served_process`: the app as app.py serves it, with a scripted worker."""

import os
import sys
from functools import partial


def main() -> int:
    """Serve with the environment's settings; returns the exit status."""
    # As in app.py: the worker imports this file again and must not load the pages.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from tests.factories.app import make_client
    from ui import serve
    from ui.services.services import Services
    from ui.settings import Settings

    serve.Services = partial(Services, make_client=make_client)
    serve.serve(Settings.from_environ(os.environ))
    return 0


if __name__ == "__main__":
    sys.exit(main())
