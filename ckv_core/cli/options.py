"""How a command is made of a function, and the options that several commands share."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from typer import Option, Typer
from typer.exceptions import TyperException
from typer.main import get_command

from ckv_core.base.terminal import neutralised, say
from ckv_core.base.whole_file import reported
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.experiment.ablation import ablation
from ckv_core.methods.plug_ins import fault
from ckv_core.records.external_selection import ExternalSelection, read_external_selection
from ckv_core.records.run_request import LISTS, RunRequest, meaning
from ckv_core.records.variants import VariantSpec

INTERRUPTED = 130  # what typer returns after Ctrl-C
EXAMPLES = """\
SPEC is METHOD[+critical|+critical_auto][:key=value,...], for example:
  full
  snapkv:budget=128
  adakv+critical:budget=10%,alpha=0.5
  snapkv+critical:preset=kvpress
`python -m ckv_core methods` lists methods and keys.
"""


def command(
    app: Typer, name: str, takes: str = "", epilog: str = "", **defaults: Any
) -> Callable[[Callable[..., Any]], None]:
    """Makes a function a command of an app; the docstring is its help.

    Args:
        app: gets the command.
        name: of the command.
        takes: fields of a request; the function's first argument is a dict of their values.
        epilog: what follows the options in the help, line by line.
        defaults: of those fields, where the command has another one than the request.
    """
    shared = takes.split()

    def add(function: Callable[..., Any]) -> None:
        own = list(inspect.signature(function).parameters.values())[bool(takes) :]

        @wraps(function)
        def run(**values: Any) -> Any:
            plain = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            chosen = [{key: plain.pop(key) for key in shared}] if takes else []
            with neutralised():
                return function(*chosen, **plain)

        parameters = [_parameter(key, defaults) for key in shared]
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        app.command(name, epilog="\b\n" + epilog.replace("\n\n", "\n\n\b\n"))(run)

    return add


def _parameter(key: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """A field as an argument, of the type and with the default that a request has for it."""
    hint = get_type_hints(RunRequest).get(key, str)
    default = {key: "", **_DEFAULTS, **defaults}[key]
    has_words = hint is bool or get_origin(hint) is Literal  # which the help lists, or none
    own = {"metavar": None if has_words else "TEXT", "help": "", **_GIVEN.get(key, {})}
    # A flag has one name, so that there is no --no-...
    name = own.pop("name", f"--{key.replace('_', '-')}" if hint is bool else None)
    option = Option(*filter(None, [name]), **own | {"help": own["help"] or meaning(key)})
    return inspect.Parameter(
        key,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[list[str] if get_origin(hint) is tuple else hint, option],
    )


def run_command(app: Typer, program: str, arguments: Sequence[str] | None) -> int:
    """Runs what was typed; returns the exit code. An error is one line."""
    # Before torch is imported: threads that spin while they wait starve each other beside others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        ended = get_command(app).main(arguments, program, standalone_mode=False)
        if ended != INTERRUPTED:
            return int(ended or 0)
        sentence, code = "stopped by Ctrl-C.", 1
    except CkvError as error:
        sentence, code = str(error), error.exit_code
    except TyperException as error:
        place = getattr(getattr(error, "ctx", None), "command_path", program)
        words = " ".join(error.format_message().replace("Value error, ", "").split())
        end = "" if words.endswith((".", "?")) else "."
        sentence, code = f"{words}{end} See `{place} --help`.", 2
    except Exception as error:  # of another package's method, or a fault of ours
        sentence, code = fault(error), 1
        if not sentence:
            raise
    say(f"error: {sentence}", to_error=True)
    return code


# --- options ----------------------------------------------------------------------------


def read_text(path: str, what: str = "context") -> str:
    """A UTF-8 file, or stdin for `-`; PromptError where it cannot be read."""
    with reported(f"The {what} file {path!r}", "read", PromptError):
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"The {what} {path!r} is not UTF-8 text (byte {error.start:,}); convert it first."
        ) from None


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def check_json_path(path: str | None) -> None:
    """Refuses a path that cannot be written before the run rather than after it."""
    if path in (None, "-"):
        return
    target = Path(str(path))
    if target.is_dir():
        raise ConfigError(f"--json {path!r} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise ConfigError(f"The folder of --json {path!r} does not exist; create it first.")


def _own_indices(path: str) -> tuple[ExternalSelection, ...]:
    """The variants of one file; an error names it."""
    try:
        return read_external_selection(read_text(path, "kept positions"))
    except ConfigError as error:
        raise ConfigError(f"--own {path!r}: {error}") from None


JsonOption = Annotated[
    str | None, Option(metavar="FILE|-", help="write the result as JSON; - for stdout")
]
_DEFAULTS = {each.name: each.default for each in fields(RunRequest)} | {"context": MISSING}
# By field of a request, or of what makes its variants: how the command line differs.
_GIVEN: dict[str, dict[str, Any]] = {
    "context": {"metavar": "FILE|-", "parser": read_text, "help": "UTF-8 text file; - for stdin"},
    "ablation": {
        "metavar": "SPEC",
        "help": "add variants of this base that separate un-pooling, value norm and alpha",
    },
    "variants": {"name": "--variant", "metavar": "SPEC"},
    "own_indices": {"name": "--own", "metavar": "FILE", "parser": _own_indices},
    "analysis": {
        "name": "--analyse",
        "metavar": "LIST",
        "parser": lambda text: () if text.strip() == "none" else comma_list(text),
    },
    "follow_ups": {"name": "--follow-up"},
    "reference": {"name": "--reference/--no-reference"},
    "budget": {"metavar": "N|N%"},
    "alpha": {"metavar": "A"},
    "max_new_tokens": {"metavar": "T"},
    "dtype": {"metavar": "NAME"},
    "model": {"metavar": "NAME|PATH", "envvar": "CKV_MODEL"},
    "device": {"metavar": "NAME", "envvar": "CKV_DEVICE"},
}


def request_of(chosen: Mapping[str, Any]) -> RunRequest:
    """The request that these options give; ConfigError for a wrong SPEC, budget or alpha."""
    given = dict(chosen)
    budgets, alphas = (comma_list(given.pop(name, "")) for name in LISTS)
    one = {"budget": budgets, "alpha": alphas} if max(len(budgets), len(alphas)) < 2 else {}
    defaults = {name: values[0] for name, values in one.items() if values}
    if base := given.pop("ablation", ""):
        there = {VariantSpec.parse(text, defaults).settings() for text in given["variants"]}
        steps = [step.variant for step in ablation(base, defaults)]
        given["variants"] += tuple(s.spec for s in steps if s.settings() not in there)
    for name in {"own_indices", "analysis"} & given.keys():
        given[name] = tuple(chain.from_iterable(given[name]))
    return RunRequest(**given, budgets=budgets, alphas=alphas)
