"""From a quantised GGUF to a float32 safetensors folder with the same weights, checked."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from ckv_core.errors import ModelError
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.steps import Report, Step, read_limit_s

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
    """Write the dequantised weights, config and tokenizer of a GGUF into an empty folder.

    The weights stay float32: rounding them would change the model. ModelError where what was
    written differs from what was read.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the report tells each step
    limit_s = read_limit_s(8 * gguf.stat().st_size)  # four bits become 32
    report(Step("Reading and dequantising the GGUF file (only once).", limit_s=limit_s))
    source: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        trust_remote_code=False,
        attn_implementation=ATTENTION_NAME,
    )
    report(Step("Saving the weights as float32 safetensors.", limit_s=limit_s))
    # In a fresh model: transformers refuses to save what it read from a GGUF.
    settings = source.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    with torch.device("meta"):
        model: Any = type(source)(type(source.config).from_dict(settings))
    model.load_state_dict(source.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = source.generation_config
    model.save_pretrained(str(target))
    report(Step("Checking the weights.", limit_s=limit_s))
    lacking = dict(source.named_parameters())
    for path in target.glob("model*.safetensors"):
        with safe_open(path, framework="pt") as saved:
            for name in saved.keys():  # noqa: SIM118 - no mapping
                if name in lacking and torch.equal(saved.get_tensor(name), lacking[name]):
                    del lacking[name]
    if lacking:
        raise ModelError(
            f"The converted weight {next(iter(lacking))} differs from the GGUF's. Check the free "
            "disk space and start again."
        )
    report(Step("Saving and checking the tokenizer.", limit_s=limit_s))
    original = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    original.save_pretrained(str(target))
    saved = AutoTokenizer.from_pretrained(str(target))
    same = (
        all(original(text)["input_ids"] == saved(text)["input_ids"] for text in _PROBES)
        and original.eos_token_id == saved.eos_token_id
        and original.chat_template == saved.chat_template
    )
    if not same:
        raise ModelError(
            "The saved tokenizer differs from the GGUF's. Check the free disk space and start "
            "again."
        )
