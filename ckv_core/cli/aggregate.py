"""What `analyse` prints: the table of means over prompts, as the page has it."""

from collections.abc import Callable, Sequence

from ckv_core.analysis.ablation_means import AblationStepMeans, ablation_means
from ckv_core.analysis.aggregate import Several, together
from ckv_core.analysis.aggregate_runs import newest_of_each
from ckv_core.analysis.evidence import held
from ckv_core.analysis.means_table import NOTE, columns_of, interval_text
from ckv_core.cli.tables import print_columns, print_table
from ckv_core.experiment.stats import Interval, score_interval
from ckv_core.results.events import RunResult
from ckv_core.results.passages import spans_of
from ckv_core.runtime.terminal import say


def print_results(results: Sequence[RunResult], answers: Sequence[str]) -> None:
    """All tables.

    Args:
        results: runs of the same variants; of a prompt that is there twice the last counts.
        answers: reference answer of each; empty for none.
    """
    found = together(results)
    _print_head(found, results)
    _print_means(found)
    steps = ablation_means(found.joined.variants)
    base = steps[0].step.spec if steps else ""
    print_columns(steps, STEPS, f"ablation over {base}; heads below the base's L1")
    if any(answer.strip() for answer in answers):
        newest = newest_of_each(results)
        _print_evidence([results[at] for at in newest], [answers[at] for at in newest])
    for note in found.notes:
        say(f"note: {note}")


def _print_head(found: Several, results: Sequence[RunResult]) -> None:
    model, n = found.joined.model, found.joined.n
    tokens = [result.prompt.tokens for result in results if result.prompt]
    if model is not None:
        say(
            f"{model.name} ({model.dtype}, {model.device}); {n} prompt{'' if n == 1 else 's'} of "
            f"{min(tokens):,} to {max(tokens):,} tokens"
        )


def _print_means(found: Several) -> None:
    """The columns that fit beside one another, then a line for each figure of a variant."""
    columns = [each for each in columns_of(found) if not each.is_text]
    shown = [each for each in columns if not each.is_extra]
    rows = [
        [cell.text if (cell := each.read(member)) else "-" for each in shown]
        for member in found.members
    ]
    print_table(
        ("variant", *(each.label for each in shown)),
        [(m.spec, *row) for m, row in zip(found.members, rows, strict=True)],
        NOTE,
    )
    more = [
        (each.label, member.spec, cell.text)
        for each in columns
        if each.is_extra
        for member in found.members
        if (cell := each.read(member))
    ]
    print_table(("figure", "variant", "value"), more, "further figures")


def _shown(interval: Interval | None, *, is_share: bool = False) -> str:
    return "-" if interval is None else interval_text(interval, is_share=is_share)


STEPS: dict[str, Callable[[AblationStepMeans], str]] = {
    "step": lambda step: step.step.label,
    "head L1": lambda step: _shown(step.head_l1),
    "heads below base": lambda step: _shown(step.better_heads, is_share=True),
    "final L1 / base's": lambda step: _shown(step.final_hidden_l1_of_base),
    "n": lambda step: str(step.n),
}


def _print_evidence(results: Sequence[RunResult], answers: Sequence[str]) -> None:
    """Slots that keep the reference answer's occurrences, against random places."""
    kept: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for result, answer in zip(results, answers, strict=True):
        if result.prompt is None or result.model is None:
            continue
        spans = spans_of(result.prompt, answer)
        missing += not spans
        for variant in result.variants:
            evidence = held(variant, spans, result.model.evictable_layers)
            if evidence is not None:
                kept.setdefault(variant.spec, []).append((evidence.mean, evidence.chance))
    say("\nslots that keep the reference answer's occurrences")
    if missing:
        say(f"the answer does not occur in {missing} of {len(results)} compressed prompts")
    print_table(
        ("variant", "kept", "expected at random", "n"),
        [
            (
                spec,
                *(_shown(score_interval(c), is_share=True) for c in zip(*pairs, strict=True)),
                str(len(pairs)),
            )
            for spec, pairs in kept.items()
        ],
    )
