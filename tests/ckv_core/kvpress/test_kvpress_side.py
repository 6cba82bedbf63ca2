"""What runs in kvpress's environment, here with presses of our own in kvpress's place."""

import base64
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ckv_core.kvpress.side import Runner, _module
from tests.factories.models import plain_model

pytestmark = pytest.mark.slow

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

class WrappingPress(FirstPress):
    def __init__(self, press):
        super().__init__(press.removed)
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


def test_every_press_tells_what_it_keeps_whatever_the_others_do(runner):
    asked = ["FirstPress", "HidingPress", "ChangingPress", "FailingPress", "LatePress", "OsPress"]
    jobs = [job((name, {})) for name in asked]
    jobs += [job(("FirstPress", {"window": 3})), job(("AroundPress", {}), ("HidingPress", {}))]
    first, hiding, changing, failing, late, unknown, wrong, around = runner.answers(TOKENS, jobs)
    kept = [1] * 4 + [0] * 6
    assert masks(first).tolist() == [[kept, kept]] * 3
    assert masks(hiding).tolist() == [[kept, [1] * 10]] * 3
    assert masks(late).tolist() == [[[1] * 10, kept]] * 3
    assert masks(around).tolist() == masks(first).tolist()
    assert changing["error"] == "It changes keys, so their positions cannot be told."
    assert failing["error"] == "The press failed (RuntimeError: no attention)."
    assert unknown["error"] == "neither kvpress nor the module has a press 'OsPress'."
    assert wrong["error"] == "FirstPress does not take this (unexpected ['window'])."


def test_a_press_of_ones_own_runs_and_may_have_no_ratio(runner):
    jobs = [job(("HalfPress", {})), job(("HalfPress", {"share": 0.2}))]
    jobs += [
        job(("WrappingPress", {}), ("HalfPress", {})),
        job(("AroundPress", {}), ("HalfPress", {})),
    ]
    answers = [masks(answer) for answer in runner.answers(TOKENS, jobs)]
    assert [mask.sum() / 6 for mask in answers] == [5, 8, 5, 5]


def test_a_text_leaves_nothing_behind_for_the_next(runner):
    (alone,) = runner.answers(TOKENS, [job(("FirstPress", {}))])
    runner.answers(TOKENS[::-1], [job(("LatePress", {})), job(("HidingPress", {}))])
    (again,) = runner.answers(TOKENS, [job(("FirstPress", {}))])
    assert again == alone
