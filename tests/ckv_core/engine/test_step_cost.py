"""What a decoding step of eight rows asks of the device: few operators, one wait for the host.

A step of few rows is dispatch more than arithmetic, on a GPU and on the CPU, so both are counted
here where no GPU is needed.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ckv_core.engine import generation
from ckv_core.engine.choose import row_plan
from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import Chosen, Generation, RunningRows
from ckv_core.engine.rows import Rows
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import PROMPT_LEN, decoder_of, prefilled, selected
from tests.factories.models import prompt_ids, tiny_model

SCORED = ("snapkv", "pyramidkv", "adakv")
VARIANTS = ("full", "streaming_llm", *SCORED, *(f"{method}+critical" for method in SCORED))
# What a decoder block may ask for with eight rows in at most six stacks of heads: operators that
# compute or copy, and all that are dispatched, views too. Then, once a step, what is beside blocks.
COMPUTING, DISPATCHED, ONCE = 40, 112, 20
VIEWS = {"view", "alias", "slice", "select", "unsqueeze", "transpose", "split_with_sizes", "chunk"}
VIEWS |= {"unflatten", "flatten", "to", "reshape", "expand_as", "expand", "detach_", "lift_fresh"}
FETCHES = {
    getattr(Tensor, name)
    for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")
}


class Operators(TorchDispatchMode):
    """Counts what reaches the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Waits(TorchFunctionMode):
    """Counts fetches to the host: on a GPU each waits for all that was asked before."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FETCHES:
            self.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def running(variants: tuple[str, ...], arch: str = "llama") -> RunningRows:
    loaded = tiny_model(arch)
    result = prefilled(loaded, prompt_ids(PROMPT_LEN))
    kept = zip(map(VariantSpec.parse, variants), selected(result, variants), strict=True)
    decoder = decoder_of(result, [row_plan(*each, result) for each in kept])
    tokens = [5] * len(variants)
    generation = Generation(loaded.tokenizer, len(tokens), 20, frozenset())
    generation.append(tokens)
    rows = RunningRows(decoder, [generation], tokens)
    rows.step()  # what is made once is made
    generation.append(rows.tokens)
    return rows


@torch.inference_mode()
def counted_step(
    variants: tuple[str, ...] = VARIANTS, arch: str = "llama"
) -> tuple[Counter[str], Counter[str], int]:
    """Operators and fetches of one step of some rows, and the blocks of the model."""
    rows = running(variants, arch)
    for part in rows._decoder.context.parts:
        if type(part) is Rows:
            assert max(len(layer.prompt.stacks) for layer in part.layers) <= 6
    with Operators() as operators, Waits() as waits:
        rows.step()
    return operators.found, waits.found, tiny_model(arch).info.layers


def test_a_step_of_eight_rows_asks_for_few_operators_and_waits_once():
    found, waits, layers = counted_step()
    assert waits.total() == 1, waits
    computing = sum(count for name, count in found.items() if name not in VIEWS)
    assert computing <= COMPUTING * layers + ONCE, found
    assert found.total() <= DISPATCHED * layers + ONCE, found


def test_a_step_makes_no_mask_for_sliding_layers():
    found, waits, _ = counted_step(arch="gemma3")
    assert not found["masked_fill_"] + found["masked_fill"] + found["bitwise_and"], found
    assert waits.total() == 1


@pytest.mark.parametrize("h2o", ["h2o", "h2o:store=int8", "h2o:store=int4,residual=8"])
def test_a_row_that_evicts_waits_once_a_step_whatever_the_layers(h2o):
    _, waits, layers = counted_step(("snapkv", "tova", h2o))
    assert layers > 1
    assert waits.total() == 1 + 2, waits


def test_a_late_fetch_comes_after_the_device_has_its_next_step(monkeypatch):
    monkeypatch.setattr(generation, "fetches_late", lambda _device: True)
    order: list[str] = []
    for owner, name in ((Decoder, "feed"), (Chosen, "read")):
        work = getattr(owner, name)

        def noted(*given: Any, work: Any = work, name: str = name) -> Any:
            order.append(name)
            return work(*given)

        monkeypatch.setattr(owner, name, noted)
    with torch.inference_mode():
        rows = running(VARIANTS)
        order.clear()
        with Waits() as waits:
            rows.step()
    assert order == ["feed", "read"]
    assert waits.found.total() == 1, waits.found


def test_each_wait_is_seen():
    ones = torch.ones(2)
    with Waits() as waits:
        ones.tolist()
        ones[0].item()
        float(ones[0])
        bool(ones[0])
        ones.cpu()
        ones.nonzero()
    assert waits.found.total() == 6
