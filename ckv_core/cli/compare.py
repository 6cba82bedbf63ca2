"""The command `compare`: several variants on one prompt, at one budget or several."""

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np

from ckv_core.analysis.aggregate import aggregate
from ckv_core.analysis.evidence import held
from ckv_core.cli import running
from ckv_core.cli.aggregate import print_bounds
from ckv_core.cli.options import (
    EXAMPLES,
    Commands,
    add_command,
    add_model_options,
    add_prompt_options,
    add_variant_options,
    check_json_path,
    chosen_variants,
    comma_list,
    given_defaults,
    model_settings,
    own_indices,
    prompt_settings,
)
from ckv_core.cli.sweep import print_sweep
from ckv_core.cli.tables import (
    number,
    print_ablation,
    print_floor,
    print_generation,
    print_head,
    print_table,
    print_verdict,
    share,
)
from ckv_core.errors import ConfigError, PromptError
from ckv_core.request.compare_request import ANALYSES, MAX_NEW_TOKENS, CompareRequest
from ckv_core.request.grid import sweep_cost, with_points
from ckv_core.results.byte_budget import asked_bytes
from ckv_core.results.chain import COVERED, check_chain, covered_means
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.passages import spans_of
from ckv_core.results.records import PromptInfo, VariantResult
from ckv_core.runtime.terminal import say

SEVERAL = """\
Several budgets or alphas (--budget 64,128,10% --alpha 0,0.25) run each SPEC at each of them, from
one prefill; kept sets are then not stored.
"""


def register(commands: Commands) -> None:
    does = "run several methods on one prompt"
    parser = add_command(commands, "compare", _compare, does, EXAMPLES + SEVERAL)
    add_prompt_options(parser)
    add_variant_options(parser)
    add = parser.add_argument
    own = "kept positions in JSON (docs/external_selection.md): one more variant; repeatable"
    add("--own", action="append", metavar="FILE", help=own)
    tokens = f"1 to {MAX_NEW_TOKENS}; at several budgets or alphas 0 only measures"
    add("--max-new-tokens", type=int, default=64, metavar="T", help=tokens)
    add("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    kept = "words of the context: share of slots that keep them, and expected at random; repeatable"
    add("--evidence", action="append", metavar="TEXT", help=kept)
    analyses = f"also measure, of {','.join(ANALYSES)}; at several budgets or alphas: bounds"
    add("--analyse", metavar="LIST", help=analyses)
    asked = "a further question to the same evicted caches (context-only); repeat for several"
    add("--follow-up", action="append", metavar="TEXT", help=asked)
    add_model_options(parser)


def _compare(options: argparse.Namespace) -> int:
    budgets, alphas = comma_list(options.budget or ""), comma_list(options.alpha or "")
    is_sweep = max(len(budgets), len(alphas)) > 1
    request = CompareRequest(
        variants=chosen_variants(options, {} if is_sweep else given_defaults(options)),
        own_indices=own_indices(options.own or ()),
        max_new_tokens=options.max_new_tokens,
        ignore_eos=options.ignore_eos,
        analysis=comma_list(options.analyse or ""),
        follow_ups=tuple(options.follow_up or ()),
        **prompt_settings(options),
        **model_settings(options),
    )
    request = with_points(request, budgets, alphas)
    request.validate()
    check_json_path(options.json)
    sought = options.evidence or ()
    if sought and request.kind == "sweep":
        raise ConfigError("--evidence needs one budget and one alpha; several store no kept sets.")
    loaded, load_ms = running.load(request)
    if sought:
        check_evidence(running.tokenised(request, loaded), sought)
    if request.kind == "sweep":
        tokens, size = running.tokenised(request, loaded).tokens, loaded.parameters
        say(sweep_cost(request, tokens, is_counted=True, parameters=size).text, to_error=True)
    result = running.run(request, loaded, load_ms)

    def show() -> None:
        if request.kind == "sweep":
            print_sweep(result, options.answer)
            return
        _print_result(result, options.answer)
        print_evidence(result, sought, options.answer)

    document = partial(running.result_document, result, *sought, options.answer)
    running.deliver(options.json, document, show)
    return 0


def _print_result(result: RunResult, answer: str) -> None:
    print_head(result, answer)
    print_verdict(result)
    print_generation(result)
    print_floor(result)
    for variant in result.variants:
        say(f"\n== {variant.spec}")
        _print_measured(variant)
        _print_analysis(variant)
        say("   " + variant.text.strip().replace("\n", "\n   "))
        for follow_up in variant.follow_ups:
            same = follow_up.agreement
            agrees = "" if same is None else f" ({same:.0%} as the full cache before a difference)"
            say(f"   > {follow_up.question}{agrees}")
            say("   " + follow_up.text.strip().replace("\n", "\n   "))
    if any("theta" in variant.analysis for variant in result.variants):
        print_bounds(aggregate([result]))
    print_ablation(result)


def _print_analysis(variant: VariantResult) -> None:
    """Means over heads or steps; the many distances are in the JSON."""
    for name, array in variant.analysis.items():
        measured = array[~np.isnan(array)]
        if measured.size and FIGURES[name].group != "distance" and name not in COVERED:
            say(f"   {FIGURES[name].label}: {number(float(measured.mean()))}")
    if (chain := check_chain(variant)) is not None:
        means = covered_means(variant)
        for key in COVERED:
            say(f"   {FIGURES[key].mean_label}: {number(means.get(key))}")
        say(f"   covered, sigma > 0.5: {chain.covered:,} of {chain.heads:,} heads")


def _asked(variant: VariantResult) -> str:
    asked = asked_bytes(variant)
    return "" if asked is None else f" ({asked:,} asked for)"


def _print_measured(variant: VariantResult) -> None:
    receipt, perturbation = variant.receipt, variant.perturbation
    if receipt is not None:
        say(
            f"   kept {receipt.retained_entries:,} of {receipt.requested_entries:,} requested "
            f"entries; {receipt.cache_bytes:,} of {receipt.full_cache_bytes:,} bytes"
            f"{_asked(variant)}"
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
        rows = []
        for variant in result.variants:
            evidence = held(variant, spans, result.model.evictable_layers)
            if evidence is not None:
                rows.append(
                    (
                        variant.spec,
                        f"{evidence.entries:,} of {evidence.slots:,}",
                        share(evidence.mean),
                        share(evidence.chance),
                        f"{evidence.whole:,} of {evidence.heads:,}",
                    )
                )
        if rows:
            head = ("variant", "slots kept", "share", "expected at random", "heads keeping all")
            print_table(head, rows)
