"""A run's variants as Python code for kvpress: a press with its parameters, and where it differs.

Written against the sources of kvpress 0.5.5. Everything that comes from a run is escaped: an
imported SPEC may hold anything.
"""

import re
from collections.abc import Iterator

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, SELECTORS
from ckv_core.methods.parameters import Parameter, ParameterValue
from ckv_core.methods.parts.press import VERSION, Chain, Press, press_code
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import DEFAULT_MODEL, HUB_ID

NOTHING = "This run has no variant yet."
_HEAD = '''"""The variants of a CriticalKV Lab run as kvpress presses.

For kvpress {version}, which needs transformers below 5.3: give it an environment of its own.
Comments say where a press keeps other entries than the variant did. For all of them:
- compression_ratio is the share removed. With it kvpress keeps as many entries of a prompt of
  {tokens:,} tokens as the variant did; another prompt needs another ratio.
- kvpress's pipeline compresses the context alone and reads the question afterwards (context-only).
  {scenario}
- AdaKV's presses only mask what they evict, so they free no memory, and refuse eager attention.

Usage: python THIS_FILE CONTEXT_FILE "QUESTION" [MODEL]
"""

import sys

{imported}

{weights}MODEL = {model}
MAX_NEW_TOKENS = {new_tokens}
PRESSES = {{
'''
_FOOT = """}


def main() -> None:
    from transformers import pipeline

    with open(sys.argv[1], encoding="utf-8") as file:
        context = file.read()
    model = sys.argv[3] if len(sys.argv) > 3 else MODEL
    pipe = pipeline("kv-press-text-generation", model=model, device_map="auto")
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
_HUB_WEIGHTS = """# The Hub's weights differ a little from this run's, which come from a Q4_1 file.
# For the same tokens give the folder models/{name} of its CKV_HOME as MODEL.
"""
_FOLDER = """# A folder of the machine where the run was made. Elsewhere give its path, or the name
# of the same model on the Hugging Face Hub, as MODEL.
"""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PRESSES = {method.name: method.press for method in METHODS if method.press}


def kvpress_code(result: RunResult, max_new_tokens: int) -> str:
    """Python source; empty of presses where a run has nothing that kvpress knows."""
    prompt, model = result.prompt, result.model
    tokens = prompt.compressed_tokens if prompt else 0
    imported: set[str] = set()
    rows = [line for each in result.variants for line in _entry(each, tokens, imported)]
    name, weights = model_of(model.name if model else "")
    head = _HEAD.format(
        version=VERSION,
        tokens=tokens,
        scenario=_SCENARIOS.get(prompt.scenario if prompt else "", ""),
        imported=f"from kvpress import {', '.join(sorted(imported))}" if imported else "",
        model=ascii(name),
        weights=weights,
        new_tokens=int(max_new_tokens),
    )
    return head + "".join(rows) + _FOOT


def model_of(name: str) -> tuple[str, str]:
    """What transformers finds a run's model by, and a comment where that is not the run's own."""
    if name == DEFAULT_MODEL:
        return HUB_ID, _HUB_WEIGHTS.format(name=name)
    return name, "" if _HUB_NAME.fullmatch(name) else _FOLDER


def _entry(variant: VariantResult, tokens: int, imported: set[str]) -> Iterator[str]:
    """Lines of the dictionary: comments, then the press under its SPEC."""
    yield f"    # {ascii(variant.label)[1:-1]}\n"
    press = _PRESSES.get(variant.method)
    if variant.method == "full":
        yield f"    {variant.spec!a}: None,\n"
        return
    reason = _left_out(variant)
    if reason or press is None:
        reason = reason or "kvpress has no press for it"
        yield f"    # {variant.spec!a} is left out: {reason}.\n"
        return
    budget = variant.receipt.budget_tokens if variant.receipt else 0
    # Half an entry more, so that int() in kvpress does not round one away.
    removed = 0.0 if budget >= tokens else 1 - (budget + 0.5) / tokens
    chain = _chain(variant, press, budget)
    imported |= {name for name, _ in chain}
    for note in _notes(variant, press):
        yield f"    # - {note}.\n"
    code = press_code(chain, f"compression_ratio={removed:.6f}")
    yield f"    {variant.spec!a}: {code},\n"


_LACKING = (
    ({"store", "every"}, "a press has no store and no compaction of what is generated"),
    ({"protected", "layout"}, "these presses protect no passages and have no layouts"),
    ({"rule", "select"}, "it is composed of parts of several methods"),
)


def _left_out(variant: VariantResult) -> str:
    for keys, reason in _LACKING:
        if keys & variant.params.keys():
            return reason
    if variant.critical and "alpha" not in variant.params:
        return "kvpress has one first_stage_ratio for all heads"
    press = _PRESSES.get(variant.method)
    if variant.critical and press is not None and not press.scores:
        return f"CriticalKVPress takes no {press.name}"
    if variant.params.get("norm") == "off":
        return "CriticalKVPress always multiplies by the value norm"
    return ""


def _chain(variant: VariantResult, press: Press, budget: int) -> Chain:
    params = _parameters(variant)
    if params.get("pool") == "none":
        params["kernel"] = 1
    if params.get("stage1_counts_window") == "off" and budget:
        window = int(params.get("window", 0))
        first = (window + float(params["alpha"]) * max(budget - window, 0)) / budget
        params["alpha"] = round(first, 6)
    return press.chain(params, critical=variant.critical)


def _notes(variant: VariantResult, press: Press) -> Iterator[str]:
    """Where kvpress keeps other entries."""
    params, given = _parameters(variant), press.parameters | {"alpha", "epsilon"}
    not_pooled = params.get("pool") == "none"
    for name, parameter in _declared(variant).items():
        passed = name in given or (not_pooled and name in ("pool", "stage2"))
        if passed or parameter.kvpress in (None, params[name]):
            continue
        if name == "stage1_counts_window":
            yield "first_stage_ratio is set so that stage 1 takes as many entries beyond the window"
        else:
            there = parameter.kvpress
            yield f"{name} is {params[name]} here and {there} in kvpress. {parameter.help}"[:-1]
    if params.get("group") == "max":
        yield "kvpress takes the mean over a query group; the variant the maximum"
    if params.get("sinks") and "sinks" not in given:
        yield f"kvpress keeps no sinks; the variant kept the first {params['sinks']}"
    if variant.method == "chunkkv":
        yield "kvpress rounds its count down to whole chunks; the variant cut the last one"
    if variant.critical and variant.method == "pyramidkv":
        yield "CriticalKVPress gives every layer the same budget, whatever PyramidKVPress has"
    if variant.critical:
        yield "CriticalKV's presses read config.head_dim, which some models lack (Qwen2)"


def _declared(variant: VariantResult) -> dict[str, Parameter]:
    selector = SELECTORS["critical"] if variant.critical else None
    return METHODS.get(variant.method).parameters(selector)


def _parameters(variant: VariantResult) -> dict[str, ParameterValue]:
    """Every parameter as recorded; what an imported run leaves out or spoils is at its default."""
    return {
        name: _recorded(parameter, variant.params.get(name))
        for name, parameter in _declared(variant).items()
    }


def _recorded(parameter: Parameter, value: object) -> ParameterValue:
    try:
        return parameter.parse(str(value))
    except ConfigError:
        return parameter.default
