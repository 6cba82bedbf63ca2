"""The commands `methods`, `models`, `heads` and `check-method`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli import running
from ckv_core.cli.options import command, read_text
from ckv_core.cli.running import clear_progress, load, show_progress
from ckv_core.engine.head_tables import keep_table, kept_table
from ckv_core.errors import CkvError, ConfigError, in_short
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.methods.headkv import table_name
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import SCENARIOS, RunRequest, Scenario
from ckv_core.records.variants import VariantSpec

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


FileOption = Annotated[
    str | None,
    Option(
        metavar="FILE",
        parser=partial(read_text, what="head table"),
        help="DuoAttention's full_attention_heads.tsv, or several joined into one",
    ),
]
NameOption = Annotated[str, Option(metavar="NAME", help="what SPECs call it: table=NAME")]
ForOption = Annotated[
    str, Option("--for", metavar="SPEC", help="whose table to make, such as lu_kv")
]


@command(app, "heads", "model device")
def _heads(
    chosen: dict[str, Any], file: FileOption = None, name: NameOption = "", spec: ForOption = ""
) -> None:
    """Make or import a table of heads, which headkv, lu_kv and others use."""
    if (file is None) != (not name) or (file and spec):
        raise ConfigError("Give --file and --name, or neither to make the table of a SPEC.")
    variant = VariantSpec.parse(spec or "headkv")
    own = [table for table in variant.tables if table.own]
    if not (own or file):
        raise ConfigError(f"{variant.spec!r} takes no head table that can be made.")
    name = name and str(table_name(name))
    loaded, _ = load(RunRequest(context="-", **chosen))
    clear_progress()
    if file is None:
        from ckv_core.engine.compare import made_table

        (table,) = own
        for event in made_table(loaded, table, variant):
            show_progress(event)
        clear_progress()
        rows, taking = kept_table(loaded.info, table) or (), variant.spec
    else:
        rows, taking = keep_table(loaded.info, name, file), f"table={name}"
    if several := len(rows) // loaded.info.layers - 1:
        say(f"{several + 1} numbers for each head")
    for layer, row in enumerate(() if several else rows):
        say(f"layer {layer + 1:>3}  " + "  ".join(f"{value:.3f}" for value in row))
    say(f"{taking} takes it with {loaded.info.name!r}.")


BUDGETS = ("25%", "50%")
TEXT = " ".join(f"House {at} has the code {at * 371 % 1000:03}." for at in range(24))
EPILOG = """\
Its parts run at two budgets in both scenarios, with each selector, layout and prefill it takes.
Totals must be exact and protected tokens kept. The same input must give the same kept set and
tokens, alone and among other variants.
"""


@command(app, "check-method", "model", EPILOG)
def _check(chosen: dict[str, Any], name: Annotated[str, Argument(metavar="NAME")]) -> int:
    """Check a method, such as one of another package, against the contract of all methods."""
    method = METHODS.get(name)
    if not method.evicts:
        raise ConfigError(f"{method.name!r} evicts nothing, so there is nothing to check.")
    endings = ["", *(f"+{selector.name}" for selector in method.selectors[1:])]
    settings, known = ("layout=layer", "layout=page:16", "prefill=blocks:64"), method.options()
    endings += [f":{each}" for each in settings if each.partition("=")[0] in known]
    request = RunRequest(
        context=TEXT,
        question="What is the code of house 9?",
        device="cpu",
        max_new_tokens=8,
        ignore_eos=True,
        **chosen,
    )
    loaded, load_ms = running.load(request)
    running.clear_progress()
    failed = 0
    for scenario in SCENARIOS:

        def run(*specs: str, scenario: Scenario = scenario) -> RunResult:
            changed = replace(request, scenario=scenario, variants=specs)
            return running.run(changed, loaded, load_ms)

        for what, problem in _checks(method.name, endings, run):
            say(f"{'FAILED' if problem else 'ok':6} {scenario}, {what}{problem and ': '}{problem}")
            failed += bool(problem)
    return 1 if failed else 0


def _checks(
    name: str, endings: list[str], run: Callable[..., RunResult]
) -> Iterator[tuple[str, str]]:
    """Pairs of what was checked and the problem that was found; an empty text for none."""
    alone: dict[str, VariantResult] = {}
    for ending in endings:
        for budget in BUDGETS:
            spec = f"{name}{ending}{',' if ':' in ending else ':'}budget={budget}"
            problem = ""
            try:
                result = run(spec)
                (alone[spec],) = result.variants
                problem = _problem(spec, alone[spec], result)
            except CkvError as error:
                problem = str(error)
            except Exception as error:  # another package's code
                problem = f"its code fails ({in_short(error)})"
            yield spec, problem
    if alone:
        together = run("full", *alone).variants[1:]
        differs = [
            spec
            for (spec, one), other in zip(alone.items(), together, strict=True)
            if (one.retained, one.token_ids) != (other.retained, other.token_ids)
        ]
        problem = f"{', '.join(differs)} keeps or writes something else" if differs else ""
        yield "a second time, all together", problem


def _problem(text: str, variant: VariantResult, result: RunResult) -> str:
    receipt, spec = variant.receipt, VariantSpec.parse(text)
    if receipt is None or variant.retained is None:
        return "it kept everything"
    prompt, model = result.prompt, result.model
    if prompt is None or model is None:
        return "there is no prompt"
    heads = len(model.evictable_layers) * model.kv_heads
    wanted = heads * spec.holds(receipt.budget_tokens, prompt.compressed_tokens)
    more = receipt.retained_entries - wanted
    if more > 0 or (more < 0 and not spec.at_most):
        return f"it kept {receipt.retained_entries:,} entries, where {wanted:,} were requested"
    kept = variant.retained.mask()[list(model.evictable_layers)]
    always = [at for place in spec.always_kept(prompt.compressed_tokens) for at in place]
    return "" if kept[..., always].all() else f"it evicted what it protects ({spec.protected_text})"
