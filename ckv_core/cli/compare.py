"""The command `compare`: several variants on one prompt, at one budget or several."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from typer import Option, Typer

from ckv_core.base.percent import percent
from ckv_core.base.terminal import say
from ckv_core.cli import running
from ckv_core.cli.options import (
    EXAMPLES,
    JsonOption,
    check_json_path,
    command,
    request_of,
)
from ckv_core.cli.tables import (
    indented,
    print_ablation,
    print_head,
    print_rows,
    print_table,
    print_verdict,
    share,
)
from ckv_core.errors import PromptError
from ckv_core.experiment.evidence import held
from ckv_core.experiment.next_step import next_of_run
from ckv_core.experiment.summary import summary_table
from ckv_core.experiment.sweep import curves, sweep_points, sweep_savings
from ckv_core.records.chain import check_chain
from ckv_core.records.codec import to_json
from ckv_core.records.events import RunResult
from ckv_core.records.grid import cost
from ckv_core.records.metrics import Group
from ckv_core.records.passages import spans_of
from ckv_core.records.records import PromptInfo, VariantResult
from ckv_core.records.run_request import ARGUMENTS

app = Typer()
_ANALYSED: tuple[Group, ...] = ("mass", "bound", "oracle", "forced", "selection")
SEVERAL = """
Several budgets or alphas (--budget 64,128,10% --alpha 0,0.25) run each SPEC at each of them, from
one prefill; --max-new-tokens 0 only measures.
"""
EvidenceOption = Annotated[
    list[str] | None,
    Option(
        metavar="TEXT",
        help="words of the context; prints how much of them each method keeps, and chance; "
        "repeatable",
    ),
]


@command(app, "compare", " ".join((*ARGUMENTS, "ablation")), EXAMPLES + SEVERAL)
def _compare(
    chosen: dict[str, Any], evidence: EvidenceOption = None, json: JsonOption = None
) -> None:
    """Run several methods on one prompt."""
    request = request_of(chosen)
    request.validate()
    check_json_path(json)
    is_sweep, sought = request.kind == "sweep", tuple(evidence or ())
    loaded, load_ms = running.load(request)
    if sought:
        check_evidence(running.tokenised(request, loaded), sought)
    if is_sweep:
        points = [(running.tokenised(request, loaded).tokens, len(request.points()))]
        say(cost(request, points, parameters=loaded.parameters).text, to_error=True)
    result = running.run(request, loaded, load_ms)
    show = partial(print_run, result, request.answer, sought)
    running.deliver(json, lambda: to_json(result), show)


def print_run(result: RunResult, answer: str, evidence: Sequence[str] = ()) -> None:
    """Print a run: its verdict and figures, with the passages of `evidence` and the answer."""
    print_head(result, answer)
    print_verdict(result)
    if result.kind == "sweep":
        say(f"\n{len(result.variants)} points, the full cache among them")
        print_table(sweep_points(result))
        plain = [not curve.first.identity.settings.critical for curve in curves(result)]
        print_table(sweep_savings(result, *(at for at, is_plain in enumerate(plain) if is_plain)))
    else:
        if table := summary_table(result, ended=True, groups=_ANALYSED):
            print_table(table)
        for variant in result.variants:
            _print_variant(variant)
        print_ablation(result)
    print_evidence(result, evidence, answer)
    if step := next_of_run(result):
        say(f"\nNext: {step}")


def _print_variant(variant: VariantResult) -> None:
    say(f"\n== {variant.spec}")
    if chain := check_chain(variant):
        say(
            f"   covered, sigma > 0.5: {chain.covered:,} of {chain.heads:,} heads; "
            f"chain broken in {chain.violations:,}"
        )
    say(indented(variant.text))
    for follow_up in variant.follow_ups:
        same = follow_up.agreement
        agrees = "" if same is None else f" ({percent(same)} as the full cache before a difference)"
        say(f"   > {follow_up.question}{agrees}")
        say(indented(follow_up.text))


def check_evidence(prompt: PromptInfo, texts: Sequence[str]) -> None:
    """Refuse a passage that does not occur in the compressed prompt: PromptError."""
    for text in texts:
        if not spans_of(prompt, text):
            raise PromptError(
                f"--evidence {text!r} does not occur in the compressed prompt; copy the words "
                "from the context."
            )


EVIDENCE = ("variant", "slots kept", "share", "expected at random", "heads keeping all")


def print_evidence(result: RunResult, texts: Sequence[str], answer: str) -> None:
    """A table per passage (and the answer, where it occurs), a row per variant that evicted."""
    if result.prompt is None or result.model is None:
        return
    for text in dict.fromkeys((*texts, answer)):
        spans = spans_of(result.prompt, text)
        if not spans:  # of the answer; the head of what is printed says so
            continue
        tokens = sum(end - first for first, end in spans)
        times = "once" if len(spans) == 1 else f"{len(spans)} times"
        kind = "evidence" if text in texts else "reference answer"
        say(f"\n{kind} {text!r}: {times} in the compressed prompt, {tokens} tokens")
        rows = [
            (
                variant.spec,
                f"{evidence.entries:,} of {evidence.slots:,}",
                share(evidence.mean),
                share(evidence.chance),
                f"{evidence.whole:,} of {evidence.heads:,}",
            )
            for variant in result.variants
            if (evidence := held(variant, spans, result.model.evictable_layers)) is not None
        ]
        print_rows(EVIDENCE, rows)
