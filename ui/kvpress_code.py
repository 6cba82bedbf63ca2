"""A run's variants as Python code for kvpress: a press with its parameters, and where it differs.

Written against the sources of kvpress 0.5.5. Everything that comes from a run is escaped: an
imported SPEC may hold anything.
"""

from collections.abc import Iterator, Mapping
from math import isfinite

from ckv_core.events import RunResult
from ckv_core.knobs import KnobValue
from ckv_core.records import VariantResult

VERSION = "0.5.5"
NOTHING = "This run has no variant yet."
_HEAD = '''"""The variants of a CriticalKV Lab run as kvpress presses.

For kvpress {version}, which needs transformers below 5.3: give it an environment of its own.
Comments say where a press keeps other entries than the variant did. For all of them:
- compression_ratio is the share removed; it is chosen so that kvpress keeps as many entries of a
  prompt of {tokens:,} tokens as the variant did. Another prompt needs another ratio.
- kvpress's pipeline compresses the context alone and reads the question afterwards (context-only).
  {scenario}
- AdaKV's presses only mask what they evict, so they free no memory, and refuse eager attention.

Usage: python THIS_FILE CONTEXT_FILE "QUESTION"
"""

import sys

from kvpress import (
    AdaKVPress,
    CriticalAdaKVPress,
    CriticalKVPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
)

MODEL = {model}
PRESSES = {{
'''
_FOOT = """}


def main() -> None:
    from transformers import pipeline

    with open(sys.argv[1], encoding="utf-8") as file:
        context = file.read()
    pipe = pipeline("kv-press-text-generation", model=MODEL, device_map="auto")
    for name, press in PRESSES.items():
        found = pipe(context, question=sys.argv[2], press=press, max_new_tokens=MAX_NEW_TOKENS)
        print(f"{name}: {found['answer']}")


if __name__ == "__main__":
    main()
"""
_SCENARIOS = {
    "regular": "This run was `regular`: it compressed context and question together, with the "
    "question in\n  the observation window. Pass both as the context to come near it.",
    "context-only": "This run did the same.",
}
_CRITICAL = (
    "first_stage_ratio counts the window, which alpha does not: it is set so that stage 1 takes "
    "as many entries beyond it"
)

Params = Mapping[str, KnobValue]


def kvpress_code(result: RunResult, max_new_tokens: int) -> str:
    """Python source; empty of presses where a run has nothing that kvpress knows."""
    prompt, model = result.prompt, result.model
    tokens = prompt.compressed_tokens if prompt else 0
    scenario = _SCENARIOS.get(prompt.scenario if prompt else "", "")
    head = _HEAD.format(
        version=VERSION,
        tokens=tokens,
        scenario=scenario,
        model=ascii(model.name if model else ""),
    )
    rows = [line for variant in result.variants for line in _entry(variant, tokens)]
    limit = f"MAX_NEW_TOKENS = {int(max_new_tokens)}\n"
    return head.replace("PRESSES = {\n", limit + "PRESSES = {\n") + "".join(rows) + _FOOT


def _entry(variant: VariantResult, tokens: int) -> Iterator[str]:
    """Lines of the dictionary: comments, then the press under its SPEC."""
    yield f"    # {ascii(variant.label)[1:-1]}\n"
    if variant.method == "full":
        yield f"    {variant.spec!a}: None,\n"
        return
    reason = _left_out(variant)
    if reason:
        yield f"    # {variant.spec!a} is left out: {reason}.\n"
        return
    budget = variant.receipt.budget_tokens if variant.receipt else 0
    for note in _notes(variant, budget, tokens):
        yield f"    # - {note}.\n"
    yield f"    {variant.spec!a}: {_press(variant, budget, tokens)},\n"


def _left_out(variant: VariantResult) -> str:
    if variant.method not in ("streaming_llm", "snapkv", "pyramidkv", "adakv"):
        return "this file writes StreamingLLM, SnapKV, PyramidKV and AdaKV presses only"
    if "store" in variant.params or "every" in variant.params:
        return "a press neither encodes what it keeps nor cuts down what is generated"
    if "protected" in variant.params or "layout" in variant.params:
        return "these presses protect no passages and have no layouts"
    if variant.critical and "alpha" not in variant.params:
        return "kvpress has one first_stage_ratio for all heads"
    if variant.params.get("norm") == "off":
        return "CriticalKVPress always multiplies by the value norm"
    return ""


