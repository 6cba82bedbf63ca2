"""The variable-length path against the stacks: packing, query groups and the join, all proven.

PyTorch's kernel needs a GPU. Without one a literal loop with its signature takes its place, so
that everything around the kernel is tested on every machine.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ckv_core.engine.cache import slots, varlen
from ckv_core.engine.cache.slots import Keep, PromptSlots, SlotCache, compact
from tests.factories.decoding import CLOSE, PROMPT_LEN, prefilled, steady_decoder
from tests.factories.models import SPECS, prompt_ids, tiny_model

CPU = torch.device("cpu")


def literal_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    *longest: int,
    return_aux: Any,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """One sequence and head after another, as PyTorch documents `varlen_attn`."""
    assert query.dim() == key.dim() == value.dim() == 3
    assert query.shape[1] == key.shape[1] == value.shape[1], "no group of query heads is asked for"
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert [int(cu_seq_q[-1]), int(cu_seq_k[-1])] == [len(query), len(key)]
    assert len(key) == len(value)
    assert [int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max())] == list(longest)
    assert cu_seq_k.diff().min() > 0, "what the kernel gives for no keys is not documented"
    assert return_aux.lse
    out = torch.empty_like(query)
    total = torch.empty(query.shape[1], len(query))
    for sequence in range(len(cu_seq_q) - 1):
        asked = slice(int(cu_seq_q[sequence]), int(cu_seq_q[sequence + 1]))
        seen = slice(int(cu_seq_k[sequence]), int(cu_seq_k[sequence + 1]))
        for head in range(query.shape[1]):
            logits = query[asked, head].float() @ key[seen, head].float().T * scale
            out[asked, head] = (logits.softmax(-1) @ value[seen, head].float()).to(query.dtype)
            total[head, asked] = logits.logsumexp(-1)
    return out, total


@pytest.fixture
def literal(monkeypatch) -> None:
    monkeypatch.setattr(slots, "usable_kernel", lambda *_: literal_kernel)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_the_packed_path_gives_the_logits_of_the_stacks(arch, monkeypatch):
    """A question of several tokens, single tokens, and rows that leave in between."""
    loaded, rows = tiny_model(arch), len(SPECS)
    result = prefilled(loaded, prompt_ids(PROMPT_LEN))
    with torch.inference_mode():
        by_stacks, _ = steady_decoder(result, 24)
        monkeypatch.setattr(slots, "usable_kernel", lambda *_: literal_kernel)
        by_kernel, _ = steady_decoder(result, 24)
        layers = (each.context.parts[0].layers for each in (by_stacks, by_kernel))
        for stacked, packed, window in zip(*layers, loaded.sliding_windows, strict=True):
            assert stacked.prompt.packed is None
            assert (packed.prompt.packed is not None) == (window is None), "none is evicted there"
        question = torch.tensor([prompt_ids(9, seed) for seed in range(rows)])
        torch.testing.assert_close(by_kernel.feed(question), by_stacks.feed(question), **CLOSE)
        for step, kept in enumerate(([0, 2, 3, 5, 6, 7], [5, 1, 3], [2, 0], [1])):
            fed = torch.tensor([[20 + row + step] for row in range(rows)])
            torch.testing.assert_close(by_kernel.feed(fed), by_stacks.feed(fed), **CLOSE)
            for decoder in (by_stacks, by_kernel):
                decoder.context.keep_rows(kept)
            rows = len(kept)


@pytest.mark.usefixtures("literal")
def test_heads_that_keep_nothing_are_left_out_and_add_nothing():
    keys, values = torch.randn(2, 2, 30, 16, generator=torch.Generator().manual_seed(1))
    masks = [torch.zeros(2, 30, dtype=torch.bool) for _ in range(3)]
    masks[0][1, ::3] = True
    masks[2][:, 4:9] = True
    layer = compact(keys, values, [Keep(mask) for mask in masks])
    assert sorted(layer.packed.slots.tolist()) == [1, 4, 5]
    nothing = compact(keys, values, [Keep(masks[1])])
    assert nothing.packed is None
    queries, own = torch.randn(2, 3, 4, 1, 16, generator=torch.Generator().manual_seed(2))
    packed, stacked = both_ways(layer, queries, own[:, :2], own[:, 2:])
    torch.testing.assert_close(packed, stacked, rtol=1e-5, atol=1e-5)
    # Row 1 keeps nothing: all its weight goes to its own token.
    torch.testing.assert_close(packed[1, :2], own[1, 2].expand(2, 1, 16))


def both_ways(layer: PromptSlots, queries: Tensor, *new_states: Tensor) -> list[Tensor]:
    """Attention of the queries by the kernel and by stacks, over new keys and values too."""
    scaling = queries.shape[-1] ** -0.5
    return [
        SlotCache(each, len(queries), 4, None).attend(queries, *new_states, scaling)
        for each in (layer, replace(layer, packed=None, apart=layer.stacks))
    ]


@pytest.mark.usefixtures("literal")
def test_packed_entries_exist_once():
    """The stacks are views of the packed tensors, also after rows have left."""
    keys, values = torch.randn(2, 2, 300, 16)
    masks: list[Tensor | None] = [torch.rand(2, 300) < share for share in (0.1, 0.3, 0.3)]
    before = compact(keys, values, [Keep(mask) for mask in (*masks, None)])
    for layer, rows in ((before, (0, 1, 2)), (before.rows([2, 3, 0]), (0, 2))):
        held = layer.packed.keys.nbytes + layer.packed.values.nbytes
        assert held == sum(layer.row_bytes(row) for row in rows)
        held_keys = [stack.segment.decoded()[0] for stack in layer.stacks]
        storages = {keys.untyped_storage().data_ptr() for keys in held_keys}
        assert storages == {layer.packed.keys.untyped_storage().data_ptr()}


# --- which kernel -------------------------------------------------------------------------


def test_no_kernel_on_cpu_or_for_float32():
    assert varlen.usable_kernel(CPU, torch.bfloat16, 64) is None
    assert varlen.usable_kernel(torch.device("cuda"), torch.float32, 64) is None


def other_base(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    out, total = literal_kernel(*given, **named)
    return out, total / torch.tensor(2.0).log()


def wrong_sequence(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    out, total = literal_kernel(*given, **named)
    return out.flip(0), total


def without_scale(query: Tensor, *given: Any, return_aux: Any) -> tuple[Tensor, Tensor]:
    raise AssertionError("not reached")


def without_gpu(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


@pytest.mark.parametrize("wrong", [other_base, wrong_sequence, without_scale, without_gpu])
def test_the_trial_accepts_a_right_kernel_and_refuses_wrong_ones(wrong):
    assert varlen._works(literal_kernel, CPU, torch.bfloat16, 64)
    assert not varlen._works(wrong, CPU, torch.bfloat16, 64)


def test_memory_that_runs_out_in_the_trial_is_not_remembered_as_no_kernel():
    room = [False]

    def kernel(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if not room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return literal_kernel(*given, **named)

    with pytest.raises(torch.OutOfMemoryError):
        varlen._works(kernel, CPU, torch.bfloat16, 64)
    room[0] = True
    assert varlen._works(kernel, CPU, torch.bfloat16, 64)


def test_pytorch_still_takes_the_arguments_given():
    """Its kernel runs on a GPU only; on the meta device it gives shapes."""
    queries, keys = torch.empty(3, 2, 64, device="meta"), torch.empty(40, 64, device="meta")
    slots = torch.arange(3)
    packed = varlen.pack(keys, keys, slots, (10, 25, 5), varlen.varlen_attn)
    out, total = packed.attention(queries.bfloat16(), 0.1)
    assert (out.shape, total.shape, total.dtype) == ((3, 2, 64), (3, 2), torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch's kernel needs a CUDA device")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_pytorchs_kernel_gives_what_the_stacks_give(dtype, atol, head_dim):
    """One layer's attention: the logits of a whole model differ by their own rounding."""
    device = torch.device("cuda")
    assert varlen.usable_kernel(device, dtype, head_dim) is not None
    _compare_paths(device, dtype, head_dim, atol)


@pytest.mark.usefixtures("literal")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)])
def test_the_packed_path_of_half_precision_gives_what_the_stacks_give(dtype, atol):
    _compare_paths(CPU, dtype, 64, atol)


def _compare_paths(device: torch.device, dtype: torch.dtype, head_dim: int, atol: float) -> None:
    """Four rows of unequal lengths, the full cache among them, and three new tokens each."""
    generator = torch.Generator().manual_seed(head_dim)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, head_dim, generator=generator).to(device, dtype)

    shares = [torch.rand(2, 1_500, generator=generator) < share for share in (0.05, 0.3, 0.01)]
    keeps = [*(Keep(mask.to(device)) for mask in shares), Keep(None)]
    layer = compact(drawn(2, 1_500), drawn(2, 1_500), keeps)
    assert layer.packed is not None
    outputs = both_ways(layer, drawn(4, 4, 3), drawn(4, 2, 3), drawn(4, 2, 3))
    torch.testing.assert_close(*outputs, rtol=atol, atol=atol)
