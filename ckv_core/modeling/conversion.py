"""From a quantised GGUF to a float32 safetensors folder with the same weights, checked."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from ckv_core.errors import ModelError
from ckv_core.modeling.sources import Report

# Digits, runs of spaces, accents, an emoji, code, special tokens: what tokenizers disagree on.
_PROBES = (
    "The invoice number is 48291, due on 3 March.",
    "  two leading spaces,\tone tab\n\n\nthree newlines ",
    "Gr\u00fc\u00dfe aus Z\u00fcrich, \u4f60\u597d \U0001f642",
    "def f(x):\n    return {'a': x[1:-1]}  # done",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "",
)


def convert_gguf(gguf: Path, target: Path, report: Report) -> None:
    """Write the dequantised weights, config and tokenizer of a Llama GGUF into a folder.

    The weights stay float32: rounding them would change the model.

    Args:
        gguf: the file; its hash was checked before.
        target: an existing, empty folder.
        report: told of each step.

    Raises:
        ModelError: what was written differs from what was read.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the report tells each step
    report("Reading and dequantising the GGUF file (about 20 seconds, only once).")
    source = LlamaForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    settings = source.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    # transformers refuses to save what it read from a GGUF, so the weights move to a fresh model.
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(source.state_dict(), strict=True)
    model.generation_config = source.generation_config
    report("Saving the weights as float32 safetensors.")
    model.save_pretrained(str(target))
    _check_weights(source, target)
    report("Saving and checking the tokenizer.")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(str(target))
    _check_tokenizer(tokenizer, target)


def _check_weights(source: LlamaForCausalLM, target: Path) -> None:
    saved = load_file(target / "model.safetensors")
    for name, weight in source.named_parameters():
        if name not in saved or not torch.equal(saved[name], weight):
            raise ModelError(
                f"The converted weight {name} differs from the GGUF's. Check the free disk space "
                "and start again."
            )


def _check_tokenizer(original: PreTrainedTokenizerBase, target: Path) -> None:
    saved = AutoTokenizer.from_pretrained(str(target))
    chat = [{"role": "user", "content": _PROBES[0]}]
    same = (
        all(original(text)["input_ids"] == saved(text)["input_ids"] for text in _PROBES)
        and original.eos_token_id == saved.eos_token_id
        and _PROBES[0] in saved.apply_chat_template(chat, tokenize=False)
        and original.apply_chat_template(chat, add_generation_prompt=True)
        == saved.apply_chat_template(chat, add_generation_prompt=True)
    )
    if not same:
        raise ModelError(
            "The saved tokenizer differs from the GGUF's. Check the free disk space and start "
            "again."
        )
