"""Kept positions that were given: run as any variant, and refused where they do not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckv_core import cli
from ckv_core.engine.prompt import build_prompt
from ckv_core.errors import ConfigError
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.run_request import SCENARIOS, RunRequest
from tests.factories.models import tiny_tokenizer
from tests.factories.runs import selection_file
from tests.factories.tiny_runs import BASE, reference, run
from tests.reference.checks import check_distances, kept_of

pytestmark = pytest.mark.slow

DOCUMENT = (
    Path(__file__).resolve().parents[3] / "docs" / "how-to" / "compare_with_kvpress.md"
).read_text("utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```json\n(.*?)```", DOCUMENT, re.DOTALL))
SHORT = replace(BASE, variants=("full",), max_new_tokens=3)
START = build_prompt(tiny_tokenizer(), BASE.context, "", "regular").token_ids[:9]


def own_run(text: str, base: RunRequest = SHORT, arch: str = "llama") -> RunResult:
    return run(replace(base, own_indices=read_external_selection(text)), arch)


# --- the same as the method that chose them -----------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_positions_of_a_method_give_exactly_what_the_method_gave(arch, scenario):
    asked = replace(
        BASE,
        scenario=scenario,
        variants=("full", "snapkv", "adakv"),
        analysis=("bounds", "forced"),
        follow_ups=("And who did not?",) if scenario == "context-only" else (),
    )
    before = run(asked, arch)
    exported = json.dumps(to_json(before))
    after = own_run(exported, replace(asked, variants=("full",)), arch)
    specs = [variant.spec for variant in after.variants]
    assert specs == ["full", "own:label=SnapKV", "own:label=AdaKV"]
    for theirs, ours in zip(before.variants[1:], after.variants[1:], strict=True):
        assert ours.label == theirs.label
        assert (ours.method, ours.critical) == ("own", False)
        assert ours.params == {"label": theirs.label, "budget": 48}
        assert ours.retained == theirs.retained
        assert ours.receipt == theirs.receipt
        assert ours.token_ids == theirs.token_ids
        assert ours.follow_ups == theirs.follow_ups
        same, close = np.testing.assert_array_equal, np.testing.assert_allclose
        same(ours.perturbation.head_l1, theirs.perturbation.head_l1)
        same(ours.perturbation.layer_hidden_l1, theirs.perturbation.layer_hidden_l1)
        assert ours.perturbation.kl == theirs.perturbation.kl
        assert theirs.analysis.keys() - ours.analysis.keys() == {"stage1_alpha"}
        assert not ours.analysis.keys() - theirs.analysis.keys()
        for name in ("sigma_kept", "theta", "head_l2_cascaded", "forced_kl"):
            same(ours.analysis[name], theirs.analysis[name])
        # Without a score all that is kept is stage 1.
        close(ours.analysis["sigma_stage1"], ours.analysis["sigma_kept"], rtol=1e-5)
        close(ours.analysis["theta_hat"], ours.analysis["theta"], rtol=1e-5)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_any_positions_agree_with_the_slow_reference(arch, scenario):
    """Uneven heads, one of them empty, and a layer not evicted."""
    asked = replace(BASE, scenario=scenario, variants=("full",))
    plain = run(asked, arch)
    mask = np.random.default_rng(7).random((plain.model.layers, 2, plain.prompt.compressed_tokens))
    mask, evictable = mask < 0.2, plain.model.evictable_layers
    mask[evictable[-1], 1] = False
    whole = {*range(plain.model.layers)} - {*evictable} | ({0} if arch == "llama" else set())
    retained = [
        None if layer in whole else [np.flatnonzero(row).tolist() for row in heads]
        for layer, heads in enumerate(mask)
    ]
    result = own_run(selection_file(retained), asked, arch)
    slow = reference(arch, result)
    kept = kept_of(result, result.variants[1])
    for layer, rows in enumerate(kept):
        if rows is not None:
            np.testing.assert_array_equal(rows, mask[layer] | (retained[layer] is None))
    variant = result.variants[1]
    assert list(variant.token_ids) == slow.generate(kept, BASE.max_new_tokens)
    check_distances(slow, kept, variant.perturbation)


# --- forms and budget ---------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documents_examples_run(name):
    assert len(EXAMPLES) == 2
    result = own_run(EXAMPLES[name])
    variant = result.variants[1]
    assert variant.receipt.retained_entries == variant.receipt.requested_entries
    back = from_json(json.loads(json.dumps(to_json(result))))
    assert back.variants[1].params == variant.params


def test_the_receipt_asks_for_what_it_gets_and_warns_of_another_budget():
    result = own_run(selection_file([[list(range(9)), [3, 8]]] * 3))
    receipt = result.variants[1].receipt
    assert (receipt.requested_entries, receipt.retained_entries) == (33, 33)
    assert receipt.budget_tokens == 5
    (warning,) = receipt.warnings
    assert "Keeps 5.5 entries per KV head on average. The run's budget is 48" in warning
    same = own_run(selection_file(list(range(48)))).variants[1].receipt
    assert same.warnings == ()


# --- what does not fit --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"retained": [[[0], [1]]] * 4}, "positions for 4 layers and 2 KV heads; tiny-llama has 3"),
        ({"retained": [0], "model": {"kv_heads": 3}}, "and 3 KV heads"),
        ({"retained": [0], "model": {"sha256": "12" * 32}}, "(sha256 121212121212)"),
        ({"retained": [5000]}, "position 5,000 in layer 0, KV head 0; the compressed prompt has"),
        ({"retained": [0], "prompt": {"compressed_tokens": 40}}, "on 40 compressed tokens; this"),
        ({"retained": [0], "prompt": {"token_ids": [1, 2, 3]}}, "the token at position 1 is 2"),
        ({"retained": [0], "prompt": {"token_ids": START}}, "9 tokens, where this one compresses"),
    ],
)
def test_positions_that_do_not_fit_are_refused(changes, sentence):
    with pytest.raises(ConfigError) as refused:
        own_run(selection_file(**changes))
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("'Mine'")


def test_a_sliding_window_takes_no_positions():
    with pytest.raises(ConfigError, match="layer 0 has a sliding window"):
        own_run(selection_file([[0]] * 4), arch="gemma3")


# --- command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"), [(None, "cannot be read"), ("[]", "an object is expected")]
)
def test_a_wrong_own_file_is_one_line_with_its_name(capsys, tmp_path, text, sentence):
    context, own = tmp_path / "c.txt", tmp_path / "own.json"
    context.write_text("text", "utf-8")
    if text is not None:
        own.write_text(text, "utf-8")
    assert cli.main(["compare", "--context", str(context), "--own", str(own)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "own.json" in line
    assert sentence in line
