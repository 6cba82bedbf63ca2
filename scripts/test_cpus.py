"""Runs the tests of what computes, once under each instruction set that this machine has.

PyTorch's own kernels, oneDNN and MKL take it from a variable each. Arguments go on to pytest.
"""

import os
import subprocess
import sys

import torch

# From low to high, by PyTorch's name for what a machine has.
SETS = {
    "DEFAULT": ("default", "SSE41", "SSE4_2"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX512": ("avx512", "AVX512_CORE", "AVX512"),
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
FOLDERS = ("engine", "methods")


def main() -> int:
    """Run them all; 1 where any of them failed."""
    most = torch.backends.cpu.get_cpu_capability()
    if most not in SETS:
        _say(f"This machine has {most}: PyTorch has nothing lower to run there.")
        return 0
    tests = sys.argv[1:] or [*(f"tests/ckv_core/{name}" for name in FOLDERS), "tests/golden"]
    names = [*SETS][: [*SETS].index(most) + 1]
    failed = []
    for name in names:
        _say(f"--- {name} ---")
        environment = os.environ | dict(zip(VARIABLES, SETS[name], strict=True))
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *tests]
        if subprocess.run(command, env=environment, check=False).returncode:  # noqa: S603
            failed.append(name)
    _say(f"Ran under {', '.join(names)}; failed under {', '.join(failed) or 'none'}.")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
