"""Tables of several budgets or alphas on one sample. No torch."""

from collections.abc import Callable
from functools import partial

from ckv_core.experiment import names
from ckv_core.experiment.points import Row
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.rounding import floor_sentence
from ckv_core.experiment.runs import together
from ckv_core.experiment.savings import SAVINGS_NOTE, Needs, saving_rows, savings_table
from ckv_core.experiment.sweep import AlphaOptimum, alpha_optima, matched_metrics, nobody_answers
from ckv_core.experiment.table import Column, Table, text_column
from ckv_core.experiment.verdict import alpha_outcome
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import cut_note
from ckv_core.records.passages import spans_of
from ckv_core.records.variants import VariantSpec

MOOT_NOTE = "No point gives the answer, so an equal metric saves no budget."
POINTS_NOTE = "One prompt; L1 and KL at the first decoding step, 0 for the full cache."
MISSING_ANSWER = "The expected answer does not occur in the compressed prompt."


def sweep_points(result: RunResult, answer: str = "") -> Table[Row]:
    """All points; the note says where the prompt lacks the answer."""
    missing = bool(answer.strip() and result.prompt and not spans_of(result.prompt, answer))
    notes = (
        POINTS_NOTE,
        cut_note(result.variants),
        floor_sentence(result),
        MISSING_ANSWER if missing else "",
    )
    return points_table(
        together([result]),
        "All points of the sweep",
        file="sweep-points.csv",
        note=" ".join(filter(None, notes)),
    )


def sweep_savings(result: RunResult, *references: object) -> Table[Needs]:
    """Which budget each line needs to match the quality of another.

    `references` are indices of the lines whose points are matched; a client may send anything.
    """
    points = together([result])
    lines, keys = points.curves, [metric.key for metric in matched_metrics(result)]
    known = [at for at in references if isinstance(at, int) and 0 <= at < len(lines)]
    pairs = [(line, lines[at]) for at in known for line in lines if line is not lines[at]]
    is_moot = nobody_answers(result)
    return savings_table(
        points,
        saving_rows(pairs, keys, is_moot=is_moot),
        keys,
        file="sweep-budgets.csv",
        note=f"{SAVINGS_NOTE} {MOOT_NOTE}" if is_moot else SAVINGS_NOTE,
        empty="One more method or alpha is needed to compare budgets.",
    )


def optimum_name(optimum: AlphaOptimum) -> str:
    """Method and budget over whose alphas the best was sought."""
    method = names.curve_name(VariantSpec.parse(optimum.spec).label, None, optimum.spec)
    return f"{method} budget {optimum.budget}"


def sweep_alphas(result: RunResult) -> Table[AlphaOptimum]:
    """The best alphas, a row per method and budget.

    A gain is the share of the best fixed alpha's summed head L1 that hindsight would save.
    """
    gains: dict[str, Callable[[AlphaOptimum], float]] = {
        "layer": lambda at: at.layer_gain,
        "KV head": lambda at: at.head_gain,
    }
    columns: list[Column[AlphaOptimum]] = [
        text_column("method", "Method and budget", optimum_name),
        text_column("tried", "Alphas tried", lambda at: ", ".join(f"{a:g}" for a in at.alphas)),
        Column("fixed", "Alpha of least head L1", lambda at: at.best_fixed, form="g"),
        text_column("outcome", "Outcome at it", partial(alpha_outcome, result)),
        *(
            Column(of, f"Gain, an alpha per {of}", read, unit="head L1 saved", form="z.1%")
            for of, read in gains.items()
        ),
        Column("n", "n", lambda at: int((at.head_alpha >= 0).sum()), unit="KV heads", form=","),
    ]
    return Table(
        caption="Best alphas",
        columns=columns,
        items=alpha_optima(result),
        file="sweep-alphas.csv",
        note="One prompt. Least by the summed isolated head L1 at the first decoding step, not "
        "by the answer. An alpha per layer or KV head is chosen by looking at the outcome.",
        empty="Two alphas at one budget are needed to compare them.",
    )
