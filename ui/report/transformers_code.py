"""A run's kept sets as Python code for plain transformers: prefill, keep, answer from what is left.

Everything that comes from a run is escaped: an imported SPEC may hold anything.
"""

from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ui.report.kvpress_code import model_of

_CODE = '''"""Answer from what each method kept of the prompt, with transformers alone.

Each entry that a method did not keep is taken out of the cache; new tokens continue at the
prompt's end, as in the run.

Usage: python THIS_FILE RESULT.json [MODEL]
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

{weights}MODEL = {model}
MAX_NEW_TOKENS = {new_tokens}
SPECS = {specs}


def keep(cache, retained):
    """Leave of each layer what `retained` lists: positions by KV head, None for all."""
    kept = retained or []
    if len({{len(head) for heads in kept for head in heads or []}}) > 1:
        raise ValueError("heads or layers keep unequally many entries, which no plain cache holds")
    for layer, heads in zip(cache.layers, kept):
        if heads is None:
            continue
        index = torch.tensor(heads, device=layer.keys.device)[None, :, :, None]
        index = index.expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)


@torch.inference_mode()
def answer(model, prompt, retained):
    """Token ids, greedily chosen."""
    ids, end = prompt["token_ids"], prompt["compressed_tokens"]
    cache = DynamicCache()
    found = model(input_ids=torch.tensor([ids[:end]], device=model.device), past_key_values=cache)
    keep(cache, retained)
    stops = model.generation_config.eos_token_id
    stops = set(stops if isinstance(stops, list) else [stops])
    waiting, written = list(ids[end:]), []
    for place in range(end, len(ids) + MAX_NEW_TOKENS):
        if waiting:  # what is read after the compression, token by token
            token = waiting.pop(0)
        else:
            token = int(found.logits[0, -1].argmax())
            written.append(token)
            if token in stops:
                break
        at = torch.tensor([[place]], device=model.device)
        fed = torch.tensor([[token]], device=model.device)
        found = model(input_ids=fed, position_ids=at, past_key_values=cache)
    return written


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        run = json.load(file)
    name = sys.argv[2] if len(sys.argv) > 2 else MODEL
    model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, {dtype}))
    tokenizer = AutoTokenizer.from_pretrained(name)
    for variant in run["variants"]:
        if variant["spec"] not in SPECS:
            continue
        try:
            written = answer(model.eval(), run["prompt"], variant["retained"])
        except ValueError as error:
            print(f"{{variant['spec']}}: left out, {{error}}")
            continue
        print(f"{{variant['spec']}}: {{tokenizer.decode(written, skip_special_tokens=True)}}")


if __name__ == "__main__":
    main()
'''
_DTYPES = {"float32", "bfloat16", "float16"}


def transformers_code(result: RunResult, max_new_tokens: int) -> str:
    """Python source; empty where no variant can be answered from a plain cache."""
    specs = [each.spec for each in result.variants if _is_plain(each)]
    if result.model is None or not specs:
        return ""
    name, weights = model_of(result.model.name)
    return _CODE.format(
        model=ascii(name),
        weights=weights,
        new_tokens=int(max_new_tokens),
        specs=ascii(specs),
        dtype=ascii(result.model.dtype if result.model.dtype in _DTYPES else "float32"),
    )


def _is_plain(variant: VariantResult) -> bool:
    """Whether its entries stay as they were, where they were, while it generates."""
    params = variant.params
    is_moved = params.get("positions") == "cache"
    return variant.held is None and not is_moved and not {"store", "every"} & params.keys()
