"""Which presses are asked for: by a SPEC of ours, or in kvpress's own words. No torch."""

import ast
import re

from ckv_core.errors import ConfigError
from ckv_core.methods.parts.critical import CRITICAL
from ckv_core.methods.parts.press import Argument, Chain
from ckv_core.request.variants import VariantSpec

_MAX_CHARS = 1_000


def asked_presses(text: str) -> Chain:
    """Read `adakv+critical:safeguard=0.1` or `AdaKVPress(CURPress(num_sinks=4))`.

    A SPEC is read under the preset kvpress. ConfigError where kvpress cannot do what it says.
    """
    if re.match(r"\s*[A-Z]", text):
        return _written(text)
    spec = VariantSpec.parse(text, {"preset": "kvpress"})
    press = spec.method.press
    reason = _unfit(spec)
    if reason or press is None:
        raise ConfigError(f"{spec.spec!r}: kvpress {reason or 'has no press for it'}.")
    return press.chain(spec.params, critical=spec.critical)


def _unfit(spec: VariantSpec) -> str:
    """What kvpress lacks for a variant, to come after its name; empty if nothing."""
    press = spec.method.press
    has_critical = press is not None and press.scores and spec.selector is CRITICAL
    if press is None or (spec.critical and not has_critical):
        return "has no press for it"
    if spec.params.keys() & (spec.method.options().keys() | {"protected"}):
        return "has no store, layout, protected passages, compaction or parts of another method"
    passed = press.parameters | {"alpha", "epsilon", "preset", "budget"}
    fixed = {"norm": "on", "group": "mean", "sinks": 0}
    parameters = spec.method.parameters(spec.selector)
    for name, value in spec.params.items():
        only = fixed.get(name, parameters[name].kvpress)
        if name not in passed and only not in (None, value):
            return f"has only {name}={only}; leave it out"
    return ""


def _written(text: str) -> Chain:
    problem = (
        f"{text[:60]!r} is no call of presses; write for instance "
        "AdaKVPress(SnapKVPress(window_size=32), alpha_safeguard=0.1)."
    )
    if len(text) > _MAX_CHARS:
        raise ConfigError(problem)
    try:
        return _chain(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(problem) from None


def _chain(node: ast.AST) -> Chain:
    """The presses of a call, from the outermost in; ValueError for anything but presses."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) < 2):
        raise ValueError
    own = {str(each.arg): _argument(each) for each in node.keywords}
    inner = _chain(node.args[0]) if node.args else ()
    return ((node.func.id, own), *inner)


def _argument(keyword: ast.keyword) -> Argument:
    value = ast.literal_eval(keyword.value)
    if keyword.arg in (None, "press", "compression_ratio") or not isinstance(value, Argument):
        raise ValueError
    return value
