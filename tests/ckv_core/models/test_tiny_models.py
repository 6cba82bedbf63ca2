"""Our attention function with a full cache gives what plain transformers gives."""

import pytest
import torch
from torch import Tensor

from ckv_core.models.loaded import LoadedModel
from tests.factories.models import (
    ARCHITECTURES,
    SLIDING_WINDOW,
    plain_model,
    tiny_model,
    tiny_tokenizer,
)

TEXT = "the cat sat on the mat, and then thought about 12,345 things. " * 3


class CausalContext:
    """Full causal attention, narrowed to the window of layers that slide."""

    def __init__(self, windows: tuple[int | None, ...]) -> None:
        self.windows = windows
        self.layers_seen: list[int] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        self.layers_seen.append(layer)
        distance = torch.arange(key.shape[-2])[:, None] - torch.arange(key.shape[-2])
        hidden = distance < 0
        window = self.windows[layer]
        if window is not None:
            hidden |= distance >= window
        group = query.shape[1] // key.shape[1]
        logits = query @ key.repeat_interleave(group, 1).transpose(-1, -2) * scaling
        attention = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        return attention @ value.repeat_interleave(group, 1)


def _logits(loaded: LoadedModel, ids: Tensor) -> Tensor:
    context = CausalContext(loaded.sliding_windows)
    output = loaded.model(ids, use_cache=False, ckv_context=context)
    assert context.layers_seen == list(range(loaded.info.layers))
    return output.logits


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_full_causal_attention_through_our_function_equals_plain_transformers(arch: str) -> None:
    ids = tiny_tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    expected = plain_model(arch)(ids, use_cache=False).logits
    actual = _logits(tiny_model(arch), ids)
    # float32 sums in another order; the logits are of the order of 10.
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_gemma3_gives_other_logits_if_its_windows_are_ignored() -> None:
    """The equality above would not notice a window that is as long as the text."""
    ids = tiny_tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    loaded = tiny_model("gemma3")
    assert ids.shape[-1] > 2 * SLIDING_WINDOW
    whole = CausalContext((None,) * loaded.info.layers)
    ignored = loaded.model(ids, use_cache=False, ckv_context=whole).logits
    assert (ignored - plain_model("gemma3")(ids, use_cache=False).logits).abs().max() > 0.1


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_geometry_is_that_of_the_config(arch: str) -> None:
    info = tiny_model(arch).info
    assert (info.query_heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert info.context_limit == 2048
    assert info.dtype == "float32"
    assert info.device == "cpu"
    expected = (1, 3) if arch == "gemma3" else tuple(range(info.layers))
    assert info.evictable_layers == expected


def test_one_architecture_has_heads_wider_than_its_residual_stream() -> None:
    projection = tiny_model("qwen3").attentions[0].o_proj
    assert projection.in_features == 64
    assert projection.out_features == 48


def test_the_model_needs_no_gradient_and_is_in_eval_mode() -> None:
    loaded = tiny_model("llama")
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_tiny_tokenizer_gives_back_any_text() -> None:
    text = "Gr\u00fc\u00dfe the <|im_start|>\n\n \U0001f642  x"
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
