"""The command `analyse`: the same variants on several prompts, with means and intervals."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckv_core.cli import running
from ckv_core.cli.aggregate import print_results
from ckv_core.cli.options import (
    EXAMPLES,
    Commands,
    add_command,
    add_model_options,
    add_variant_options,
    check_json_path,
    chosen_variants,
    comma_list,
    given_defaults,
    model_settings,
    read_text,
)
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.request.compare_request import ANALYSES, MAX_NEW_TOKENS, CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.runtime.json_text import NoJsonError
from ckv_core.runtime.terminal import say
from ckv_core.studies.data import LINE_BOUNDS, numbered_lines

MAX_PROMPTS = 5_000
_EPILOG = f"""\
--prompts is JSON Lines: one object a line with "context" and, optionally, "question" and
"answer"; other keys are passed over. --json writes one run a line as each prompt ends, in the
format of `compare`; the app imports such a file. A prompt that fails is told, and left out.
--means writes the means, intervals, pairs, heads won, layers, ablation and budget curves as one
JSON object. Intervals are of 95 %, over prompts.

{EXAMPLES}"""


@dataclass(frozen=True, slots=True)
class _Prompt:
    name: str
    context: str
    question: str
    answer: str


def register(commands: Commands) -> None:
    told = "the same variants on several prompts: bounds, fidelity, intervals"
    parser = add_command(commands, "analyse", _analyse, told, _EPILOG)
    add = parser.add_argument
    add("--context", action="append", metavar="FILE|-", help="UTF-8 text; repeat for several")
    add("--prompts", metavar="FILE", help="JSON Lines of context, question and answer")
    add("--question", default="", metavar="TEXT", help="for every --context")
    add("--answer", default="", metavar="TEXT", help="reference answer for every --context")
    add_variant_options(parser)
    parts = (
        f"parts of the diagnostics, of {','.join(ANALYSES)}; none leaves them out, which is "
        "faster (default bounds,forced; greedy is slow)"
    )
    add("--analyse", default="bounds,forced", metavar="LIST", help=parts)
    add("--max-new-tokens", type=int, default=32, metavar="T", help=f"1 to {MAX_NEW_TOKENS}")
    add("--means", metavar="FILE", help="write means and intervals over the prompts as JSON")
    add_model_options(parser)


def _analyse(options: argparse.Namespace) -> int:
    prompts = _prompts(options)
    defaults = given_defaults(options)
    shared = CompareRequest(
        context="",
        variants=chosen_variants(options, defaults),
        defaults=defaults,
        max_new_tokens=options.max_new_tokens,
        analysis=() if options.analyse.strip() == "none" else comma_list(options.analyse),
        **model_settings(options),
    )
    requests = [_checked(shared, prompt) for prompt in prompts]
    check_json_path(options.json)
    if options.means == "-":
        raise ConfigError("--means takes a file; stdout is for the tables, or for --json -.")
    check_json_path(options.means, "--means")
    lines = running.JsonLines(options.json)
    loaded, load_ms = running.load(shared)
    results, answers, failed = [], [], []
    for prompt, request in zip(prompts, requests, strict=True):
        try:
            result = running.run(request, loaded, load_ms)
        except CkvError as error:
            if len(prompts) == 1:
                raise _named(error, prompt) from None
            running.clear_progress()
            failed.append(f"{prompt.name}: {error}")
            say(f"failed: {failed[-1]}", to_error=True)
            continue
        results.append(result)
        answers.append(prompt.answer)
        lines.write(partial(running.result_document, result, prompt.answer))
    try:
        if results:
            _deliver(options, results, answers)
    finally:
        lines.close()
    if failed:
        raise CkvError(f"{len(failed)} of {len(prompts)} prompts failed, the first: {failed[0]}")
    return 0


def _deliver(
    options: argparse.Namespace, results: Sequence[RunResult], answers: Sequence[str]
) -> None:
    """The file of means, then the tables, unless stdout is for the runs."""

    def show() -> None:
        if options.json != "-":
            print_results(results, answers)

    def means() -> Any:
        from ckv_core.analysis.means_json import means_json

        return means_json(results)

    running.deliver(options.means, means, show)


def _checked(shared: CompareRequest, prompt: _Prompt) -> CompareRequest:
    request = replace(
        shared, context=prompt.context, question=prompt.question, answer=prompt.answer
    )
    try:
        request.validate()
    except PromptError as error:  # any other is of the settings, which all prompts share
        raise _named(error, prompt) from None
    return request


def _named(error: CkvError, prompt: _Prompt) -> CkvError:
    return type(error)(f"{prompt.name}: {error}")


def _prompts(options: argparse.Namespace) -> list[_Prompt]:
    contexts = options.context or []
    given = [_Prompt(path, read_text(path), options.question, options.answer) for path in contexts]
    if options.prompts:
        given += _read_prompts(options.prompts)
    if not given:
        raise ConfigError("Give at least one prompt with --context or --prompts.")
    return given


def _read_prompts(path: str) -> list[_Prompt]:
    prompts = []
    for number, line in numbered_lines(read_text(path, "prompts")):
        if not line.strip():
            continue
        name = f"{path} line {number}"
        try:
            fields = LINE_BOUNDS.read(line)
        except NoJsonError:
            raise PromptError(f"{name} is not a JSON object; write one object a line.") from None
        except ConfigError as error:
            raise PromptError(f"{name}: {error}") from None
        texts = {}
        for key in ("context", "question", "answer"):
            value = fields.get(key, "") if isinstance(fields, dict) else None
            if not isinstance(value, str):
                raise PromptError(f"{name} must be an object whose {key} is text.")
            texts[key] = value
        prompts.append(_Prompt(name, **texts))
        if len(prompts) > MAX_PROMPTS:
            raise PromptError(f"{path} has over {MAX_PROMPTS:,} prompts; take fewer.")
    return prompts
