"""The samples of a run, and what came of each at each point. Plain values; no torch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ckv_core.base.checked import Checked, Plain, chars, loose, many, require, within
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.records import Count, Measured, Outcome, Setting, Share, Stop
from ckv_core.records.run_request import (
    MAX_NEW_TOKENS,
    MAX_PROTECTED,
    Flag,
    LongText,
    Point,
    RunRequest,
    SpecText,
)

ResultState = Literal["done", "failed"]
MAX_ID = 200
MAX_ANSWERS = 64
MAX_ANSWER_CHARS = 20_000
MAX_CLASSES = 256
MAX_TAGS = 16
MAX_SAMPLES = 5_000
Id = Annotated[str, loose(MAX_ID, is_line=True)]
BudgetText = Annotated[str, loose(20, 1)]
AnyText = Annotated[str, loose(MAX_TEXT_CHARS)]  # a file may have a number for it
Passages = Annotated[tuple[Annotated[str, loose(MAX_ANSWER_CHARS, 1)], ...], many(MAX_PROTECTED)]
Key = tuple[str, str, str | None]  # sample, variant and budget of a result


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Checked):
    """One question to one context.

    Attributes:
        id: unique in its study.
        answers: reference answers; which of them count is the metric's business.
        metric: of `scores.METRICS`; empty for the study's own.
        source: samples of one source are no independent ones; empty where each stands for itself.
        tags: what a reader may group by, for example task, length (tokens) and depth (0 to 1).
        choices: all classes, of a classification.
        evidence: passages of the context that hold the answer, where they are known.
        protect: passages of the prompt that no method may evict.
        answer_prefix: of `RunRequest`, as the benchmark publishes it.
        max_new_tokens: the benchmark's own limit, at which a text is judged as it is; None for the
            study's, where a text that is cut before an answer has no score.
    """

    id: Id
    context: AnyText
    question: AnyText
    answers: Annotated[tuple[Annotated[str, loose(MAX_ANSWER_CHARS)], ...], many(MAX_ANSWERS, 1)]
    metric: Annotated[str, chars(40)] = ""
    source: Id = ""
    tags: Annotated[Mapping[str, Setting], many(MAX_TAGS)] = field(default_factory=dict)
    choices: Annotated[tuple[Annotated[str, chars(1_000)], ...], many(MAX_CLASSES)] = ()
    evidence: Passages = ()
    protect: Passages = ()
    answer_prefix: Annotated[str, chars(MAX_ANSWER_CHARS)] | None = None
    max_new_tokens: Annotated[int, within(1, MAX_NEW_TOKENS)] | None = None

    def request(self, study: RunRequest, points: Collection[Point] = ()) -> RunRequest:
        """The request of this sample alone, at the given points of its study, or at all of them."""
        return study.of_sample(
            points,
            context=self.context,
            question=self.question,
            protect=self.protect,
            answer_prefix=self.answer_prefix,
            max_new_tokens=self.max_new_tokens or study.max_new_tokens,
        )

    def checked(self, value: Plain, known: Plain) -> "Sample":
        """It has an id and a context, and its metric is one of those that are known."""
        del value
        require(self.id, "text is expected", "id", got=self.id)
        require(self.context.strip(), "text is expected", "context", got=self.context)
        metrics = known["metrics"]
        is_known = not self.metric or self.metric in metrics
        require(is_known, f"one of {', '.join(metrics)} is expected", "metric", got=self.metric)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult(Checked):
    """What came of one sample at one point.

    Attributes:
        sample: its id.
        state: `failed` where there is no generation; `reason` says why.
        for_good: it fails each time; other failures may pass.
        score: 0 to 1, by the sample's metric; None where it failed, or was cut before an answer.
        stopped: why generation ended.
        figures: what else was measured of it, by key of the `metrics` that samples have; without
            those that are not known, as the perturbation of the full cache.
    """

    derived: ClassVar = ("outcome",)

    sample: Id
    variant: SpecText
    budget: BudgetText | None = None
    state: ResultState
    reason: Annotated[str, chars(2_000)] = ""
    for_good: Flag = False
    score: Share | None = None
    text: LongText = ""
    stopped: Stop | None = None
    prompt_tokens: Count | None = None
    figures: Annotated[Mapping[str, Measured], many(64)] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What no two results of a study share."""
        return (self.sample, self.variant, self.budget)

    @property
    def outcome(self) -> Outcome:
        """Answered is any score above 0; a cut or failed text is neither right nor wrong."""
        if self.state == "failed":
            return "failed"
        if self.score:
            return "answered"
        return "cut" if self.score is None and self.stopped == "length" else "missed"
