"""What `make test` and `make test-cpus` run: an order drawn by a named seed, each CPU's kernels."""

import os
import subprocess
import sys
from types import SimpleNamespace

import torch

from scripts import test_cpus
from scripts.mutants import ROOT

# The lowest, which every machine with more has.
ASKED = "import torch; assert torch.backends.cpu.get_cpu_capability() == 'DEFAULT'"


def output(*command: str) -> list[str]:
    pipes = {"capture_output": True, "text": True}
    return subprocess.run(command, check=True, cwd=ROOT, **pipes).stdout.splitlines()


def collected(seed: int) -> list[str]:
    """What pytest prints of two files, none of whose tests it runs."""
    files = ("tests/test_mutants.py", "tests/test_import_graph.py")
    pytest = (sys.executable, "-m", "pytest", "--collect-only", *files)
    return output(*pytest, f"--randomly-seed={seed}")


def test_a_seed_that_is_named_draws_the_order_of_tests():
    one, other = collected(1), collected(2)
    assert "Using --randomly-seed=1" in one
    tests = [[line for line in lines if "<Function" in line] for lines in (one, other)]
    assert tests[0] != tests[1]
    assert sorted(tests[0]) == sorted(tests[1])
    (line,) = [line for line in output("make", "-n", "test", "SEED=7") if "-m pytest" in line]
    assert "--no-loadscope-reorder --randomly-seed=7" in line
    assert "no:randomly" not in line


def test_each_instruction_set_up_to_this_machines_is_run_and_one_failure_fails_all(
    monkeypatch, capsys
):
    ran = []

    def run(command: list[str], *, env: dict[str, str], check: bool) -> SimpleNamespace:
        assert not check
        ran.append([env[name] for name in test_cpus.VARIABLES])
        assert {"tests/ckv_core/engine", "tests/ckv_core/methods", "tests/golden"} < {*command}
        return SimpleNamespace(returncode=int("AVX2" in ran[-1]))

    lowest = dict(zip(test_cpus.VARIABLES, test_cpus.SETS["DEFAULT"], strict=True))
    subprocess.run([sys.executable, "-c", ASKED], check=True, env=os.environ | lowest)
    monkeypatch.setattr(sys, "argv", ["test_cpus"])
    monkeypatch.setattr(test_cpus.subprocess, "run", run)
    for most, sets in (("DEFAULT", 1), ("AVX2", 2), ("AVX512", 3), ("NEON", 0)):
        ran.clear()
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda most=most: most)
        assert test_cpus.main() == int(sets > 1)
        assert ran == [[*names] for names in test_cpus.SETS.values()][:sets]
    assert "Ran under DEFAULT, AVX2, AVX512; failed under AVX2." in capsys.readouterr().out
