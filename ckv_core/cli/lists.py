"""The commands `methods` and `models`: what there is to choose from."""

import argparse

from ckv_core.cli.options import Commands, add_command
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.runtime.terminal import say


def register(commands: Commands) -> None:
    add_command(commands, "methods", _methods, "list methods and SPEC keys")
    add_command(commands, "models", _models, "list models that are at hand")


def _methods(_options: argparse.Namespace) -> int:
    for method in METHODS:
        others = method.selectors[1:]
        words = [f"+{selector.name}" for selector in others]
        say(method.name + (f" [{' | '.join(words)}]" if words else ""))
        say(f"    {method.summary} {method.source}")
        say(f"    regime: {method.regime or '-'}")
        keys = {key for selector in method.selectors for key in method.parameters(selector)}
        shown = [key for key in PARAMETERS if key in keys] + list(method.options())
        say(f"    keys: {', '.join(shown) or '-'}")
    say("\nkeys")
    for parameter in PARAMETERS.values():
        other = "" if parameter.kvpress is None else f" (preset kvpress: {parameter.kvpress})"
        say(f"    {parameter.name}={parameter.default}{other}\n        {parameter.help}")
    return 0


def _models(_options: argparse.Namespace) -> int:
    from ckv_core.models.catalog import list_models

    for model in list_models():
        say(f"{model.name}\n    {model.note}")
    return 0
