"""The command `compare`: several variants on one prompt."""

import argparse
from typing import Any

import numpy as np

from ckv_core.cli import running
from ckv_core.cli.evidence import check_evidence, print_evidence
from ckv_core.cli.options import (
    EXAMPLES,
    Commands,
    add_model_options,
    add_prompt_options,
    add_variant_options,
    check_json_path,
    chosen_variants,
    comma_list,
    given_defaults,
    model_settings,
    own_indices,
    read_text,
)
from ckv_core.cli.tables import number, print_generation, print_head, print_ladder, share
from ckv_core.config import ANALYSES, MAX_NEW_TOKENS, CompareRequest
from ckv_core.events import RunResult
from ckv_core.metrics.chain import COVERED, check_chain, covered_means
from ckv_core.quantities import QUANTITIES
from ckv_core.records import VariantResult


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="run several methods on one prompt",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=_compare)
    add_prompt_options(parser)
    add_variant_options(parser)
    add = parser.add_argument
    add(
        "--own",
        action="append",
        metavar="FILE",
        help="kept positions in JSON, docs/own_indices.md: one more variant each; repeatable",
    )
    add("--max-new-tokens", type=int, default=64, metavar="T", help=f"1 to {MAX_NEW_TOKENS}")
    add("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    add(
        "--evidence",
        action="append",
        metavar="TEXT",
        help="words of the context: how many slots still hold them, and by chance; repeatable",
    )
    add("--analyse", metavar="LIST", help=f"also measure, of {','.join(ANALYSES)}")
    add(
        "--follow-up",
        action="append",
        metavar="TEXT",
        help="a further question to the same evicted caches (context-only); repeat for several",
    )
    add_model_options(parser)


def _compare(options: argparse.Namespace) -> int:
    defaults = given_defaults(options)
    request = CompareRequest(
        context=read_text(options.context),
        question=options.question,
        answer=options.answer,
        variants=chosen_variants(options, defaults),
        own_indices=own_indices(options.own or ()),
        defaults=defaults,
        max_new_tokens=options.max_new_tokens,
        ignore_eos=options.ignore_eos,
        analysis=comma_list(options.analyse or ""),
        follow_ups=tuple(options.follow_up or ()),
        **model_settings(options),
    )
    request.validate()
    check_json_path(options.json)
    loaded, load_ms = running.load(request)
    sought = options.evidence or ()
    if sought:
        check_evidence(running.tokenised(request, loaded), sought)
    result = running.run(request, loaded, load_ms)

    def documents() -> list[Any]:
        from ckv_core.result_json import to_json

        return [to_json(result, (*sought, options.answer))]

    def show() -> None:
        _print_result(result, options.answer)
        print_evidence(result, sought, options.answer)

    running.deliver(options.json, documents, show)
    return 0


def _print_result(result: RunResult, answer: str) -> None:
    print_head(result, answer)
    for variant in result.variants:
        print(f"\n== {variant.spec}")
        _print_measured(variant)
        _print_analysis(variant)
        print("   " + variant.text.strip().replace("\n", "\n   "))
        for follow_up in variant.follow_ups:
            same = follow_up.agreement
            told = "" if same is None else f" ({same:.0%} as the full cache before a difference)"
            print(f"   > {follow_up.question}{told}")
            print("   " + follow_up.text.strip().replace("\n", "\n   "))
    print_generation(result)
    if any("theta" in variant.analysis for variant in result.variants):
        from ckv_core.cli.averages import print_bounds  # scipy takes a second
        from ckv_core.metrics.intervals import aggregate

        print_bounds(aggregate([result]))
    print_ladder(result)


def _print_analysis(variant: VariantResult) -> None:
    """Means over heads or steps; the many distances are in the JSON."""
    for name, array in variant.analysis.items():
        measured = array[~np.isnan(array)]
        if measured.size and QUANTITIES[name].group != "distance" and name not in COVERED:
            print(f"   {QUANTITIES[name].label}: {number(float(measured.mean()))}")
    if (chain := check_chain(variant)) is not None:
        means = covered_means(variant)
        for key, label in COVERED.items():
            print(f"   {label}: {number(means.get(key))}")
        print(f"   covered, sigma > 0.5: {chain.covered:,} of {chain.heads:,} heads")


def _print_measured(variant: VariantResult) -> None:
    receipt, perturbation = variant.receipt, variant.perturbation
    if receipt is not None:
        print(
            f"   kept {receipt.retained_entries:,} of {receipt.requested_entries:,} entries "
            f"asked for; {receipt.cache_bytes:,} of {receipt.full_cache_bytes:,} bytes"
        )
        for warning in receipt.warnings:
            print(f"   note: {warning}")
    if perturbation is not None:
        better = perturbation.improved_head_share
        heads = "" if better is None else f"; head L1 below its base's in {share(better)} of heads"
        print(
            f"   final hidden L1 {perturbation.final_hidden_l1:.1f}, "
            f"KL {perturbation.kl:.4f} nats (first decoding step){heads}"
        )
