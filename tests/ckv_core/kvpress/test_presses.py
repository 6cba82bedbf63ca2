"""Presses of kvpress: how they are requested, and what its process may answer."""

import base64
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ckv_core import cli
from ckv_core.cli import import_kvpress, running
from ckv_core.engine.external_selection import own_mask
from ckv_core.errors import CkvError, ConfigError
from ckv_core.kvpress import sets, side
from ckv_core.kvpress.sets import Job, kept_by_presses, kvpress_python, parse_press
from ckv_core.kvpress.side import Runner, _module
from ckv_core.methods.parts.press import VERSION, press_code
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.run_request import RunRequest
from tests.doc_blocks import blocks, commands
from tests.factories.models import plain_model, tiny_model

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "compare_with_kvpress.md"
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
    monkeypatch.chdir(tmp_path)
    (shown,) = (text for language, text in blocks(PAGE) if language == "sh")
    _, (_, *arguments), (_, *compare) = commands(shown)
    place, question = (compare[compare.index(name) + 1] for name in ("--context", "--question"))
    context, kept = Path(place), Path(compare[-1])
    context.parent.mkdir(parents=True)
    context.write_text("The ferry left at nine. Nobody waved. " * 9, "utf-8")
    own_file = tmp_path / "own.py"
    own_file.write_text("")
    passed = f"assert document['module'] == {str(own_file)!r}\n"
    arguments += ["--python", python(passed + VERSION_LINE + KEEPS), "--module", str(own_file)]
    assert cli.main(arguments) == 0
    (own,) = read_external_selection(kept.read_text("utf-8"))
    assert own.label == f"kvpress 0.5.5, 10%: {arguments[1]}"
    assert own.sha256 == loaded.info.sha256
    request = RunRequest(context=context.read_text("utf-8"), question=question)
    prompt = running.tokenised(request, loaded)
    entries = prompt.compressed_tokens // 10
    mask = own_mask(own, loaded.info, prompt)
    assert mask[..., :entries].all()
    assert mask.sum() == entries * 6
    assert f"{own.label}: {entries * 6:,} entries." in capsys.readouterr().out
    document = json.loads(kept.read_text("utf-8"))
    assert document["variants"][0]["label"] == own.label
    assert cli.main(compare) == 0
    assert f"== own:label={own.label}" in capsys.readouterr().out


TOKENS = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31]


class BasePress:
    def __init__(self, compression_ratio=0.0, **arguments):
        if arguments:
            raise TypeError(f"unexpected {sorted(arguments)}")
        self.removed = compression_ratio

    def post_init_from_model(self, model):
        self.layers = model.config.num_hidden_layers

    def forward_hook(self, module, inputs, kwargs, output):
        raise AssertionError

    @contextmanager
    def __call__(self, model):
        yield

    def kept(self, keys):
        return int(keys.shape[2] * (1 - self.removed))


class FirstPress(BasePress):
    """Drops, as most presses do."""

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        keys.mul_(1)  # what it does to its own copy is nobody's concern
        count = self.kept(keys)
        return keys[:, :, :count].flip(2), values[:, :, :count].flip(2)


class HidingPress(BasePress):
    """Names what it hides, as AdaKV does: the last of head 0, nothing of the others."""

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        dropped = torch.arange(self.kept(keys), keys.shape[2])
        zeros = torch.zeros_like(dropped)
        module.masked_key_indices = (zeros, zeros, dropped)
        return keys, values


class ChangingPress(BasePress):
    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys + 1, values


class FailingPress(BasePress):
    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        raise RuntimeError("no attention\nat all")


class LatePress(BasePress):
    """Evicts once the whole prompt is read, as KVzip does."""

    @contextmanager
    def __call__(self, model):
        yield
        for layer in model.model.layers:
            every = torch.arange(self.kept(torch.empty(1, 1, len(TOKENS), 1)), len(TOKENS))
            layer.self_attn.masked_key_indices = (every * 0, every * 0 + 1, every)


class AroundPress(FirstPress):
    def __init__(self, press):
        super().__init__(press.removed)


OWN = """
from dataclasses import dataclass
from kvpress import FirstPress

@dataclass
class HalfPress(FirstPress):
    share: float = 0.5
    def __post_init__(self):
        self.removed = self.share
"""


@pytest.fixture
def runner(monkeypatch, tmp_path) -> Runner:
    presses = [BasePress, FirstPress, HidingPress, ChangingPress, FailingPress, LatePress]
    fake = SimpleNamespace(**{each.__name__: each for each in (*presses, AroundPress)}, VERSION=1)
    monkeypatch.setitem(sys.modules, "kvpress", fake)
    plain_model("llama").save_pretrained(tmp_path)
    own = tmp_path / "own.py"
    own.write_text(OWN, "utf-8")
    monkeypatch.setitem(sys.modules, "own_presses", None)
    return Runner(str(tmp_path), _module(str(own)))


def job(*chain: tuple[str, dict]) -> dict:
    return {"text": 0, "removed": 0.599, "press": [list(each) for each in chain]}


def masks(answer: dict) -> np.ndarray:
    assert "error" not in answer, answer
    layers = [np.frombuffer(base64.b64decode(each), np.uint8) for each in answer["kept"]]
    return np.stack([np.unpackbits(each)[:20].reshape(2, 10) for each in layers])


@pytest.mark.slow
def test_every_press_tells_what_it_keeps_whatever_the_others_do(runner):
    asked = ["FirstPress", "HidingPress", "ChangingPress", "FailingPress", "LatePress", "OsPress"]
    jobs = [job((name, {})) for name in asked]
    jobs += [job(("FirstPress", {"window": 3})), job(("AroundPress", {}), ("HidingPress", {}))]
    answers = runner.answers(TOKENS, jobs)
    first, hiding, changing, failing, late, unknown, wrong, around = answers
    kept = [1] * 4 + [0] * 6
    assert masks(first).tolist() == [[kept, kept]] * 3
    assert masks(hiding).tolist() == [[kept, [1] * 10]] * 3
    assert masks(late).tolist() == [[[1] * 10, kept]] * 3
    assert masks(around).tolist() == masks(first).tolist()
    assert changing["error"] == "It changes keys, so their positions are unknown."
    assert failing["error"] == "The press failed (RuntimeError: no attention)."
    assert unknown["error"] == "neither kvpress nor the module has a press 'OsPress'."
    assert wrong["error"] == "FirstPress does not take this (unexpected ['window'])."
    assert runner.answers(TOKENS, jobs) == answers, "a text leaves nothing behind for the next"


@pytest.mark.slow
def test_a_press_of_ones_own_runs_and_may_have_no_ratio(runner):
    jobs = [job(("HalfPress", {})), job(("HalfPress", {"share": 0.2}))]
    jobs += [job(("AroundPress", {}), ("HalfPress", {}))]
    answers = [masks(answer) for answer in runner.answers(TOKENS, jobs)]
    assert [mask.sum() / 6 for mask in answers] == [5, 8, 5]
