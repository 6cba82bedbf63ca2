"""The command line on the default model against the slow reference."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ckv_core import cli
from ckv_core.models.default_model import prepare_default_model
from ckv_core.request.compare_request import Scenario
from ckv_core.results.codec import from_json
from ckv_core.results.events import RunResult
from tests.reference.checks import L1_TOLERANCE, check_run
from tests.reference.comparison import Reference
from tests.reference.keep import kept_sets
from tests.reference.perturbation import head_l1
from tests.reference.prompt import build_prompt
from tests.reference.report import ANSWER, QUESTION, report

ROOT = Path(__file__).parents[3]
# The tiny models have every method in both; here the question is what their size hides.
REAL_VARIANTS: dict[Scenario, tuple[str, ...]] = {
    "regular": ("full", "snapkv+critical"),
    "context-only": ("full", "pyramidkv+critical", "adakv+critical"),
}
REAL_TOKENS, BUDGET = 8, 128
# The part about the pump room and what is around it, as short as the budget allows.
START = report().index("Night work") - 300
TEXT = report()[START : START + 1300]


@pytest.fixture(scope="module")
def model_folder() -> Path:
    return prepare_default_model(lambda _line: None)


@pytest.fixture(scope="module")
def eager(model_folder) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        model_folder, attn_implementation="eager", dtype=torch.float32
    ).eval()


def command_line(context: Path, out: Path, scenario: Scenario) -> RunResult:
    """`python -m ckv_core compare`, once in a process of its own; what its JSON holds."""
    arguments = ["compare", "--context", str(context), "--question", QUESTION]
    arguments += ["--scenario", scenario, "--device", "cpu", "--json", str(out), "--ignore-eos"]
    arguments += ["--budget", str(BUDGET), "--max-new-tokens", str(REAL_TOKENS)]
    arguments += [part for spec in REAL_VARIANTS[scenario] for part in ("--variant", spec)]
    if scenario == "regular":
        command = [sys.executable, "-m", "ckv_core", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
    else:
        assert cli.main(arguments) == 0
    return from_json(json.loads(out.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", REAL_VARIANTS)
def test_the_real_model_agrees_with_the_reference(model_folder, eager, tmp_path, scenario):
    context = tmp_path / "report.txt"
    context.write_text(TEXT, "utf-8")
    result = command_line(context, tmp_path / "out.json", scenario)
    prompt = build_prompt(AutoTokenizer.from_pretrained(model_folder), TEXT, QUESTION, scenario)
    assert len(prompt.token_ids) >= 2 * BUDGET
    names = [v.method + ("+critical" if v.critical else "") for v in result.variants]
    assert names == list(REAL_VARIANTS[scenario])
    assert ANSWER[:2] in result.variants[0].text, "the full cache should find the needle"
    reference = Reference.prefill(eager, prompt, [dict(v.params) for v in result.variants])
    check_run(reference, result, REAL_TOKENS)
    # An entry that changed places at the cut may move its head by more than the tolerance;
    # the layers' sums may not.
    for variant in result.variants[1:]:
        params = dict(variant.params)
        own = kept_sets(reference.prefilled, variant.method, variant.critical, params)
        expected = np.array(head_l1(eager, *reference.full_step[:2], own)).sum(1)
        found = variant.perturbation.head_l1.sum(1)
        assert found.tolist() == pytest.approx(expected.tolist(), rel=L1_TOLERANCE)
