"""The command `analyse`: the same variants on several prompts, with means and intervals."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ckv_core.cli import running
from ckv_core.cli.options import (
    EXAMPLES,
    LADDER_HELP,
    Commands,
    add_model_options,
    check_json_path,
    chosen_variants,
    given_defaults,
    model_settings,
    read_text,
)
from ckv_core.cli.tables import interval, print_table
from ckv_core.config import MAX_NEW_TOKENS, CompareRequest
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.events import RunResult
from ckv_core.knobs import KNOBS
from ckv_core.ladder import ladder_of
from ckv_core.metrics.evidence import evidence, occurrences
from ckv_core.metrics.intervals import Aggregate, aggregate, interval_note, mean_interval
from ckv_core.variants import VariantSpec

_EPILOG = f"""\
--prompts is JSON Lines: one object a line with "context" and, optionally, "question" and
"answer"; other keys are passed over. --json writes one run a line, in the format of `compare`.
Intervals are 95 % bootstrap intervals over prompts.

{EXAMPLES}"""


@dataclass(frozen=True, slots=True)
class _Prompt:
    name: str
    context: str
    question: str
    answer: str


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "analyse",
        help="the same variants on several prompts: bounds, fidelity, intervals",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=_analyse)
    add = parser.add_argument
    add("--context", action="append", metavar="FILE|-", help="UTF-8 text; repeat for several")
    add("--prompts", metavar="FILE", help="JSON Lines of context, question and answer")
    add("--question", default="", metavar="TEXT", help="for every --context")
    add("--answer", default="", metavar="TEXT", help="reference answer for every --context")
    add("--variant", action="append", metavar="SPEC", help="repeat for several; default: full")
    add("--ladder", metavar="SPEC", help=LADDER_HELP)
    add("--budget", metavar="N|N%", help=KNOBS["budget"].help.replace("%", "%%"))
    add("--alpha", metavar="A", help=KNOBS["alpha"].help)
    add("--max-new-tokens", type=int, default=32, metavar="T", help=f"1 to {MAX_NEW_TOKENS}")
    add_model_options(parser)


def _analyse(options: argparse.Namespace) -> int:
    prompts = _prompts(options)
    defaults = given_defaults(options)
    shared = CompareRequest(
        context="",
        variants=chosen_variants(options, defaults),
        defaults=defaults,
        max_new_tokens=options.max_new_tokens,
        analysis=("bounds", "forced"),
        **model_settings(options),
    )
    requests = [_checked(shared, prompt) for prompt in prompts]
    check_json_path(options.json)
    loaded, load_ms = running.load(shared)
    results = []
    for prompt, request in zip(prompts, requests, strict=True):
        try:
            results.append(running.run(request, loaded, load_ms))
        except CkvError as error:
            raise _named(error, prompt) from None
    if options.json != "-":
        _print_results(results, prompts)
    if options.json is not None:
        from ckv_core.result_json import to_json

        running.write_json([to_json(result) for result in results], options.json)
    return 0


def _checked(shared: CompareRequest, prompt: _Prompt) -> CompareRequest:
    request = replace(
        shared, context=prompt.context, question=prompt.question, answer=prompt.answer
    )
    try:
        request.validate()
    except CkvError as error:
        raise _named(error, prompt) from None
    return request


def _named(error: CkvError, prompt: _Prompt) -> CkvError:
    return type(error)(f"{prompt.name}: {error}")


def _prompts(options: argparse.Namespace) -> list[_Prompt]:
    contexts = options.context or []
    found = [_Prompt(path, read_text(path), options.question, options.answer) for path in contexts]
    if options.prompts:
        found += _read_prompts(options.prompts)
    if not found:
        raise ConfigError("Give at least one prompt with --context or --prompts.")
    return found


def _read_prompts(path: str) -> list[_Prompt]:
    found = []
    for number, line in enumerate(read_text(path, "prompts").splitlines(), 1):
        if not line.strip():
            continue
        name = f"{path} line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise PromptError(f"{name} is not a JSON object; write one object a line.") from None
        texts = {}
        for key in ("context", "question", "answer"):
            value = fields.get(key, "") if isinstance(fields, dict) else None
            if not isinstance(value, str):
                raise PromptError(f"{name} must be an object whose {key} is text.")
            texts[key] = value
        found.append(_Prompt(name, **texts))
    return found


def _print_results(results: Sequence[RunResult], prompts: Sequence[_Prompt]) -> None:
    model = results[0].model
    tokens = [result.prompt.tokens for result in results if result.prompt]
    if model is not None:
        print(
            f"{model.name} ({model.dtype}, {model.device}); {len(results)} prompts of "
            f"{min(tokens):,} to {max(tokens):,} tokens"
        )
    print(interval_note(len(results)) or "mean [95 % bootstrap interval over prompts]")
    found = aggregate(results)
    _print_distances(found)
    _print_ladders(results)
    _print_bounds(found)
    _print_forced(found)
    if any(prompt.answer.strip() for prompt in prompts):
        _print_evidence(results, prompts)
    for note in dict.fromkeys(f"{each.spec}: {note}" for each in found for note in each.notes):
        print(f"note: {note}")


def _print_distances(found: Sequence[Aggregate]) -> None:
    print("\nfirst decoding step; heads won: mean head L1 over the prompts below the base's")
    rows = []
    for each in found:
        wins = each.head_wins
        won = "-" if wins is None else f"{wins.count}/{wins.heads} {wins.share:.1%}"
        figures = [interval(each.figures.get(key)) for key in ("head", "final", "kl")]
        better = interval(each.figures.get("improved_heads"), percent=True)
        rows.append((each.spec, *figures, better, won))
    print_table(("variant", "head L1", "final L1", "KL", "heads better", "heads won"), rows)


def _print_ladders(results: Sequence[RunResult]) -> None:
    """Shares of heads below the ladder's base, over the prompts."""
    ladders = [ladder_of(result) for result in results]
    if not all(ladders):
        return
    print(f"\nladder over {ladders[0][0].rung.spec}; heads below the base's L1")
    rows = []
    for rungs in zip(*ladders, strict=True):
        shares = [each.better_heads for each in rungs if each.better_heads is not None]
        heads = interval(mean_interval(shares), percent=True) if shares else "-"
        ratios = [
            each.final_hidden_l1 / ladder[0].final_hidden_l1
            for each, ladder in zip(rungs, ladders, strict=True)
            if ladder[0].final_hidden_l1
        ]
        final = interval(mean_interval(ratios)) if ratios else "-"
        rows.append((rungs[0].rung.label, heads, final))
    print_table(("rung", "heads below base", "final L1 / base's"), rows)


