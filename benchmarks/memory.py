"""Peak memory above the model, each method alone: the whole prefill beside eviction in blocks.

Prints a Markdown table. Runs leave the full cache out, so that variants take turns; a peak is the
growth of the resident size on a CPU, and what the allocator handed out on CUDA.
"""

import argparse

from benchmarks.setting import EXAMPLE, run
from benchmarks.tables import spread, table
from ckv_core.base.memory_line import human_bytes
from ckv_core.models.loading import load_model
from ckv_core.records.run_request import DEFAULT_MODEL

LIMIT = 0.35  # of the full cache's bytes, at 8,000 tokens and 10 %
VARIANTS = (
    "full",
    "snapkv",
    "keydiff",
    "keydiff:prefill=blocks:1024",
    "knorm:prefill=blocks:1024",
    "lagkv:prefill=blocks:1024",
    "streaming_llm:prefill=blocks:1024",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--chars", type=int, default=34_700, help="of the text; some 8,000 tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", default=VARIANTS)
    given = parser.parse_args()
    loaded = load_model(given.model)
    text = (EXAMPLE.read_text(encoding="utf-8") * 20)[: given.chars]
    wanted = {"variants": tuple(given.variants), "budgets": ("10%",), "reference": False}
    run(loaded, context=text[:4_000], max_new_tokens=4, **wanted)  # what kernels keep for good
    results = [
        run(loaded, context=text, max_new_tokens=32, **wanted)[1] for _ in range(given.rounds)
    ]
    rows = []
    for each in zip(*(result.variants for result in results), strict=True):
        first = each[0]
        if first.receipt is None or first.memory is None:
            continue
        whole, known = first.receipt.full_cache_bytes, [v.memory for v in each if v.memory]
        before = [(m.prefill_peak or 0) / whole for m in known]
        after = [(m.decode_peak or 0) / whole for m in known]
        estimates = first.memory.prefill_estimate or 0, first.memory.decode_estimate or 0
        rows.append(
            (
                first.spec,
                human_bytes(first.receipt.cache_bytes),
                spread([100 * share for share in before]),
                f"{100 * estimates[0] / whole:.0f}",
                spread([100 * share for share in after]),
                f"{100 * estimates[1] / whole:.0f}",
                "yes" if max(before + after) <= LIMIT else "no",
            )
        )
    prompt = results[0].prompt
    heading = (
        "variant",
        "kept",
        "prefill peak, % of full cache",
        "estimate",
        "decode peak, %",
        "estimate",
        f"within {LIMIT:.0%}",
    )
    table(
        f"Peak above the model, {prompt.tokens if prompt else 0:,} tokens, budget 10 %, "
        f"{given.rounds} rounds, {loaded.info.device}",
        heading,
        rows,
    )


if __name__ == "__main__":
    main()
