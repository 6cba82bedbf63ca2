"""The command `analyse`: the same variants on several prompts, with means and intervals."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from typer import Option, Typer

from ckv_core.analysis.means_json import means_json
from ckv_core.cli import running
from ckv_core.cli.aggregate import print_results
from ckv_core.cli.options import (
    EXAMPLES,
    JsonOption,
    check_json_path,
    command,
    read_text,
    request_of,
)
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.runtime.json_text import NoJsonError
from ckv_core.runtime.terminal import say
from ckv_core.studies.data import LINE_BOUNDS, numbered_lines

app = Typer()
MAX_PROMPTS = 5_000
EPILOG = f"""\
--prompts is JSON Lines: one object a line with "context" and, optionally, "question" and
"answer"; other keys are passed over. --json writes one run a line as each prompt ends, in the
format of `compare`; the app imports such a file. A prompt that fails is named and left out.
--means writes the means, intervals, pairs, heads won, layers, ablation and budget curves as one
JSON object. Intervals are of 95 %, over prompts.

{EXAMPLES}"""
FIELDS = (
    "question answer variants ablation budget alpha analysis max_new_tokens scenario model device "
    "dtype"
)
ContextsOption = Annotated[
    list[str] | None, Option(metavar="FILE|-", help="UTF-8 text; repeat for several")
]
PromptsOption = Annotated[
    str | None, Option(metavar="FILE", help="JSON Lines of context, question and answer")
]
MeansOption = Annotated[
    str | None, Option(metavar="FILE", help="write means and intervals over the prompts as JSON")
]


@command(app, "analyse", FIELDS, EPILOG, max_new_tokens=32, analysis=("bounds,forced",))
def _analyse(
    asked: dict[str, Any],
    context: ContextsOption = None,
    prompts: PromptsOption = None,
    means: MeansOption = None,
    json: JsonOption = None,
) -> None:
    """Run the same variants on several prompts."""
    texts: list[tuple[str, dict[str, Any]]]
    texts = [(path, {"context": read_text(path)}) for path in context or ()]
    texts += _read_prompts(prompts) if prompts else ()
    if not texts:
        raise ConfigError("Give at least one prompt with --context or --prompts.")
    shared = request_of({"context": "", **asked})
    if shared.kind == "sweep":
        raise ConfigError("analyse takes one --budget and one --alpha; write others into SPECs.")
    requests = [(name, _checked(name, replace(shared, **each))) for name, each in texts]
    check_json_path(json)
    if means == "-":
        raise ConfigError("--means takes a file; stdout is for the tables, or for --json -.")
    check_json_path(means, "--means")
    lines = running.JsonLines(json)
    loaded, load_ms = running.load(shared)
    results, answers, failed = [], [], []
    for name, request in requests:
        try:
            results.append(running.run(request, loaded, load_ms))
        except CkvError as error:
            if len(requests) == 1:
                raise _named(error, name) from None
            running.clear_progress()
            failed.append(f"{name}: {error}")
            say(f"failed: {failed[-1]}", to_error=True)
            continue
        answers.append(request.answer)
        lines.write(partial(running.result_document, results[-1], request.answer))

    def show() -> None:
        if results and json != "-":
            print_results(results, answers)

    try:
        running.deliver(means if results else None, partial(means_json, results), show)
    finally:
        lines.close()
    if failed:
        raise CkvError(f"{len(failed)} of {len(requests)} prompts failed, the first: {failed[0]}")


def _checked(name: str, request: CompareRequest) -> CompareRequest:
    try:
        request.validate()
    except PromptError as error:  # any other is of the settings, which all prompts share
        raise _named(error, name) from None
    return request


def _named(error: CkvError, name: str) -> CkvError:
    return type(error)(f"{name}: {error}")


def _read_prompts(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and texts of each line."""
    prompts: list[tuple[str, dict[str, Any]]] = []
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
        prompts.append((name, texts))
        if len(prompts) > MAX_PROMPTS:
            raise PromptError(f"{path} has over {MAX_PROMPTS:,} prompts; take fewer.")
    return prompts
