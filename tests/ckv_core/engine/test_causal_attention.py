"""Laws of the chunk's attention, and what observers gather of it, against the whole matrix."""

import pytest
import torch
from torch import Tensor

from ckv_core.engine import causal
from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.causal import visible
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.methods.h2o import ACCUMULATED, AccumulatedAttention
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import Chunk, begun
from tests.factories.models import drained, prompt_ids, tiny_model

PLAIN = Scaling(0.3)


@pytest.mark.parametrize(
    ("path", "value_dim", "entries"),
    [
        *[("joined", dim, entries) for dim in (16, 24) for entries in (7, 8, 40, 300)],
        *[("chosen", dim, entries) for dim in (16, 24) for entries in (7, 8, 300)],
    ],
)
def test_a_chunk_sees_all_entries_up_to_its_own(path, value_dim, entries):
    tokens = 7
    generator = torch.Generator().manual_seed(entries)
    query = torch.randn(1, 6, tokens, 16, generator=generator)
    keys = torch.randn(1, 2, entries, 16, generator=generator)
    values = torch.randn(1, 2, entries, value_dim, generator=generator)
    if path == "joined":
        actual, told = causal._joined(query, keys, values, PLAIN)
    else:
        actual, told = causal.causal_attention(query, keys, values, PLAIN)
    for head in range(6):
        logits = query[0, head] @ keys[0, head // 3].T * 0.3
        future = torch.arange(entries) > torch.arange(entries - tokens, entries)[:, None]
        logits = logits.masked_fill(future, -torch.inf)
        expected = logits.softmax(-1) @ values[0, head // 3]
        torch.testing.assert_close(actual[0, head], expected, rtol=1e-5, atol=1e-5)
        total = logits.logsumexp(-1)
        torch.testing.assert_close(told[0, head], total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunks", [1, 2, 6, 9])
def test_whole_chunks_are_joined_from_blocks(chunks, monkeypatch):
    """What cuDNN would be given is given to the CPU's flash kernel."""
    monkeypatch.setattr(causal, "CUDA_CHUNK", 8)
    monkeypatch.setattr(causal, "has_cudnn", lambda *_: True)
    monkeypatch.setattr(causal, "cudnn", causal.flash)
    query, keys, values = torch.randn(3, 1, 2, 8 * chunks, 16, generator=torch.manual_seed(chunks))
    query = query[:, :, -8:].repeat(1, 2, 1, 1)
    actual = causal.causal_attention(query, keys, values, PLAIN)
    expected = causal._joined(query, keys, values, PLAIN)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_cudnn_gives_what_the_flash_kernel_gives(head_dim):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the flash kernel is taken before Hopper")
    drawn = torch.Generator().manual_seed(head_dim)
    query, keys, values = (
        torch.randn(1, heads, length, head_dim, generator=drawn).to("cuda", torch.bfloat16)
        for heads, length in (
            (8, causal.CUDA_CHUNK),
            (2, 6 * causal.CUDA_CHUNK),
            (2, 6 * causal.CUDA_CHUNK),
        )
    )
    assert causal.has_cudnn(query, keys, PLAIN)
    actual = causal._by_cudnn(query, keys, values, PLAIN)
    expected = causal.flash(query, keys, values, PLAIN, is_causal=True)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("window", [1, 9, 40])
def test_a_slice_at_a_time_is_the_mask_of_the_whole_chunk(tokens, window, monkeypatch):
    monkeypatch.setattr(causal, "_SLIDING", 3)
    # What CUDA takes looks at a few queries at a time.
    monkeypatch.setattr("ckv_core.methods.attention.MAX_LOGITS", 100)
    generator = torch.Generator().manual_seed(tokens)
    query = torch.randn(1, 6, tokens, 16, generator=generator)
    keys = torch.randn(1, 2, 20 + tokens, 16, generator=generator)
    values = torch.randn(1, 2, 20 + tokens, 24, generator=generator)
    mask = visible(20, 20 + tokens, 0, 20 + tokens, window, torch.device("cpu"))
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    slices = causal.sliding_attention(query, keys, values, window, PLAIN)
    torch.testing.assert_close(slices, whole, rtol=1e-5, atol=1e-5)
    blocks = causal._in_blocks(query, keys, values, mask, PLAIN)
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-5)


NEEDS = Needs(8, (ACCUMULATED,))


@torch.inference_mode()
def read(arch: str, length: int, needs: Needs = NEEDS) -> Prefill:
    return drained(prefill(tiny_model(arch), prompt_ids(length), needs, lambda: False))


@pytest.mark.parametrize(("kv_heads", "on_cuda"), [(1, False), (2, False), (4, True), (2, True)])
def test_accumulated_attention_is_the_column_sum_of_the_matrix(kv_heads, on_cuda, monkeypatch):
    """Head by head, or all heads and a few queries at a time."""
    monkeypatch.setattr("ckv_core.base.devices.is_cuda_like", lambda _device: on_cuda)
    monkeypatch.setattr("ckv_core.methods.h2o._CUDA_LOGITS", 90)
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(4, 9, 6, generator=generator)
    keys = torch.randn(kv_heads, 9, 6, generator=generator)
    found = begun(ACCUMULATED, queries, 9)
    for start, end in ((0, 4), (4, 9)):
        part = (queries[:, start:end], keys[:, :end])
        _, totals = causal.causal_attention(*(each[None] for each in (*part, part[1])), PLAIN)
        ACCUMULATED.see(
            found, Chunk(start, *part, keys, PLAIN, lambda: None, totals[0], torch.empty)
        )
    for head in range(4):
        columns = [0.0] * 9
        for t in range(9):
            own = keys[head // (4 // kv_heads), : t + 1].double() @ queries[head, t].double()
            for place, weight in enumerate((own * 0.3).softmax(-1).tolist()):
                columns[place] += weight
        torch.testing.assert_close(found[head], torch.tensor(columns), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_prompt_in_chunks_gathers_what_one_pass_does(arch, monkeypatch):
    """Of evictable layers only; every query gives 1 in all."""
    whole = read(arch, 150).observed[ACCUMULATED]
    monkeypatch.setattr(engine_prefill, "CHUNK", 64)
    parts = read(arch, 150).observed[ACCUMULATED]
    evictable = tiny_model(arch).info.evictable_layers
    assert tuple(whole) == tuple(parts) == evictable
    for layer in evictable:
        torch.testing.assert_close(parts[layer], whole[layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole[layer].sum(-1), torch.full((4,), 150.0))


class Projected(AccumulatedAttention):
    """Gathers instead how close each query is to what the hidden states give, 1 at most."""

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        first = tiny_model("llama").attentions[0]
        heads = first.qkv_proj(chunk.hidden())[:, : len(statistic) * 16].unflatten(1, (-1, 16))
        turned = chunk.rotary().turn(heads.transpose(0, 1), chunk.start)
        end = chunk.start + chunk.queries.shape[1]
        difference = (turned - chunk.queries).abs().amax(2)
        statistic[:, chunk.start : end] = 1 / (1 + difference)


def test_an_observer_that_asks_sees_the_hidden_states(monkeypatch):
    """Through layer 0's own projection and RoPE they are its queries, chunk by chunk."""
    monkeypatch.setattr(engine_prefill, "CHUNK", 64)
    asking = Projected()
    found = read("llama", 150, Needs(8, (asking, ACCUMULATED))).observed[asking]
    assert found[0].amin() > 1 - 1e-4
    assert found[1].amin(0).amax() < 1 - 1e-2, "another layer is given other states"


@pytest.mark.parametrize("window", [None, 9])
def test_a_gradient_goes_back_through_blocks_of_queries_as_through_all(monkeypatch, window):
    """As on CUDA, where the logits of all queries would not fit."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(1, heads, n, 8, generator=generator) for heads, n in ((4, 12), (2, 30))]
    found = []
    for most, is_cuda in ((2**24, False), (2**24, True), (4 * 30 * 5, True)):
        monkeypatch.setattr(causal, "MAX_LOGITS", most)
        monkeypatch.setattr(causal, "is_cuda_like", lambda _, own=is_cuda: own)
        query, keys = (each.clone().requires_grad_() for each in drawn)
        out = causal.with_gradient(query, keys, keys * 2, window, Scaling(0.3))
        found.append((out, *torch.autograd.grad(out.square().sum(), (query, keys))))
    for other in found[1:]:
        for one, each in zip(found[0], other, strict=True):
            torch.testing.assert_close(each, one, rtol=1e-4, atol=1e-5)