def _print_bounds(found: Sequence[Aggregate]) -> None:
    rows = [
        (
            each.spec,
            *(interval(each.figures.get(k)) for k in ("sigma_stage1", "theta", "tightness")),
            f"{each.sigma_over_half:.1%}",
            f"{each.violations:,} of {each.checked:,}",
        )
        for each in found
        if each.sigma_over_half is not None
    ]
    if rows:
        print("\nbounds; the chain L1 <= theta <= theta-hat <= relaxed where sigma > 0.5")
        head = ("variant", "sigma", "theta", "L1 / theta", "sigma > 0.5", "chain broken")
        print_table(head, rows)


def _print_forced(found: Sequence[Aggregate]) -> None:
    keys = ("forced_top1", "forced_kl", "forced_rank")
    rows = [
        (each.spec, *(interval(each.figures.get(key)) for key in keys), _answers(each))
        for each in found
        if "forced_kl" in each.figures or "answer" in each.figures
    ]
    if rows:
        print("\non the full cache's own continuation")
        print_table(("variant", "same first choice", "KL", "rank", "answer found"), rows)


def _answers(each: Aggregate) -> str:
    return interval(each.figures.get("answer"), percent=True)


def _print_evidence(results: Sequence[RunResult], prompts: Sequence[_Prompt]) -> None:
    """Slots that hold the reference answer's occurrences, against chance."""
    held: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for result, prompt in zip(results, prompts, strict=True):
        if result.prompt is None or result.model is None:
            continue
        pieces = result.prompt.pieces[: result.prompt.compressed_tokens]
        spans = occurrences(pieces, prompt.answer)
        missing += not spans
        for variant in result.variants:
            if variant.retained is None or not spans:
                continue
            protected = VariantSpec.parse(variant.spec).protected
            layers = result.model.evictable_layers
            found = [evidence(variant.retained, span, layers, protected) for span in spans]
            pair = [float(np.mean([getattr(e, key) for e in found])) for key in ("mean", "chance")]
            held.setdefault(variant.spec, []).append((pair[0], pair[1]))
    print("\nslots that hold the reference answer's occurrences")
    if missing:
        print(f"the answer does not occur in {missing} of {len(results)} compressed prompts")
    if held:
        columns = {spec: tuple(zip(*pairs, strict=True)) for spec, pairs in held.items()}
        print_table(
            ("variant", "held", "by chance", "n"),
            [
                (spec, *(interval(mean_interval(c), percent=True) for c in two), str(len(two[0])))
                for spec, two in columns.items()
            ],
        )
