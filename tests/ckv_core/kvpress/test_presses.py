"""Presses of kvpress: how they are asked for, and what its process may answer."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ckv_core import cli
from ckv_core.cli import import_kvpress, running
from ckv_core.engine.external_selection import own_mask
from ckv_core.errors import CkvError, ConfigError
from ckv_core.kvpress import sets, side
from ckv_core.kvpress.sets import Job, kept_by_presses, kvpress_python, parse_press
from ckv_core.methods.parts.press import VERSION, press_code
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.external_selection import read_external_selection
from tests.factories.models import tiny_model

JOB = Job(0, (("SnapKVPress", {}),), 5)
VERSION_LINE = f"print(json.dumps({{'version': '{VERSION}'}}))"
# Keeps the first budget entries of every head, in three layers of two.
KEEPS = """
for job in document["jobs"]:
    tokens = len(document["texts"][job["text"]])
    mask = numpy.zeros((2, tokens), bool)
    mask[:, : int(tokens * (1 - job["removed"]))] = True
    bits = base64.b64encode(numpy.packbits(mask).tobytes()).decode()
    print(json.dumps({"kept": [bits] * 3}))
"""


@pytest.fixture
def python(tmp_path):
    """Makes a Python that answers by some lines of its own instead of running what it is given."""

    def make(code: str) -> str:
        path = tmp_path / "python"
        head = f"#!{sys.executable}\nimport base64, json, sys\nimport numpy\n"
        path.write_text(head + "document = json.loads(sys.stdin.read())\n" + code, "utf-8")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("streaming_llm:sinks=6", "StreamingLLMPress(n_sink=6)"),
        ("snapkv:window=16", "SnapKVPress(window_size=16, kernel_size=5)"),
        (
            "adakv+critical:safeguard=0.1",
            "CriticalAdaKVPress(SnapKVPress(window_size=64, kernel_size=5), alpha_safeguard=0.1, "
            "epsilon=0.0001, first_stage_ratio=0.5)",
        ),
        (
            "snapkv+critical:alpha=0.25",
            "CriticalKVPress(SnapKVPress(window_size=64, kernel_size=5), epsilon=0.0001, "
            "first_stage_ratio=0.25)",
        ),
        (
            "expected_attention:value_size=off",
            "ExpectedAttentionPress(n_future_positions=512, n_sink=4, use_vnorm=False, "
            "epsilon=0.0)",
        ),
        ("AdaKVPress( CURPress(num_sinks=4),alpha_safeguard=.1)", None),
        ("KnormPress()", "KnormPress()"),
    ],
)
def test_presses_are_asked_for_by_a_spec_or_in_pythons_words(text, code):
    expected = code or "AdaKVPress(CURPress(num_sinks=4), alpha_safeguard=0.1)"
    assert press_code(parse_press(text)) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("snapkw", "Did you mean 'snapkv'?"),
        ("cake", "kvpress has no press for it."),
        ("full", "kvpress has no press for it."),
        ("kvzip+critical", "kvpress has no press for it."),
        ("snapkv+critical_auto", "kvpress has no press for it."),
        ("snapkv:pool=max", "kvpress has only pool=avg; leave it out."),
        ("snapkv:sinks=4", "kvpress has only sinks=0; leave it out."),
        ("snapkv:group=max", "kvpress has only group=mean"),
        ("snapkv+critical:norm=off", "kvpress has only norm=on"),
        ("adakv:store=int8", "kvpress has no store, layout"),
        ("SnapKVPress", "is no call of presses; write for instance"),
        ("SnapKVPress(compression_ratio=0.5)", "is no call of presses"),
        ("SnapKVPress(**{'window_size': 4})", "is no call of presses"),
        ("AdaKVPress(__import__('os').system('x'))", "is no call of presses"),
        ("AdaKVPress(SnapKVPress(), 0.2)", "is no call of presses"),
        ("SnapKVPress(window_size=[1])", "is no call of presses"),
        ("A(" * 200, "is no call of presses"),
        ("SnapKVPress(" + "-" * 990 + "1)", "is no call of presses"),
    ],
)
def test_what_kvpress_cannot_be_asked_for_is_one_sentence(text, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_press(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_python_with_kvpress_the_sentence_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sets, "_OURS", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"make kvpress.*--python"):
        kvpress_python()
    assert kvpress_python(sys.executable) == sys.executable


def test_sets_are_read_as_they_come(python):
    texts, jobs = [range(21), range(40)], [JOB, JOB, Job(1, JOB.press, 17)]
    asked = kept_by_presses(python(VERSION_LINE + KEEPS), Path("model"), texts, jobs)
    first, again, other = asked
    assert first.shape == (3, 2, 21)
    assert first.sum(-1).tolist() == [[5, 5]] * 3
    assert np.array_equal(first, again)
    assert other.shape == (3, 2, 40)
    assert other[..., :17].all()


def test_a_press_that_cannot_run_is_told_and_the_others_go_on(python):
    code = VERSION_LINE + "\nprint(json.dumps({'error': 'kvpress has no press X.'}))" + KEEPS
    refused, kept = kept_by_presses(python(code), Path("m"), [range(9)], [JOB, JOB])
    assert str(refused) == "kvpress has no press X."
    assert not isinstance(kept, CkvError)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("print(json.dumps({'version': '0.5.4'}))", "kvpress 0.5.4 is there, and 0.5.5 is what"),
        ("print(json.dumps({'error': 'kvpress cannot be imported.'}))", "cannot be imported."),
        ("sys.exit('no memory left')", "process stopped: no memory left"),
        (VERSION_LINE + "\nsys.exit(3)", "process stopped: it wrote nothing"),
    ],
)
def test_a_process_that_fails_is_one_sentence(python, code, sentence):
    with pytest.raises(CkvError) as caught:
        list(kept_by_presses(python(code), Path("m"), [range(9)], [JOB]))
    assert sentence in str(caught.value)


def test_our_own_python_says_that_it_has_no_kvpress():
    with pytest.raises(CkvError, match=r"kvpress cannot be imported there \(No module named"):
        list(kept_by_presses(sys.executable, Path("m"), [range(9)], [JOB]))


def test_a_module_that_cannot_be_imported_is_one_sentence(tmp_path):
    (tmp_path / "kvpress.py").write_text("")
    own = tmp_path / "own.py"
    own.write_text("import no_such_module\n")
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    python = tmp_path / "python"
    run = f"import runpy; runpy.run_path({str(side.__file__)!r}, run_name='__main__')"
    python.write_text(f"#!{sys.executable}\n{path}\n{run}\n")
    python.chmod(0o755)
    with pytest.raises(
        CkvError, match=r"own\.py' cannot be imported \(ModuleNotFoundError: No mod"
    ):
        list(kept_by_presses(str(python), Path("m"), [range(9)], [JOB], own))


def test_what_a_press_keeps_is_written_as_positions_of_this_prompt(
    python, monkeypatch, tmp_path, capsys
):
    loaded = tiny_model("llama")
    assert (loaded.info.layers, loaded.info.kv_heads) == (3, 2)
    monkeypatch.setattr(running, "load", lambda request: (loaded, 0.0))
    monkeypatch.setattr(import_kvpress, "checkpoint_folder", lambda name: Path("model"))
    context, kept = tmp_path / "context.txt", tmp_path / "kept.json"
    context.write_text("The ferry left at nine. Nobody waved. " * 6, "utf-8")
    arguments = ["import-kvpress", "KnormPress()", "--context", str(context), "--budget", "25%"]
    arguments += ["--python", python(VERSION_LINE + KEEPS), "--json", str(kept)]
    assert cli.main(arguments) == 0
    (own,) = read_external_selection(kept.read_text("utf-8"))
    assert own.label == "kvpress 0.5.5, 25%: KnormPress()"
    assert own.sha256 == loaded.info.sha256
    request = CompareRequest(context=context.read_text("utf-8"))
    prompt = running.tokenised(request, loaded)
    entries = prompt.compressed_tokens // 4
    mask = own_mask(own, loaded.info, prompt)
    assert mask[..., :entries].all()
    assert mask.sum() == entries * 6
    assert f"{own.label}: {entries * 6:,} entries." in capsys.readouterr().out
    document = json.loads(kept.read_text("utf-8"))
    assert document["variants"][0]["label"] == own.label
