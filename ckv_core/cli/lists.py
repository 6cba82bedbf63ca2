"""The commands `methods` and `models`: what there is to choose from."""

import argparse

from ckv_core.cli.options import Commands
from ckv_core.knobs import KNOBS
from ckv_core.methods import METHODS


def register(commands: Commands) -> None:
    """Add both commands."""
    methods = commands.add_parser("methods", help="list methods and SPEC keys")
    methods.set_defaults(command=_methods)
    models = commands.add_parser("models", help="list models that are at hand")
    models.set_defaults(command=_models)


def _methods(_options: argparse.Namespace) -> int:
    for method in METHODS:
        words = [f"+{selector}" for selector in method.selectors if selector != "top_k"]
        print(method.name + (f" [{' | '.join(words)}]" if words else ""))
        print(f"    {method.summary} {method.source}")
        keys = method.knobs_with("critical" if method.supports_critical else "top_k")
        print(f"    keys: {', '.join(keys) or '-'}")
    print("\nkeys")
    for knob in KNOBS.values():
        other = "" if knob.kvpress is None else f" (preset kvpress: {knob.kvpress})"
        print(f"    {knob.name}={knob.default}{other}\n        {knob.help}")
    return 0


def _models(_options: argparse.Namespace) -> int:
    from ckv_core.modeling.catalog import list_models

    for model in list_models():
        print(f"{model.name}\n    {model.note}")
    return 0