def _press(variant: VariantResult, budget: int, tokens: int) -> str:
    params = variant.params
    # Half an entry more, so that int() in kvpress does not round one away.
    ratio = 0.0 if budget >= tokens else 1 - (budget + 0.5) / tokens
    share = f"compression_ratio={ratio:.6f}"
    if variant.method == "streaming_llm":
        return f"StreamingLLMPress({share}, n_sink={_number(params, 'sinks'):g})"
    kernel = 1 if params.get("pool") == "none" else _number(params, "kernel")
    window = _number(params, "window")
    inner = f"{share}, window_size={window:g}, kernel_size={kernel:g}"
    if variant.method == "pyramidkv":
        base = f"PyramidKVPress({inner}, beta={int(_number(params, 'beta'))})"
    else:
        base = f"SnapKVPress({inner})"
    safeguard = f"alpha_safeguard={_number(params, 'safeguard'):g}"
    if not variant.critical:
        return f"AdaKVPress({base}, {safeguard})" if variant.method == "adakv" else base
    chosen = max(budget - window, 0)
    first = (window + _number(params, "alpha") * chosen) / budget if budget else 0.0
    stages = f"epsilon={_number(params, 'epsilon'):g}, first_stage_ratio={first:.6f}"
    if variant.method == "adakv":
        return f"CriticalAdaKVPress({base}, {safeguard}, {stages})"
    return f"CriticalKVPress({base}, {stages})"


def _notes(variant: VariantResult, budget: int, tokens: int) -> Iterator[str]:
    """Where kvpress keeps other entries."""
    params = variant.params
    if variant.method != "streaming_llm":
        yield from _window_notes(params)
    if variant.method == "pyramidkv":
        yield from _pyramid_notes(variant, budget, tokens)
    if variant.method == "adakv":
        yield (
            "kvpress guarantees the safeguard's share, window included, to every head; the variant "
            "mixes equal and adaptive shares beyond the window"
        )
    if variant.critical and variant.method == "adakv":
        yield (
            "CriticalAdaKVPress raises safeguarded entries to the type's largest number before "
            "stage 2, which then multiplies these"
        )
    if variant.critical:
        yield _CRITICAL
        if params.get("stage2") == "raw" and params.get("pool") != "none":
            yield "kvpress' stage 2 uses the smoothed score; the variant the un-pooled attention"
        if params.get("product") == "head":
            yield "kvpress multiplies the means of a query group; the variant each query head's"
        yield "CriticalKV's presses read config.head_dim, which some models lack (Qwen2)"


def _window_notes(params: Params) -> Iterator[str]:
    if params.get("pool") == "max":
        yield "kvpress smooths by the average; the variant by the maximum"
    if params.get("group") == "max":
        yield "kvpress takes the mean over a query group; the variant the maximum"
    if sinks := _number(params, "sinks"):
        yield f"kvpress keeps no sinks; the variant kept the first {sinks:g}"


def _pyramid_notes(variant: VariantResult, budget: int, tokens: int) -> Iterator[str]:
    if variant.critical:
        yield "CriticalKVPress gives every layer the same budget, whatever PyramidKVPress has"
        return
    window, beta = _number(variant.params, "window"), max(_number(variant.params, "beta"), 1.0)
    least, most = budget / beta, 2 * budget - budget / beta
    if most >= tokens - window:
        most = tokens - window
        least = 2 * budget - most
    if tokens >= most >= least >= window:
        yield "kvpress' layer budgets count the window in; the variant's pyramid is beyond it"
    else:
        yield "with this budget kvpress gives every layer the same (its pyramid's top is too low)"


def _number(params: Params, key: str) -> float:
    """A recorded knob; an imported run may say anything or nothing, which is 0 here."""
    value = params.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return 0
    return value
