"""The commands `methods` and `models`: what there is to choose from."""

from typer import Typer

from ckv_core.cli.options import command
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.runtime.terminal import say

app = Typer()


@command(app, "methods")
def _methods() -> None:
    """List methods and SPEC keys."""
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


@command(app, "models")
def _models() -> None:
    """List models that are at hand."""
    from ckv_core.models.catalog import list_models

    for model in list_models():
        say(f"{model.name}\n    {model.note}")
