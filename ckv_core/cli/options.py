"""Arguments that several commands share, and how they are read."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ckv_core.analysis.ablation import ablation
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.methods import PARAMETERS
from ckv_core.request.compare_request import DEFAULT_MODEL, DTYPES, SCENARIOS
from ckv_core.request.external_selection import ExternalSelection
from ckv_core.request.variants import VariantSpec
from ckv_core.results.external_selection_json import read_external_selection
from ckv_core.runtime.terminal import say

EXAMPLES = """\
SPEC is METHOD[+critical|+critical_auto][:key=value,...], for example:
  full
  snapkv:budget=128
  adakv+critical:budget=10%,alpha=0.5
  snapkv+critical:preset=kvpress
`python -m ckv_core methods` lists methods and keys.
"""
_ABLATION_HELP = "add the controls that tell un-pooling, value norm and alpha apart, over this base"


class Parser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> NoReturn:
        say(f"error: {message}", to_error=True)
        raise SystemExit(2)


# What add_subparsers gives has no public name, and is generic for the type checker only.
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help_text: str,
    epilog: str | None = None,
) -> Parser:
    """A command and what runs it; an epilog keeps its lines."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=help_text, epilog=epilog, formatter_class=as_written)
    parser.set_defaults(command=run)
    return parser


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """--context, --question and --answer of a command with one prompt."""
    add = parser.add_argument
    add("--context", required=True, metavar="FILE|-", help="UTF-8 text file, or - for stdin")
    add("--question", default="", metavar="TEXT", help="asked about the context")
    add("--answer", default="", metavar="TEXT", help="reference answer to look for in the output")
    add(
        "--protect",
        action="append",
        default=[],
        metavar="TEXT",
        help="text of the prompt that no method may evict, or positions as tokens:12-39; counted "
        "in the budget; repeat for several",
    )


def add_variant_options(parser: argparse.ArgumentParser) -> None:
    """--variant, --ablation, --budget and --alpha, which `chosen_variants` reads."""
    add = parser.add_argument
    add("--variant", action="append", metavar="SPEC", help="repeat for several; default: full")
    add("--ablation", metavar="SPEC", help=_ABLATION_HELP)
    add("--budget", metavar="N|N%", help=PARAMETERS["budget"].help.replace("%", "%%"))
    add("--alpha", metavar="A", help=PARAMETERS["alpha"].help)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--scenario, --model, --device, --dtype and --json."""
    add = parser.add_argument
    add("--scenario", default="regular", choices=SCENARIOS, help="what is compressed")
    add_engine_options(parser)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """--model, --device, --dtype and --json."""
    add = parser.add_argument
    add("--model", metavar="NAME|PATH", help=f"default: $CKV_MODEL or {DEFAULT_MODEL}")
    add("--device", help="auto, cpu or cuda; default: $CKV_DEVICE or auto")
    help_text = "auto: float32 on CPU, bfloat16 on CUDA (float16 on older GPUs)"
    add("--dtype", default="auto", choices=DTYPES, help=help_text)
    add("--json", metavar="FILE|-", help="write the result as JSON; - for stdout")


def model_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_model_options` read, as fields of a request."""
    return {"scenario": options.scenario, **engine_settings(options)}


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_engine_options` read, as fields of a request."""
    return {
        "model": model_name(options.model),
        "device": device_name(options.device),
        "dtype": options.dtype,
    }


def model_name(given: str | None) -> str:
    return given or os.environ.get("CKV_MODEL") or DEFAULT_MODEL


def device_name(given: str | None) -> str:
    return given or os.environ.get("CKV_DEVICE") or "auto"


def prompt_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_prompt_options` read, as fields of a request."""
    return {
        "context": read_text(options.context),
        "question": options.question,
        "answer": options.answer,
        "protect": tuple(options.protect),
    }


def given_defaults(options: argparse.Namespace) -> dict[str, str]:
    given = {"budget": options.budget, "alpha": options.alpha}
    return {key: value for key, value in given.items() if value is not None}


def chosen_variants(options: argparse.Namespace, defaults: Mapping[str, str]) -> tuple[str, ...]:
    """--variant, then the steps of --ablation that are not among them; else `full` alone."""
    written = tuple(options.variant or ("full",))
    if not options.ablation:
        return written
    there = {VariantSpec.parse(text, defaults).settings() for text in written}
    steps = [step.variant for step in ablation(options.ablation, defaults)]
    return (*written, *(step.spec for step in steps if step.settings() not in there))


def own_indices(paths: Sequence[str]) -> tuple[ExternalSelection, ...]:
    """The variants in the files of --own; an error names its file."""
    selections: list[ExternalSelection] = []
    for path in paths:
        text = read_text(path, "kept positions")
        try:
            selections += read_external_selection(text)
        except CkvError as error:
            raise ConfigError(f"--own {path!r}: {error}") from None
    return tuple(selections)


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_text(path: str, what: str = "context") -> str:
    """A UTF-8 file, or stdin for `-`; PromptError where it cannot be read."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise PromptError(f"The {what} file {path!r} cannot be read: {reason}.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"The {what} {path!r} is not UTF-8 text (byte {error.start:,}); convert it first."
        ) from None


def check_json_path(path: str | None, option: str = "--json") -> None:
    """Refuse a path that cannot be written before the run rather than after it."""
    if path in (None, "-"):
        return
    target = Path(str(path))
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError(f"{option} {path!r} is no file in an existing folder; give another path.")
