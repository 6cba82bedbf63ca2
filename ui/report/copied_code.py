"""A run as code to copy: the command, the YAML, transformers with a kept cache, kvpress."""

import json
import shlex
from dataclasses import fields
from typing import Any

from ckv_core.errors import CkvError
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study_file import write_study
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import ARGUMENTS, RunRequest
from ckv_core.records.variants import VariantSpec
from ui.report.kvpress_code import kvpress_code, model_of
from ui.services.live_runs import RunSnapshot

_SHELL = "Paste it into a shell where CriticalKV Lab is installed; it writes result.json."
_YAML = (
    "Writes the text and the request, then runs them as one sample; the same command again shows "
    "the stored results."
)
_KVPRESS = "Save it as presses.py; it needs an environment with kvpress. Usage is in its head."
_TRANSFORMERS = (
    "Plain transformers, no package of ours: it keeps what the method kept and answers from that "
    "cache. It reads the run's file of results: Export, Result (JSON)."
)


def run_codes(run: RunSnapshot) -> list[dict[str, str]]:
    """Of one sample, each as {"label", "note", "text"}; an imported run may hold anything."""
    request, prompt = run.request, run.result.prompt
    found = [{"label": "ckv", "note": _SHELL, "text": command(request)}]
    has_budgets = any("budget=" in spec for spec in request.variants)
    if not (request.own_indices or has_budgets or not request.budgets):
        found.append({"label": "YAML", "note": _YAML, "text": study_command(request, run.slug)})
    if run.kind == "compare" and run.is_final:
        code = transformers_code(run.result, request.max_new_tokens)
        found += [{"label": "transformers", "note": _TRANSFORMERS, "text": code}] if code else []
    if prompt is not None and run.is_final:
        code = kvpress_code(run.result, request.max_new_tokens)
        found.append({"label": "kvpress", "note": _KVPRESS, "text": code})
    return found


def samples_codes(reading: Reading) -> list[dict[str, str]]:
    """Of many samples: the request alone, for its data may be large."""
    note = "Save it as study.yaml, its data beside it, and run: ckv run study.yaml"
    return [{"label": "YAML", "note": note, "text": write_study(reading.study)}]


def command(request: RunRequest) -> str:
    """One line for a POSIX shell, with the text inside it."""
    options: list[tuple[str, str]] = [
        ("--question", request.question),
        ("--answer", request.answer),
        ("--scenario", request.scenario),
        ("--model", request.model),
        *(("--variant", _with_defaults(spec, request)) for spec in request.variants),
        ("--budget", ",".join(request.budgets)),
        ("--alpha", ",".join(request.alphas)),
        ("--max-new-tokens", str(request.max_new_tokens)),
        ("--analyse", ",".join(request.analysis)),
        ("--repeats", request.repeats),
        *(("--follow-up", text) for text in request.follow_ups),
        *(("--protect", text) for text in request.protect),
        ("--device", "" if request.device == "auto" else request.device),
        ("--dtype", "" if request.dtype == "auto" else request.dtype),
    ]
    # A value may begin with a dash.
    words = [f"{name}={shlex.quote(value)}" for name, value in options if value]
    if (prefix := request.answer_prefix) is not None:  # an empty one joins the texts as they are
        words.append(f"--answer-prefix={shlex.quote(prefix)}")
    defaults = {each.name: each.default for each in fields(request)}
    flags = {name: getattr(request, name, None) for name in ARGUMENTS}
    words += [
        f"--{'' if value else 'no-'}{name.replace('_', '-')}"
        for name, value in flags.items()
        if isinstance(value, bool) and value != defaults[name]
    ]
    lines = " \\\n  ".join(["ckv compare --context -", *words, "--json result.json"])
    return f"printf %s {shlex.quote(request.context)} | {lines}\n"


def study_command(request: RunRequest, slug: str) -> str:
    """The same as a YAML file and its one sample, written and run."""
    sample = {
        "id": slug,
        "context": request.context,
        "question": request.question,
        "answers": [request.answer] if request.answer else [],
        "answer_prefix": request.answer_prefix,
    }
    values: dict[str, Any] = {
        "name": f"again {slug}",
        "model": request.model,
        "scenario": request.scenario,
        "data": {"file": f"sample-{slug}.jsonl"},
        "variants": list(request.variants),
        "budgets": list(request.budgets),
        "max_new_tokens": request.max_new_tokens,
    }
    values |= {"alphas": list(request.alphas)} if request.alphas else {}
    values |= {"defaults": dict(request.defaults)} if request.defaults else {}
    # JSON is YAML, and quotes everything.
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    text = shlex.quote(json.dumps(sample) + "\n")
    return (
        f"printf %s {text} > sample-{slug}.jsonl\n"
        f"printf %s {shlex.quote(chr(10).join(lines) + chr(10))} > run-{slug}.yaml\n"
        f"ckv run run-{slug}.yaml\n"
    )


def _with_defaults(spec: str, request: RunRequest) -> str:
    """The command has no settings for all variants, so each names its own."""
    if not request.defaults:
        return spec
    try:
        return VariantSpec.parse(spec, dict(request.defaults)).spec
    except CkvError:  # of an imported run
        return spec


# --- plain transformers: prefill, keep, answer from what is left --------------------------

# Everything that comes from a run is escaped: an imported SPEC may hold anything.
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
