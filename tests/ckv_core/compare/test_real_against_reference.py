"""The command line on the default model against the slow reference."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ckv_core import cli
from ckv_core.models.default_model import prepare_default_model
from ckv_core.request.compare_request import Scenario
from tests.reference.checks import (
    L1_TOLERANCE,
    MIN_AGREEMENT,
    assert_heads_close,
    kept_from_positions,
)
from tests.reference.comparison import Reference, load_eager
from tests.reference.forward import Kept, evictable_layers
from tests.reference.keep import agreement, entries, kept_sets
from tests.reference.perturbation import head_l1, hidden_l1, output_sizes
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
def eager(model_folder: Path) -> Any:
    return load_eager(str(model_folder))


def command_line(context: Path, out: Path, scenario: Scenario) -> dict[str, Any]:
    """`python -m ckv_core compare`, once in a process of its own; the result JSON."""
    arguments = ["--context", str(context), "--question", QUESTION, "--scenario", scenario]
    for variant in REAL_VARIANTS[scenario]:
        arguments += ["--variant", variant]
    arguments += ["--budget", str(BUDGET), "--max-new-tokens", str(REAL_TOKENS), "--ignore-eos"]
    arguments += ["--device", "cpu", "--json", str(out)]
    if scenario == "regular":
        done = subprocess.run(
            [sys.executable, "-m", "ckv_core", "compare", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
    else:
        assert cli.main(["compare", *arguments]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("scenario", REAL_VARIANTS)
def test_the_real_model_agrees_with_the_reference(
    model_folder: Path, eager: Any, tmp_path: Path, scenario: Scenario
) -> None:
    context = tmp_path / "report.txt"
    context.write_text(TEXT, "utf-8")
    result = command_line(context, tmp_path / "out.json", scenario)
    prompt = build_prompt(AutoTokenizer.from_pretrained(model_folder), TEXT, QUESTION, scenario)
    assert len(prompt.token_ids) >= 2 * BUDGET
    assert result["schema"] == 1
    assert result["prompt"]["token_ids"] == prompt.token_ids
    assert result["prompt"]["compressed_tokens"] == prompt.compressed
    variants = result["variants"]
    names = [v["method"] + ("+critical" if v["critical"] else "") for v in variants]
    assert names == list(REAL_VARIANTS[scenario])
    params = [variant["params"] for variant in variants]
    check_real(Reference.prefill(eager, prompt, params), variants)


def check_real(reference: Reference, variants: list[dict[str, Any]]) -> None:
    model = reference.model
    layers = tuple(evictable_layers(model))
    _, logits = reference.read_question(None)
    token = int(logits.argmax())
    full_tap, full_cache, _ = reference.first_step(None, token)
    sizes = output_sizes(model, full_tap, full_cache)
    total = len(layers) * model.config.num_key_value_heads * BUDGET
    for variant in variants:
        kept = None
        if variant["retained"] is not None:
            kept = kept_from_positions(variant["retained"], reference.prompt.compressed, layers)
        tokens, _ = reference.generate(kept, REAL_TOKENS)
        assert variant["token_ids"] == tokens, variant["spec"]
        if kept is None:
            assert variant["perturbation"]["head_l1"] is None
            assert variant["perturbation"]["layer_hidden_l1"] is None
            assert ANSWER[:2] in variant["text"], "the full cache should find the needle"
            continue
        expected = kept_sets(
            reference.prefilled, variant["method"], variant["critical"], variant["params"]
        )
        assert agreement(expected, kept) >= MIN_AGREEMENT, variant["spec"]
        assert entries(kept) == entries(expected) == total
        assert variant["receipt"]["retained_entries"] == total
        assert variant["receipt"]["requested_entries"] == total
        full = (full_tap, full_cache, token, sizes)
        check_real_distances(reference, variant, (kept, expected), full)


def check_real_distances(
    reference: Reference, variant: dict[str, Any], sets: tuple[Kept, Kept], full: tuple[Any, ...]
) -> None:
    """Head L1 head by head on the engine's kept sets, and in total on the reference's own."""
    full_tap, full_cache, token, sizes = full
    kept, expected = sets
    perturbation = variant["perturbation"]
    heads = head_l1(reference.model, full_tap, full_cache, kept)
    assert_heads_close(perturbation["head_l1"], heads, sizes, L1_TOLERANCE)
    # An entry that changed places at the cut may move its head by more than the tolerance;
    # the layers' sums may not.
    own = head_l1(reference.model, full_tap, full_cache, expected)
    for ours, theirs in zip(perturbation["head_l1"], own, strict=True):
        assert sum(ours) == pytest.approx(sum(theirs or []), rel=L1_TOLERANCE)
    tap, _, _ = reference.first_step(kept, token)
    cascaded = hidden_l1(full_tap, tap)
    assert perturbation["layer_hidden_l1"] == pytest.approx(cascaded, rel=L1_TOLERANCE)
    assert perturbation["final_hidden_l1"] == pytest.approx(cascaded[-1], rel=L1_TOLERANCE)
