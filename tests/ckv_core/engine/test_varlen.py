"""The variable-length path against the stacks: packing, query groups and the join, all proven.

PyTorch's kernel needs a GPU. Without one a literal loop with its signature takes its place, so
that everything around the kernel is tested on every machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ckv_core.engine.cache import slots, varlen
from ckv_core.engine.cache.slots import Keep, PromptSlots, SlotCache, compact
from ckv_core.methods.attention import join
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import STORES, PlainSegment
from tests.factories.decoding import CLOSE, PROMPT_LEN, prefilled, steady_decoder
from tests.factories.models import SPECS, prompt_ids, tiny_model

CPU = torch.device("cpu")


def literal_kernel(  # noqa: PLR0917 - the kernel's own signature
    query: Tensor, key: Tensor, value: Tensor, starts_q: Tensor, starts_k: Tensor, longest_q: int,
    longest_k: int, dropout: float, causal: bool, debug: bool, *, scale: float,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One sequence and head after another; query heads share the key head of their group."""
    assert query.dim() == key.dim() == value.dim() == 3
    assert len(key) == len(value)
    assert starts_q.dtype == starts_k.dtype == torch.int32
    assert [int(starts_q[-1]), int(starts_k[-1])] == [len(query), len(key)]
    assert [int(starts_q.diff().max()), int(starts_k.diff().max())] == [longest_q, longest_k]
    assert longest_q == 1, "entries are spread over the device for single tokens alone"
    assert starts_k.diff().min() > 0, "what the kernel gives for no keys is not documented"
    assert (dropout, causal, debug) == (0.0, False, False)
    out = torch.empty_like(query)
    total = torch.empty(query.shape[1], len(query))
    group = query.shape[1] // key.shape[1]
    for sequence in range(len(starts_q) - 1):
        asked = slice(int(starts_q[sequence]), int(starts_q[sequence + 1]))
        first, end = int(starts_k[sequence]), int(starts_k[sequence + 1])
        seen = slice(first, end if seqused_k is None else first + int(seqused_k[sequence]))
        for head in range(query.shape[1]):
            keys, values = (states[seen, head // group].float() for states in (key, value))
            logits = query[asked, head].float() @ keys.T * scale
            out[asked, head] = (logits.softmax(-1) @ values).to(query.dtype)
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
            assert not stacked.prompt.packed
            assert bool(packed.prompt.packed) == (window is None), "none is evicted there"
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
    assert sorted(layer.packed[0].slots) == [1, 4, 5]
    nothing = compact(keys, values, [Keep(masks[1])])
    assert not nothing.packed
    queries, own = torch.randn(2, 3, 4, 1, 16, generator=torch.Generator().manual_seed(2))
    packed, stacked = both_ways(layer, queries, own[:, :2], own[:, 2:])
    torch.testing.assert_close(packed, stacked, rtol=1e-5, atol=1e-5)
    # Row 1 keeps nothing: all its weight goes to its own token.
    torch.testing.assert_close(packed[1, :2], own[1, 2].expand(2, 1, 16))


def both_ways(
    layer: PromptSlots, queries: Tensor, *new_states: Tensor, cap: float | None = None
) -> list[Tensor]:
    """Attention of the queries by the kernel and by stacks, over new keys and values too."""
    scaling = Scaling(queries.shape[-1] ** -0.5, cap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "usable_kernel", lambda *_: None)
        by_stacks = layer.rows(range(len(queries)))
    assert not by_stacks.packed
    return [
        SlotCache(each, len(queries), 64, None).attend(queries, *new_states, scaling)
        for each in (layer, by_stacks)
    ]


CODED = [("int8", 32), ("int4", 4), ("int4", 0), ("think", 4)]


def stored(lengths: Sequence[int], stores: Sequence[tuple[str, int]] = CODED) -> list[Keep]:
    """A row of two KV heads for each length and store; the second keeps twice as many."""
    rows = []
    for length, (store, residual) in product(lengths, stores):
        mask = torch.arange(300) < torch.tensor([[length], [2 * length]])
        parameters = {"residual": residual, "pruned": 0.4}
        rows.append(Keep(mask, STORES[store], parameters))
    return rows


@pytest.mark.usefixtures("literal")
def test_heads_of_any_store_and_length_are_one_call_for_each_store():
    """Groups of 32 that are not full, heads without coded entries, rows that leave."""
    keys, values = torch.randn(2, 2, 300, 64, generator=torch.Generator().manual_seed(3))
    keeps = [*stored((3, 33, 70)), Keep(None), Keep(torch.arange(300).expand(2, -1) < 9)]
    layer = compact(keys, values, keeps)
    assert len(layer.packed) == 1 + 3, "plain entries, and three stores"
    for rows in ([*range(len(keeps))], [13, 5, 6, 11, 0], [7], [12]):
        part = layer.rows(rows)
        queries, own = torch.randn(2, len(rows), 4, 2, 64, generator=torch.Generator())
        for cap in (None, 1.5):  # the kernel has none, so the packed entries are read without it
            by_kernel, by_stacks = both_ways(part, queries, own[:, :2], own[:, 2:], cap=cap)
            torch.testing.assert_close(by_kernel, by_stacks, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("literal")
def test_packed_entries_exist_once():
    """The stacks are views of the packed tensors, also after rows have left."""
    keys, values = torch.randn(2, 2, 300, 64)
    masks: list[Tensor | None] = [torch.rand(2, 300) < share for share in (0.1, 0.3, 0.3)]
    before = compact(keys, values, [*(Keep(mask) for mask in masks), Keep(None), *stored((20, 50))])
    for layer in (before, before.rows([2, 3, 0, 6, 8, 5])):
        parts = [part for each in layer.packed for part in each.parts]
        packed = [tensor for part in parts for tensor in part.segment.tensors().values()]
        laid = [tensor for each in layer.stacks for tensor in each.segment.tensors().values()]
        assert not layer.apart
        assert storages(laid) < storages(packed), "beside them, where rows of scales begin"
        assert sum(size for _, size in storages(packed)) < 1.02 * sum(each.nbytes for each in laid)


def storages(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """Where tensors lie, and how many bytes there are."""
    held = [tensor.untyped_storage() for tensor in tensors]
    return {(each.data_ptr(), each.nbytes()) for each in held}


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


def without_scale(query: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    raise AssertionError("not reached")


def no_halves(query: Tensor, key: Tensor, *given: Any, scale: float) -> tuple[Tensor, Tensor]:
    """The entries of a long head that its first block has not seen are forgotten."""
    return literal_kernel(
        query, key.index_fill(0, torch.arange(2_000, 2_900), 0), *given, scale=scale
    )


def without_gpu(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


@pytest.mark.parametrize(
    "wrong", [other_base, wrong_sequence, no_halves, without_scale, without_gpu]
)
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
    segments = [PlainSegment(*torch.empty(2, 1, n, 64, device="meta").bfloat16()) for n in (10, 5)]
    packed, _ = varlen.pack(segments, [(0,), (1,)], varlen._KERNEL)
    queries = torch.empty(2, 4, 64, device="meta", dtype=torch.bfloat16)
    out, total = packed.attention(queries, Scaling(0.1))
    assert (out.shape, total.shape, total.dtype) == ((2, 4, 64), (2, 4), torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch's kernel needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "head_dim", "atol"), [(torch.bfloat16, 128, 0.02), (torch.float16, 64, 0.004)]
)
@pytest.mark.parametrize("is_own", [True, False])
def test_each_kernel_gives_what_the_stacks_give(dtype, atol, head_dim, is_own, monkeypatch):
    """One layer's attention: the logits of a whole model differ by their own rounding."""
    device = torch.device("cuda")
    kernel = varlen.usable_kernel(device, dtype, head_dim)
    assert kernel is not None
    assert kernel is not varlen._KERNEL
    if not is_own:
        monkeypatch.setattr(slots, "usable_kernel", lambda *_: varlen._KERNEL)
    for tokens in (1, 3, 40):
        _compare_paths(device, dtype, head_dim, atol, tokens)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compiles for a CUDA device")
@pytest.mark.parametrize("rows", [1, 300])
def test_codes_are_read_as_they_are_held(rows):
    """Few heads are cut into parts, and many are not."""
    device, head_dim = torch.device("cuda"), 128
    assert varlen.usable_reader(device, head_dim) is not None
    generator = torch.Generator().manual_seed(head_dim)
    keys, values = torch.randn(2, 2, 300, head_dim, generator=generator).to(device, torch.bfloat16)
    keeps = stored((40, 149), [("int8", 32), ("int4", 32), ("int4", 0)]) * rows
    keeps = [replace(keep, mask=keep.mask.to(device)) for keep in keeps]
    layer = compact(keys, values, keeps)
    coded = [part for each in layer.packed for part in each.parts if part.coded is not None]
    assert len(coded) == 2, "int8 and int4, and the newest entries of int4 as they are"
    drawn = torch.randn(2, len(keeps), 4, 2, head_dim, generator=generator)
    queries, own = drawn.to(device, torch.bfloat16)
    outputs = both_ways(layer, queries, own[:, :2], own[:, 2:])
    torch.testing.assert_close(*outputs, rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("literal")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)])
def test_the_packed_path_of_half_precision_gives_what_the_stacks_give(dtype, atol):
    _compare_paths(CPU, dtype, 64, atol)


def _compare_paths(
    device: torch.device, dtype: torch.dtype, head_dim: int, atol: float, tokens: int = 3
) -> None:
    """Four rows of unequal lengths, the full cache among them, and some new tokens each."""
    generator = torch.Generator().manual_seed(head_dim)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, head_dim, generator=generator).to(device, dtype)

    shares = [torch.rand(2, 1_500, generator=generator) < share for share in (0.05, 0.3, 0.01)]
    keeps = [*(Keep(mask.to(device)) for mask in shares), Keep(None)]
    layer = compact(drawn(2, 1_500), drawn(2, 1_500), keeps)
    assert layer.packed
    outputs = both_ways(layer, drawn(4, 4, tokens), *(drawn(4, 2, tokens) for _ in range(2)))
    torch.testing.assert_close(*outputs, rtol=atol, atol=atol)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compiles for a CUDA device")
def test_the_fused_join_gives_what_the_parts_give():
    device = torch.device("cuda")
    fused = varlen.usable_join(device)
    assert fused is not None
    for queries, dim, dtype in ((4, 128, torch.bfloat16), (3, 24, torch.float32)):
        own = torch.randn(6, queries, dim, device=device).to(dtype), torch.randn(6, queries).cuda()
        held = torch.randn(8, queries, dim, device=device), torch.randn(queries, 8).cuda().T * 5
        held[1][0] = -torch.inf
        place = torch.randperm(8)[:6].cuda()
        expected = join((own[0].float(), own[1]), (held[0][place], held[1][place]))
        actual = fused(own, held, place, torch.float32, None)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        # Half of the slots have a second stretch, which others take no part of.
        second, has_none = torch.randperm(8)[:6].cuda(), torch.arange(6).cuda()[:, None] < 3
        more = held[0][second], held[1][second].masked_fill(has_none, -torch.inf)
        whole = expected, torch.logaddexp(own[1], held[1][place])
        actual = fused(own, held, place, torch.float32, (second, has_none))
        torch.testing.assert_close(actual, join(whole, more), rtol=1e-4, atol=1e-4)
