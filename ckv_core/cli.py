"""The command line: the same engine without the app.

Exit code 0 on success, 2 on a bad argument, 1 on a failed run; errors are one line on stderr.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from ckv_core.config import DEFAULT_MODEL, MAX_NEW_TOKENS, SCENARIOS, CompareRequest
from ckv_core.errors import CkvError, ConfigError, PromptError, RunCancelledError
from ckv_core.events import Progress, RunEvent, RunFinished, RunResult
from ckv_core.knobs import KNOBS
from ckv_core.methods import METHODS

_EXAMPLES = """\
SPEC is METHOD[+critical][:key=value,...], for example:
  full
  snapkv:budget=128
  adakv+critical:budget=10%,alpha=0.5
  snapkv+critical:preset=kvpress
`python -m ckv_core methods` lists methods and keys.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usage block."""
        self.exit(2, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except CkvError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: stopped by Ctrl-C.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _parser() -> _Parser:
    parser = _Parser(prog="python -m ckv_core", description="Compare KV-cache eviction methods.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    compare = commands.add_parser(
        "compare",
        help="run several methods on one prompt",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.set_defaults(command=_compare)
    add = compare.add_argument
    add("--context", required=True, metavar="FILE|-", help="UTF-8 text file, or - for stdin")
    add("--question", default="", metavar="TEXT", help="asked about the context")
    add("--answer", default="", metavar="TEXT", help="reference answer to look for in the output")
    add("--scenario", default="regular", choices=SCENARIOS, help="what is compressed")
    add("--model", metavar="NAME|PATH", help=f"default: $CKV_MODEL or {DEFAULT_MODEL}")
    add("--variant", action="append", metavar="SPEC", help="repeat for several; default: full")
    add("--budget", metavar="N|N%", help=KNOBS["budget"].help.replace("%", "%%"))
    add("--alpha", metavar="A", help=KNOBS["alpha"].help)
    add("--max-new-tokens", type=int, default=64, metavar="T", help=f"1 to {MAX_NEW_TOKENS}")
    add("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    add("--device", help="auto, cpu or cuda; default: $CKV_DEVICE or auto")
    add(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="auto: float32 on CPU, the checkpoint's own type on CUDA",
    )
    add("--json", metavar="FILE|-", help="write the result as JSON; - for stdout")
    methods = commands.add_parser("methods", help="list methods and SPEC keys")
    methods.set_defaults(command=_methods)
    models = commands.add_parser("models", help="list models that are at hand")
    models.set_defaults(command=_models)
    return parser


def _compare(options: argparse.Namespace) -> int:
    defaults = {"budget": options.budget, "alpha": options.alpha}
    request = CompareRequest(
        context=_read_context(options.context),
        question=options.question,
        answer=options.answer,
        scenario=options.scenario,
        model=options.model or os.environ.get("CKV_MODEL") or DEFAULT_MODEL,
        variants=tuple(options.variant or ("full",)),
        defaults={key: value for key, value in defaults.items() if value is not None},
        max_new_tokens=options.max_new_tokens,
        ignore_eos=options.ignore_eos,
        device=options.device or os.environ.get("CKV_DEVICE") or "auto",
        dtype=options.dtype,
    )
    request.validate()
    _check_json_path(options.json)
    result = RunResult()
    for event in _run(request):
        result.apply(event)
        if isinstance(event, Progress):
            _show_progress(event)
    _clear_progress()
    if options.json != "-":
        _print_result(result)
    if options.json is not None:
        _write_json(result, options.json)
    return 0


def _read_context(path: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise PromptError(f"The context file {path!r} cannot be read: {reason}.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"The context {path!r} is not UTF-8 text (byte {error.start:,}); convert it first."
        ) from None


def _check_json_path(path: str | None) -> None:
    """Refuse a path that cannot be written before the run rather than after it."""
    if path in (None, "-"):
        return
    target = Path(str(path))
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError(f"--json {path!r} is no file in an existing folder; give another path.")


def _run(request: CompareRequest) -> Iterator[RunEvent]:
    """Load the model and compare; the load time joins the run's timings."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from ckv_core.engine.compare import compare
    from ckv_core.modeling.loading import load_model

    start = time.perf_counter()

    def report(sentence: str) -> None:
        _show_progress(Progress("load", None, sentence))

    loaded = load_model(request.model, request.device, request.dtype, report=report)
    load_ms = (time.perf_counter() - start) * 1000
    try:
        for event in compare(request, loaded):
            if isinstance(event, RunFinished):
                yield RunFinished({"load": load_ms, **event.timings_ms})
            else:
                yield event
    except MemoryError:
        raise RunCancelledError("Out of memory; use a shorter context or fewer variants.") from None


def _show_progress(event: Progress) -> None:
    if sys.stderr.isatty():
        share = "" if event.fraction is None else f" {event.fraction:4.0%}"
        print(f"\r\033[K{event.stage}{share} {event.detail}"[:200], end="", file=sys.stderr)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def _print_result(result: RunResult) -> None:
    if result.model is None or result.prompt is None:
        return
    prompt, model = result.prompt, result.model
    print(
        f"{model.name} ({model.dtype}, {model.device}); {prompt.tokens:,} prompt tokens, "
        f"{prompt.compressed_tokens:,} of them compressed ({prompt.scenario})"
    )
    for variant in result.variants:
        print(f"\n== {variant.spec}")
        receipt, perturbation = variant.receipt, variant.perturbation
        if receipt is not None:
            print(
                f"   kept {receipt.retained_entries:,} of {receipt.requested_entries:,} entries "
                f"asked for; {receipt.cache_bytes:,} of {receipt.full_cache_bytes:,} bytes"
            )
            for warning in receipt.warnings:
                print(f"   note: {warning}")
        if perturbation is not None:
            share = perturbation.improved_head_share
            better = "" if share is None else f"; head L1 below its base's in {share:.1%} of heads"
            print(
                f"   final hidden L1 {perturbation.final_hidden_l1:.1f}, "
                f"KL {perturbation.kl:.4f} nats (first decoding step){better}"
            )
        if variant.agreement is not None:
            print(f"   {variant.agreement:.0%} of the full cache's tokens before a difference")
        print("   " + variant.text.strip().replace("\n", "\n   "))


def _write_json(result: RunResult, path: str) -> None:
    from ckv_core.result_json import to_json

    text = json.dumps(to_json(result), allow_nan=False)
    if path == "-":
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CkvError(f"{path!r} cannot be written: {error.strerror or error}.") from None


def _methods(_options: argparse.Namespace) -> int:
    for method in METHODS:
        critical = " [+critical]" if method.supports_critical else ""
        print(f"{method.name}{critical}\n    {method.summary} {method.source}")
        print(f"    keys: {', '.join(method.knobs_with(critical=method.supports_critical)) or '-'}")
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
