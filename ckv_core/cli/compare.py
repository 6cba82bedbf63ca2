"""The command `compare`: several variants on one prompt, at one budget or several."""

from collections.abc import Sequence
from typing import Annotated, Any

from typer import Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli import running
from ckv_core.cli.options import EXAMPLES, JsonOption, check_json_path, command, request_of
from ckv_core.cli.tables import (
    indented,
    number,
    print_ablation,
    print_columns,
    print_generation,
    print_head,
    print_points,
    print_table,
    print_verdict,
    share,
)
from ckv_core.errors import ConfigError, PromptError
from ckv_core.experiment.evidence import held
from ckv_core.experiment.result_json import to_json
from ckv_core.experiment.rounding import floor_sentence
from ckv_core.experiment.runs import together
from ckv_core.experiment.savings import MEANINGS, saving_rows
from ckv_core.experiment.sweep import alpha_optima, curves, matched_metrics
from ckv_core.experiment.verdict import alpha_outcome
from ckv_core.records.byte_budget import budget_bytes
from ckv_core.records.chain import check_chain
from ckv_core.records.events import RunResult
from ckv_core.records.grid import sweep_cost
from ckv_core.records.metrics import METRICS
from ckv_core.records.passages import spans_of
from ckv_core.records.records import PromptInfo, VariantResult

app = Typer()
_ANALYSED = {"mass", "bound", "oracle", "forced", "selection"}
SEVERAL = """
Several budgets or alphas (--budget 64,128,10% --alpha 0,0.25) run each SPEC at each of them, from
one prefill; kept sets are then not stored, and --max-new-tokens 0 only measures.
"""
FIELDS = (
    "context question answer protect variants ablation budget alpha own_indices max_new_tokens "
    "ignore_eos analysis follow_ups scenario model device dtype"
)
EvidenceOption = Annotated[
    list[str] | None,
    Option(
        metavar="TEXT",
        help="words of the context: share of slots that keep them, and expected at random; "
        "repeatable",
    ),
]


@command(app, "compare", FIELDS, EXAMPLES + SEVERAL)
def _compare(
    chosen: dict[str, Any], evidence: EvidenceOption = None, json: JsonOption = None
) -> None:
    """Run several methods on one prompt."""
    request = request_of(chosen)
    request.validate()
    check_json_path(json)
    is_sweep, sought = request.kind == "sweep", tuple(evidence or ())
    if sought and is_sweep:
        raise ConfigError("--evidence needs one budget and one alpha; several store no kept sets.")
    loaded, load_ms = running.load(request)
    if sought:
        check_evidence(running.tokenised(request, loaded), sought)
    if is_sweep:
        tokens, size = running.tokenised(request, loaded).tokens, loaded.parameters
        say(sweep_cost(request, tokens, is_counted=True, parameters=size).text, to_error=True)
    result = running.run(request, loaded, load_ms)
    texts = (*sought, request.answer)
    running.deliver(
        json, lambda: to_json(result, texts), lambda: print_run(result, request.answer, sought)
    )


def print_run(result: RunResult, answer: str, evidence: Sequence[str] = ()) -> None:
    """Print a run: its verdict and figures, with the passages of `evidence` and the answer."""
    is_sweep = result.kind == "sweep"
    print_head(result, answer)
    print_verdict(result)
    if is_sweep:
        say(f"\n{len(result.variants)} points, the full cache among them")
        print_points(together([result]))
    else:
        print_generation(result)
    if floor := floor_sentence(result):
        say(f"\n{floor}")
    if is_sweep:
        _print_savings(result)
        _print_alphas(result)
        return
    for variant in result.variants:
        _print_variant(variant)
    print_ablation(result)
    print_evidence(result, evidence, answer)


def _print_savings(result: RunResult) -> None:
    lines, keys = curves(result), [metric.key for metric in matched_metrics(result)]
    targets = [curve for curve in lines if not curve.first.identity.settings.critical]
    pairs = [(line, target) for target in targets for line in lines if line is not target]
    rows = []
    for savings in saving_rows(pairs, keys):
        first = next(iter(savings.values()))
        at = f"{first.target.first.curve_spec} at {first.target_budget}"
        texts = [savings[key].text if key in savings else "-" for key in keys]
        rows.append((first.curve.first.curve_spec, at, *texts))
    head = ("method", "matches", *(METRICS[key].label for key in keys))
    print_table(head, rows, "budget needed for equal quality")
    if rows:
        say("\nN or less: " + MEANINGS["better"] + "; over N: " + MEANINGS["worse"])


def _print_alphas(result: RunResult) -> None:
    print_columns(
        alpha_optima(result),
        {
            "method": lambda each: each.spec,
            "budget": lambda each: str(each.budget),
            "best alpha": lambda each: f"{each.best_fixed:g}",
            "outcome at it": lambda each: alpha_outcome(result, each) or "-",
            "gain by layer": lambda each: share(each.layer_gain),
            "gain by head": lambda each: share(each.head_gain),
        },
        "best alpha by head L1, which is not by the answer; gain over it: hindsight, a limit for "
        "the alphas tried",
    )


def _print_variant(variant: VariantResult) -> None:
    say(f"\n== {variant.spec}")
    _print_measured(variant)
    _print_analysis(variant)
    say(indented(variant.text))
    for follow_up in variant.follow_ups:
        same = follow_up.agreement
        agrees = "" if same is None else f" ({same:.0%} as the full cache before a difference)"
        say(f"   > {follow_up.question}{agrees}")
        say(indented(follow_up.text))


def _print_analysis(variant: VariantResult) -> None:
    """Means over heads or steps; the many distances are in the JSON."""
    for metric in METRICS.values():
        if metric.group in _ANALYSED and (value := metric.read(variant)) is not None:
            shown = share(value) if metric.is_share else number(value)
            say(f"   {metric.mean_label}: {shown}")
    if (chain := check_chain(variant)) is not None:
        say(
            f"   covered, sigma > 0.5: {chain.covered:,} of {chain.heads:,} heads; "
            f"chain broken in {chain.violations:,}"
        )


def _print_measured(variant: VariantResult) -> None:
    receipt, perturbation = variant.receipt, variant.perturbation
    if receipt is not None:
        requested = budget_bytes(variant)
        wanted = "" if requested is None else f" ({requested:,} requested)"
        say(
            f"   kept {receipt.retained_entries:,} of {receipt.requested_entries:,} requested "
            f"entries; {receipt.cache_bytes:,} of {receipt.full_cache_bytes:,} bytes"
            f"{wanted}"
        )
        if variant.held is not None:
            first, last = variant.held.entries[0], variant.held.entries[-1]
            say(f"   held {first:,} entries at the first new token, {last:,} at the last")
        for warning in receipt.warnings:
            say(f"   note: {warning}")
    if perturbation is not None:
        better = perturbation.improved_head_share
        heads = "" if better is None else f"; head L1 below its base's in {share(better)} of heads"
        say(
            f"   final hidden L1 {perturbation.final_hidden_l1:.1f}, "
            f"KL {number(perturbation.kl)} nats (first decoding step){heads}"
        )


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
        print_table(EVIDENCE, rows)
