"""Laws of attention in parts: the fused kernel equals the one written out, parts make the whole."""

import pytest
import torch
from torch import Tensor

from ckv_core.methods import attention
from ckv_core.methods.attention import has_cuda_flash, join, partial, written_out
from ckv_core.methods.parts.scaling import Scaling, softmax

SCALING, CAPPED = Scaling(0.3), Scaling(0.3, cap=1.5)
RTOL, ATOL = 1e-5, 1e-5


def tensors(queries: int, entries: int, value_dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(entries)
    shapes = ((3, queries, 16), (3, entries, 16), (3, entries, value_dim))
    one, two, three = (torch.randn(shape, generator=generator) for shape in shapes)
    return one, two, three


@pytest.mark.parametrize("entries", [1, 2, 31, 513, 1500])
@pytest.mark.parametrize("queries", [1, 3, 200])
def test_the_fused_kernel_equals_the_one_written_out(queries, entries):
    asked, keys, values = tensors(queries, entries)
    fused = partial(asked, keys, values, SCALING)
    for actual, expected in zip(
        fused, written_out(asked, keys, values, SCALING, None), strict=True
    ):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "serves"),
    [
        (torch.bfloat16, 256, (8, 0), True),
        (torch.float16, 264, (9, 0), False),
        (torch.float16, 100, (9, 0), False),
        (torch.float32, 64, (9, 0), False),
        (torch.float16, 64, (7, 5), False),
    ],
)
def test_cudas_flash_kernel_takes_what_it_was_made_for(
    monkeypatch, dtype, head_dim, capability, serves
):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert has_cuda_flash(torch.device("cuda"), dtype, head_dim) == serves
    assert not has_cuda_flash(torch.device("cpu"), dtype, head_dim)


def test_no_block_has_more_logits_than_it_may(monkeypatch):
    """Three heads of 31 entries: 93 logits a query, so that two queries fit and three do not."""
    asked, keys, values = tensors(5, 31)
    whole = written_out(asked, keys, values, SCALING, None)
    rows, block = [], attention._block
    monkeypatch.setattr(attention, "MAX_LOGITS", 278)
    monkeypatch.setattr(
        attention,
        "_block",
        lambda part, *rest: rows.append(part.shape[1]) or block(part, *rest),
    )
    torch.testing.assert_close(written_out(asked, keys, values, SCALING, None), whole)
    assert rows == [2, 2, 1]


@pytest.mark.parametrize("cut", [0, 1, 17, 40])
@pytest.mark.parametrize("value_dim", [16, 24])
@pytest.mark.parametrize("scaling", [SCALING, CAPPED], ids=["plain", "capped"])
def test_two_parts_joined_are_the_whole(cut, value_dim, scaling):
    """Also where one part holds nothing: a head may keep no entry."""
    queries, keys, values = tensors(5, 40, value_dim)
    parts = [
        partial(queries, keys[:, part], values[:, part], scaling)
        for part in (slice(cut), slice(cut, None))
    ]
    logits = queries @ keys.mT * 0.3
    logits = logits if scaling.cap is None else 1.5 * (logits / 1.5).tanh()
    torch.testing.assert_close(join(*parts), logits.softmax(-1) @ values, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_sink_is_one_more_entry_whose_value_is_zeros(cut):
    """Of two rows with two KV heads of three query heads each, three tokens at a time."""
    sink = torch.tensor([-1.0, 0.5, 3.0, 0.0, 2.0, -4.0])
    scaling = Scaling(0.3, sink=sink)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(2, 2, 3, 3, 16, generator=generator)
    keys, values = torch.randn(2, 2, 2, 40, 16, generator=generator)
    own, other = (
        partial(
            queries.flatten(2, 3).flatten(0, 1),
            *(each[:, :, part].flatten(0, 1) for each in (keys, values)),
            scaling,
        )
        for part in (slice(cut), slice(cut, None))
    )
    found = join(scaling.joined(*own, 3), other).view(2, 2, 3, 3, 16)
    logits = queries @ keys[:, :, None].mT * 0.3
    sinks = sink.view(1, 2, 3, 1, 1).expand(2, -1, -1, 3, -1)
    whole = torch.cat([logits, sinks], -1).softmax(-1)
    expected = whole[..., :-1] @ values[:, :, None]
    torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL)
    attention, norms = scaling.completed(whole[0, 0, :, 0, :-1], torch.ones(3, 40))
    torch.testing.assert_close(attention, whole[0, 0, :, 0])
    assert norms.sum(-1).tolist() == [40] * 3
    softmaxed = softmax(logits[:, :, :, 0], scaling.grouped_sink(2))
    torch.testing.assert_close(softmaxed, whole[:, :, :, 0, :-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_output_only(dtype):
    queries, keys, values = (tensor.to(dtype) for tensor in tensors(2, 300))
    out, total = partial(queries, keys, values, SCALING)
    expected, expected_total = written_out(
        queries.float(), keys.float(), values.float(), SCALING, None
    )
    assert out.dtype == total.dtype == torch.float32
    torch.testing.assert_close(total, expected_total, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=5e-3)


def test_large_logits_of_half_precision_are_no_infinity():
    queries, keys = torch.full((1, 1, 128), 30.0), torch.full((1, 9, 128), 30.0)
    keys[:, 4:] = 29.0
    values = torch.randn(1, 9, 128, generator=torch.Generator().manual_seed(0))
    expected, total = written_out(queries, keys, values, SCALING, None)
    half = [tensor.half() for tensor in (queries, keys, values)]
    out, half_total = written_out(*half, SCALING, None)
    assert (queries @ keys.mT).max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(half_total, total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=5e-3)


def test_logits_of_half_precision_have_the_digits_of_float32():
    """Rounded logits of about 30 would be off by 0.1 in bfloat16."""
    queries, keys, values = (10 * tensor.bfloat16() for tensor in tensors(4, 600))
    exact = written_out(queries.float(), keys.float(), values.float(), SCALING, None)
    out, total = written_out(queries, keys, values, SCALING, None)
    torch.testing.assert_close(total, exact[1], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out, exact[0], rtol=2e-2, atol=5e-2)
