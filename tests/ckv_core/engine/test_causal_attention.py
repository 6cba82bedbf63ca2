"""Laws of the chunk's attention: every path equals a masked softmax written out."""

import pytest
import torch

from ckv_core.engine import causal
from ckv_core.engine.causal import visible


@pytest.mark.parametrize(
    ("path", "value_dim", "entries"),
    [
        *[("joined", dim, entries) for dim in (16, 24) for entries in (7, 8, 40, 300)],
        *[("bias", dim, entries) for dim in (16, 24) for entries in (8, 300)],
        *[("chosen", dim, entries) for dim in (16, 24) for entries in (7, 8, 300)],
    ],
)
def test_a_chunk_sees_all_entries_up_to_its_own(path, value_dim, entries):
    tokens, scaling, told = 7, 0.3, None
    generator = torch.Generator().manual_seed(entries)
    query = torch.randn(1, 6, tokens, 16, generator=generator)
    keys = torch.randn(1, 2, entries, 16, generator=generator)
    values = torch.randn(1, 2, entries, value_dim, generator=generator)
    if path == "joined":
        actual, told = causal._joined(query, keys, values, scaling)
    elif path == "bias":
        actual = torch.nn.functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=causal.causal_lower_right(tokens, entries),
            scale=scaling,
            enable_gqa=True,
        )
    else:
        actual, told = causal.causal_attention(query, keys, values, scaling)
    for head in range(6):
        logits = query[0, head] @ keys[0, head // 3].T * scaling
        future = torch.arange(entries) > torch.arange(entries - tokens, entries)[:, None]
        logits = logits.masked_fill(future, -torch.inf)
        expected = logits.softmax(-1) @ values[0, head // 3]
        torch.testing.assert_close(actual[0, head], expected, rtol=1e-5, atol=1e-5)
        total = logits.logsumexp(-1)
        written = causal.log_sum_exp(query[0], keys[0], scaling)[head]
        torch.testing.assert_close(written, total, rtol=1e-5, atol=1e-5)
        if told is not None:
            torch.testing.assert_close(told[0, head], total, rtol=1e-5, atol=1e-5)
    if path == "chosen":
        assert told is not None, "no logits of a chunk are left to the math path"


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("window", [1, 9, 40])
def test_a_slice_at_a_time_is_the_mask_of_the_whole_chunk(tokens, window, monkeypatch):
    monkeypatch.setattr(causal, "_SLIDING", 3)
    # What CUDA takes looks at a few queries at a time.
    monkeypatch.setattr("ckv_core.methods.partial_attention.MAX_LOGITS", 100)
    generator = torch.Generator().manual_seed(tokens)
    query = torch.randn(1, 6, tokens, 16, generator=generator)
    keys = torch.randn(1, 2, 20 + tokens, 16, generator=generator)
    values = torch.randn(1, 2, 20 + tokens, 24, generator=generator)
    mask = visible(20, 20 + tokens, 0, 20 + tokens, window, torch.device("cpu"))
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    slices = causal.sliding_attention(query, keys, values, window, 0.3)
    torch.testing.assert_close(slices, whole, rtol=1e-5, atol=1e-5)
    blocks = causal._in_blocks(query, keys, values, mask, 0.3)
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-5)
