"""What a study is made of: its definition, samples, points and results. Plain values; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from ckv_core.base.checked import Checked, Plain, chars, loose, many, require, within
from ckv_core.errors import ConfigError, about
from ckv_core.methods.parameters import Budget
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.records import Count, Measured, Outcome, Setting, Share, Stop
from ckv_core.records.run_request import (
    DEFAULT_MODEL,
    MAX_NEW_TOKENS,
    MAX_SWEEP_POINTS,
    SCENARIOS,
    Flag,
    LongText,
    Scenario,
)
from ckv_core.records.variants import VariantSpec

FULL = "full"
MAX_TOLERANCE = 100.0  # points
DEFAULT_TOLERANCE = 5.0
MAX_NAME = 80
ResultState = Literal["done", "failed"]
MAX_ID = 200
MAX_ANSWERS = 64
MAX_ANSWER_CHARS = 20_000
MAX_CLASSES = 256
MAX_TAGS = 16
MAX_SAMPLES = 5_000
Id = Annotated[str, loose(MAX_ID, is_line=True)]
SpecText = Annotated[str, loose(200, 1)]
Name = Annotated[str, loose(MAX_NAME, 1, is_line=True)]
BudgetText = Annotated[str, loose(20, 1)]
AnyText = Annotated[str, loose(MAX_TEXT_CHARS)]  # a file may have a number for it
Tolerance = Annotated[float, within(0, MAX_TOLERANCE)]
Key = tuple[str, str, str | None]  # sample, variant and budget of a result


@dataclass(frozen=True, slots=True)
class Point:
    """One variant at one budget.

    Attributes:
        variant: SPEC without budget, as written in the study.
        budget: `10%` or `128`; None for the full cache, which has one row per sample.
    """

    variant: str
    budget: str | None

    @property
    def spec(self) -> str:
        """As the engine reads it."""
        if self.budget is None:
            return self.variant
        joint = "," if ":" in self.variant else ":"
        return f"{self.variant}{joint}budget={self.budget}"


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
    """

    id: Id
    context: AnyText
    question: AnyText
    answers: Annotated[tuple[Annotated[str, loose(MAX_ANSWER_CHARS)], ...], many(MAX_ANSWERS, 1)]
    metric: Annotated[str, chars(40)] = ""
    source: Id = ""
    tags: Annotated[Mapping[str, Setting], many(MAX_TAGS)] = field(default_factory=dict)
    choices: Annotated[tuple[Annotated[str, chars(1_000)], ...], many(MAX_CLASSES)] = ()

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
class Study:
    """The request of a study; one YAML file.

    Attributes:
        name: unique per owner.
        data: where its samples come from: `file` and `columns`, or `task` and its settings.
        variants: SPECs without budget; the full cache is part of every study, named or not.
        budgets: all in tokens or all in percent.
        metric: of `scores.METRICS`; a sample's own wins.
        tolerance: points (hundredths) that a method may lose against the full cache.
        read_once: its size is fixed and nothing is decided before its end, which takes fewer
            samples.
        earlier_tolerances, earlier_variants: of this name, since it had results; the decision
            counts all methods that were ever tried.
    """

    name: Name
    data: Mapping[str, Any]
    model: Annotated[str, loose(500, 1)] = DEFAULT_MODEL
    scenario: Scenario = "regular"
    variants: Annotated[tuple[SpecText, ...], many(64)] = ()
    budgets: Annotated[tuple[BudgetText, ...], many(32)] = ()
    max_new_tokens: Annotated[int, within(1, MAX_NEW_TOKENS)] = 32
    metric: Annotated[str, chars(40)] = "string_match"
    tolerance: Tolerance = DEFAULT_TOLERANCE
    read_once: Flag = False
    earlier_tolerances: Annotated[tuple[Tolerance, ...], many(64)] = ()
    earlier_variants: Annotated[tuple[SpecText, ...], many(64)] = ()

    def after(self, old: "Study") -> "Study":
        """The same in place of another one of its name that has results."""
        tolerances = dict.fromkeys((*old.earlier_tolerances, old.tolerance))
        variants = dict.fromkeys((*old.earlier_variants, *old.variants))
        return replace(
            self,
            earlier_tolerances=tuple(each for each in tolerances if each != self.tolerance),
            earlier_variants=tuple(each for each in variants if each not in self.variants),
        )

    def points(self) -> tuple[Point, ...]:
        """The full cache, then each variant at each budget, by rising budget.

        Raises:
            ConfigError: no or a wrong variant or budget, or too many points.
        """
        with about("budgets"):
            budgets = self._budgets()
        found: dict[tuple[object, ...], Point] = {}
        for text in self.variants:
            spec = VariantSpec.parse(text)
            if not spec.method.evicts:
                continue
            if "budget" in spec.given:
                raise ConfigError(
                    f"{text!r} sets a budget; leave it out and list it under budgets."
                )
            if spec.settings() in found:
                raise ConfigError(f"Variant {text!r} is listed twice; remove one.")
            found[spec.settings()] = Point(text.strip(), None)
        if not found:
            raise ConfigError("List at least one variant that evicts, for example snapkv.")
        count = 1 + len(found) * len(budgets)
        if count > MAX_SWEEP_POINTS:
            raise ConfigError(
                f"The study has {count} points a sample; the limit is {MAX_SWEEP_POINTS}. Take "
                "fewer variants or budgets."
            )
        points = [Point(each.variant, budget) for each in found.values() for budget in budgets]
        for point in points:
            VariantSpec.parse(point.spec)
        return (Point(FULL, None), *points)

    def _budgets(self) -> list[str]:
        parsed = sorted({Budget.parse(text) for text in self.budgets}, key=lambda at: at.amount)
        if not parsed:
            raise ConfigError("List at least one budget, for example 10%.")
        units = {budget.unit for budget in parsed}
        if len(units) > 1 or "mib" in units:
            raise ConfigError(
                "The budgets of a study are all in percent (10%) or all in tokens (128), so that "
                "the smallest is known."
            )
        return [str(budget) for budget in parsed]

    def validate(self) -> tuple[Point, ...]:
        """Check all that needs no samples and no model; returns the points.

        Raises:
            ConfigError: says what to change.
        """
        if self.scenario not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise ConfigError(f"scenario must be one of {known}; got {self.scenario!r}.")
        with about("max_new_tokens"):
            if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
                raise ConfigError(f"max_new_tokens must be from 1 to {MAX_NEW_TOKENS}.")
        with about("tolerance"):
            if not 0 <= self.tolerance <= MAX_TOLERANCE or round(self.tolerance, 1) != (
                self.tolerance
            ):
                raise ConfigError(
                    f"tolerance must be from 0 to {MAX_TOLERANCE:g} points, in steps of 0.1."
                )
        with about("variants"):
            return self.points()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult(Checked):
    """What came of one sample at one point.

    Attributes:
        sample: its id.
        state: `failed` where there is no generation; `reason` says why.
        for_good: it fails each time; other failures may pass.
        score: 0 to 1, by the sample's metric; None where it failed, or was cut before an answer.
        stopped: why generation ended.
        prompt_tokens, budget_tokens: of the prompt; requested entries per KV head.
        cache_bytes, full_cache_bytes: of the compressed prompt's entries.
        head_l1, final_l1, kl: perturbation of the first decoding step; None for the full cache.
        agreement: share of the full cache's tokens before the first difference.
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
    budget_tokens: Count | None = None
    cache_bytes: Count | None = None
    full_cache_bytes: Count | None = None
    head_l1: Measured | None = None
    final_l1: Measured | None = None
    kl: Measured | None = None
    agreement: Share | None = None

    def checked(self, value: Plain, known: Plain) -> "SampleResult":
        """A text that was cut before an answer has no score."""
        del value, known
        has_none = self.outcome != "cut" or self.score is None
        require(has_none, "null is expected of a text that was cut", "score", got=self.score)
        return self

    @property
    def key(self) -> Key:
        """What no two results of a study share."""
        return (self.sample, self.variant, self.budget)

    @property
    def outcome(self) -> Outcome:
        """Answered is any score above 0; a cut or failed text is neither right nor wrong."""
        if self.state == "failed":
            return "failed"
        if not self.score:
            return "cut" if self.stopped == "length" else "missed"
        return "answered"
