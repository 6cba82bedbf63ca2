"""What a decoding step of eight rows asks of the device: few operators, one wait for the host.

A step of few rows is dispatch more than arithmetic, on a GPU and on the CPU, so both are counted
here where no GPU is needed.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ckv_core.engine.generation import Generation
from ckv_core.engine.running_rows import RunningRows
from tests.core.test_decode_equality import PROMPT_LEN, decoder_for, prefilled, prompt_ids
from tests.core.tiny_models import tiny_model

VARIANTS = (
    "full",
    "streaming_llm",
    *(
        f"{method}{more}"
        for method in ("snapkv", "pyramidkv", "adakv")
        for more in ("", "+critical")
    ),
)
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


@torch.inference_mode()
def counted_step() -> tuple[Counter[str], Counter[str], int]:
    """Operators and fetches of one step of eight rows, and the blocks of the model."""
    loaded = tiny_model("llama")
    result = prefilled(loaded, prompt_ids(PROMPT_LEN, loaded.model.config.vocab_size))
    decoder, _ = decoder_for(result, VARIANTS, 24)
    (part,) = decoder.context.parts
    assert max(len(layer.prompt.stacks) for layer in part.layers) <= 6
    tokens = [5] * len(VARIANTS)
    generation = Generation(loaded.tokenizer, len(tokens), 20, frozenset())
    generation.append(tokens)
    rows = RunningRows(decoder, generation, tokens)
    rows.step()  # what is made once is made
    with Operators() as operators, Waits() as waits:
        rows.step()
    return operators.found, waits.found, loaded.info.layers


def test_a_step_of_eight_rows_asks_for_few_operators() -> None:
    found, _, layers = counted_step()
    computing = sum(count for name, count in found.items() if name not in VIEWS)
    assert computing <= COMPUTING * layers + ONCE, found
    assert found.total() <= DISPATCHED * layers + ONCE, found


def test_the_host_waits_once_a_step() -> None:
    _, waits, _ = counted_step()
    assert waits.total() == 1, waits


def test_each_wait_is_seen() -> None:
    ones = torch.ones(2)
    with Waits() as waits:
        ones.tolist()
        ones[0].item()
        float(ones[0])
        bool(ones[0])
        ones.cpu()
        ones.nonzero()
    assert waits.found.total() == 6
