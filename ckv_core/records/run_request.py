"""The request of a run, checked as far as it can be without a model. No torch."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, get_type_hints

from ckv_core.base.checked import (
    EXACT,
    By,
    Plain,
    chars,
    loose,
    many,
    one_of,
    read,
    require,
    within,
)
from ckv_core.errors import ConfigError, PromptError, about
from ckv_core.methods import PARAMETERS
from ckv_core.methods.parameters import Budget
from ckv_core.records.external_selection import (
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    ExternalSelection,
    own_from_json,
)
from ckv_core.records.variants import VariantSpec, spec_without, written_parameters

Scenario = Literal["regular", "context-only"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
# A sweep may generate nothing.
Kind = Literal["compare", "sweep"]
# bounds: quantities of heads and layers, with oracles; forced: every method on the full cache's
# own continuation. See metrics.py.
Analysis = Literal["bounds", "forced"]
ANALYSES: tuple[Analysis, ...] = get_args(Analysis)
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{DEFAULT_MODEL}"
FULL = "full"
MAX_SWEEP_POINTS = 256
MAX_NEW_TOKENS = 1024
MAX_FOLLOW_UPS = 8
MAX_REPEATS = 32
MAX_PROTECTED = 12  # places of a prompt: their positions fit into one parameter of a record
MAX_NAME = 80
MAX_TOLERANCE = 100.0  # points
DEFAULT_TOLERANCE = 5.0
_TEXTS = ("context", "question", "answer", "protect", "follow_ups")
_EARLIER = ("earlier_tolerances", "earlier_variants", "earlier_baselines")
# Fields that a run of one sample has alone, and those of a run of many.
_SETTINGS = ("analysis", "answer_prefix", "repeats", "ignore_eos", "time", "device", "dtype")
OF_ONE = frozenset((*_TEXTS, *_SETTINGS, "own_indices", "places", "reference"))
OF_MANY = frozenset(("name", "data", "metric", "baseline", "tolerance", "read_once", *_EARLIER))
LongText = Annotated[str, chars(MAX_TEXT_CHARS)]
SpecText = Annotated[str, loose(1000, 1)]
Values = Annotated[tuple[Annotated[str, loose(40)], ...], many(MAX_SWEEP_POINTS)]
Flag = Annotated[bool, EXACT]
Name = Annotated[str, loose(MAX_NAME, 1, is_line=True)]
TOKEN_RANGE = re.compile(r"tokens:(\d{1,9})-(\d{1,9})", re.ASCII)  # positions that are protected


def _read_own(value: Any, _: Plain) -> tuple[ExternalSelection, ...]:
    """Documents in a request that comes from outside; selections in one that is made here."""
    return value if isinstance(value, tuple) else own_from_json(value, "own_indices")


def _read_tolerance(value: Any, _: Plain) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_right = is_number and 0 <= value <= MAX_TOLERANCE and round(value, 1) == value
    require(is_right, f"a number from 0 to {MAX_TOLERANCE:g} in steps of 0.1 is expected")
    return float(value)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Sampled texts of each variant: how many, and from which distribution.

    Attributes:
        temperature: logits are divided by it.
        top_p: drawn from the most likely tokens that together reach this share.
        seed: of the random numbers, which all variants share.
    """

    count: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> "Repeats":
        """Read `8:temperature=0.7,top_p=0.9,seed=0`; ConfigError for anything else."""
        if not text.strip():
            return cls()
        number, _, rest = text.strip().partition(":")
        pairs = [pair.partition("=")[::2] for pair in rest.split(",") if pair.strip()]
        given = {key.strip(): value.strip() for key, value in pairs}
        try:
            found = cls(
                int(number),
                float(given.pop("temperature", 1)),
                float(given.pop("top_p", 1)),
                int(given.pop("seed", 0)),
            )
        except ValueError:
            found = cls()
        is_right = 0 < found.temperature <= 10 and 0 < found.top_p <= 1 and 0 <= found.seed < 2**31
        if given or not 1 <= found.count <= MAX_REPEATS or not is_right:
            raise ConfigError(
                "Sampled texts must read COUNT:temperature=T,top_p=P,seed=N; "
                f"got {text[:60]!r}. COUNT is 1 to {MAX_REPEATS}, T above 0 and at most 10, P "
                "above 0 and at most 1."
            )
        return found


Tolerance = Annotated[float, By(_read_tolerance)]


@dataclass(frozen=True, slots=True)
class Point:
    """One variant at one budget.

    Attributes:
        variant: SPEC without budget; of many samples as written in the request.
        budget: `10%` or `128`; None where nothing is evicted.
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


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run as the user wants it: samples x variants x budgets, plain values to store and send.

    The one sample of a run is in `context`, `question` and `answer`; a run of many samples has a
    name, and `data` says where they come from.

    A field is one line here: its type, its bounds, and what it means, which `meaning` reads. The
    command line, the endpoints, files, the database and bundles take it from here.
    """

    context: Annotated[LongText, "the long text whose cache entries are evicted"] = ""
    question: Annotated[LongText, "question about the text; empty for none"] = ""
    name: Annotated[
        str,
        loose(MAX_NAME, is_line=True),
        "of a run of many samples; a name that exists resumes its run",
    ] = ""
    # The compressed part of the prompt: context and question, or the context alone.
    scenario: Annotated[
        Scenario, "whether the question is known before the compression (regular) or after it"
    ] = "regular"
    model: Annotated[str, loose(500), "name, Hugging Face id or folder"] = DEFAULT_MODEL
    data: Annotated[
        Mapping[str, Any],
        many(16),
        "where many samples come from: a file and its columns, or a task and its settings",
    ] = field(default_factory=dict)
    variants: Annotated[
        tuple[SpecText, ...],
        many(MAX_SWEEP_POINTS),
        "methods and their settings: METHOD[+critical|+critical_auto][:key=value,...]",
    ] = (FULL,)
    budgets: Annotated[
        Values, "entries kept per KV head (128), shares of the prompt (10%) or sizes (4MiB)"
    ] = ()
    alphas: Annotated[Values, "shares that CriticalKV chooses by attention alone, 0 to 1"] = ()
    # Run-wide values of further parameters as text, for keys that a SPEC leaves out.
    defaults: Annotated[Mapping[str, Annotated[str, chars(200)]], many(64)] = field(
        default_factory=dict
    )
    max_new_tokens: Annotated[
        int,
        within(0, MAX_NEW_TOKENS),
        f"tokens to generate per method, up to {MAX_NEW_TOKENS}; 0 measures without text, at "
        "several budgets",
    ] = 64
    answer_prefix: Annotated[
        LongText | None,
        "what the answer begins with, put behind the chat template's end; context and question "
        "are then joined as they are, as in kvpress",
    ] = None
    answer: Annotated[LongText, "expected answer to look for in the output"] = ""
    metric: Annotated[str, chars(40), "how samples without a metric are scored"] = "string_match"
    tolerance: Annotated[
        Tolerance, "accepted accuracy drop against the full cache, in percentage points"
    ] = DEFAULT_TOLERANCE
    baseline: Annotated[
        SpecText,
        "what scores are compared with: full, or a method of the run at one of its budgets "
        "(snapkv:budget=20%)",
    ] = FULL
    read_once: Annotated[
        bool, EXACT, "the number of samples is fixed, and nothing is decided before its end"
    ] = False
    # Of this name, since it had results: the decision counts all methods that were ever tried.
    earlier_tolerances: Annotated[tuple[Tolerance, ...], many(64)] = ()
    earlier_variants: Annotated[tuple[SpecText, ...], many(64)] = ()
    earlier_baselines: Annotated[tuple[SpecText, ...], many(64)] = ()
    repeats: Annotated[
        str,
        loose(80),
        "sampled texts beside the greedy one, such as 8:temperature=0.7,top_p=0.9,seed=0; the "
        "default is temperature 1, top_p 1 and seed 0",
    ] = ""
    ignore_eos: Annotated[
        bool, EXACT, "generate past the end-of-sequence token: equally many tokens per method"
    ] = False
    time: Annotated[
        bool,
        EXACT,
        "after the run, time each method alone: first token, each token, tokens/s",
    ] = False
    device: Annotated[
        str, one_of(*DEVICES), f"{', '.join(DEVICES)}; auto: CUDA if there is one"
    ] = "auto"
    dtype: Annotated[
        str,
        one_of(*DTYPES),
        f"{', '.join(DTYPES)}; auto: float32 on CPU, bfloat16 on CUDA (float16 on older GPUs)",
    ] = "auto"
    analysis: Annotated[
        tuple[Annotated[str, one_of(*ANALYSES)], ...],
        many(len(ANALYSES)),
        f"what else to measure: {', '.join(ANALYSES)} (slow); at several budgets bounds alone",
    ] = ()
    reference: Annotated[
        bool,
        EXACT,
        "run the full cache beside the methods; without it, methods run one after another and the "
        "memory peak of each is measured",
    ] = True
    follow_ups: Annotated[
        tuple[LongText, ...],
        many(MAX_FOLLOW_UPS),
        "further questions to the same evicted caches; with context-only",
    ] = ()
    own_indices: Annotated[
        tuple[ExternalSelection, ...],
        By(_read_own),
        "kept positions of other code as more methods (docs/how-to/compare_with_kvpress.md)",
    ] = ()
    # See `protection.protected_ranges`.
    protect: Annotated[
        tuple[LongText, ...],
        many(MAX_PROTECTED),
        "texts of the prompt that no method may evict, or positions as tokens:12-39; counted in "
        "the budget",
    ] = ()
    # The points that are run, by their places among all; none for all.
    places: Annotated[
        tuple[Annotated[int, within(0, MAX_SWEEP_POINTS)], ...], many(MAX_SWEEP_POINTS)
    ] = ()

    @property
    def kind(self) -> Kind:
        """`sweep` of many samples, several budgets or alphas, or chosen points of these."""
        several = len(self._budgets) > 1 or len(self._alphas) > 1
        return "sweep" if self.name or self.places or several else "compare"

    @property
    def decodes_again(self) -> bool:
        """Whether the kept entries are decoded from more than once."""
        return bool(self.follow_ups or self.repeats.strip()) or "forced" in self.analysis

    def points(self) -> tuple[Point, ...]:
        """Each variant at each alpha and budget.

        The full cache comes first but in a comparison at one budget; of many samples budgets rise.

        Raises:
            ConfigError: no or a wrong variant, budget or alpha, or too many points.
        """
        return tuple(point for point, _ in self._parsed)

    @cached_property
    def baseline_point(self) -> Point:
        """The point that the others are compared with; ConfigError where the run has no such."""
        points = self._all_points()
        with about("baseline"):
            wanted = VariantSpec.parse(self.baseline, self.defaults).settings()
            found = next((point for point, spec in points if spec.settings() == wanted), None)
            if found is None:
                raise ConfigError(
                    f"The baseline {self.baseline!r} is no point of this run; take full, or one "
                    f"of its methods at one of its budgets, for example {points[-1][0].spec}."
                )
            if {point.variant for point, _ in points} <= {FULL, found.variant}:
                raise ConfigError("The baseline is the only method; add one to compare with it.")
        return found

    @cached_property
    def specs(self) -> tuple[VariantSpec, ...]:
        """The parsed variants of the points, then those of given positions; raises as `points`."""
        own = (each.spec() for each in self.own_indices)
        return (*(spec for _, spec in self._parsed), *own)

    def variant_specs(self) -> dict[str, VariantSpec]:
        """The parsed variants, no budget written in their SPEC, by their text in the points."""
        return {
            point.variant: replace(spec, given=tuple(key for key in spec.given if key != "budget"))
            for point, spec in self._parsed
        }

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed variants: a method's parts are not sent to another process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def of_sample(self, points: Collection[Point], **own: Any) -> "RunRequest":
        """The same for one of many samples with `own` fields, at these points, or at all."""
        known = {point: place for place, point in enumerate(self.points())}
        places = tuple(known[point] for point in points)
        made = replace(self, data={}, places=places, **own)
        vars(made)["_parsed"] = tuple(self._parsed[at] for at in places) or self._parsed
        return made

    def after(self, old: "RunRequest") -> "RunRequest":
        """The same in place of another one of its name that has results."""
        tolerances = dict.fromkeys((*old.earlier_tolerances, old.tolerance))
        baselines = dict.fromkeys((*old.earlier_baselines, old.baseline))
        own = {point.variant for point in self.points()}
        variants = dict.fromkeys((*old.earlier_variants, *(p.variant for p in old.points()[1:])))
        return replace(
            self,
            earlier_tolerances=tuple(each for each in tolerances if each != self.tolerance),
            earlier_variants=tuple(each for each in variants if each not in own),
            earlier_baselines=tuple(each for each in baselines if each != self.baseline),
        )

    def validate(self) -> tuple[VariantSpec, ...]:
        """Check all that needs no model: PromptError for a text, ConfigError for a setting."""
        for field_name, name, texts in (
            ("question", "question", (self.question,)),
            ("answer", "reference answer", (self.answer,)),
            ("answer_prefix", "beginning of the answer", (self.answer_prefix or "",)),
            ("follow_ups", "follow-up question", self.follow_ups),
            ("protect", "protected text", self.protect),
        ):
            with about(field_name):
                for text in texts:
                    check_text(name, text)
        with about("repeats"):
            Repeats.parse(self.repeats)
            if self.repeats.strip() and not self.max_new_tokens:
                raise ConfigError("Sampled texts need new tokens; raise max_new_tokens.")
        if not self.data:
            check_context(self.context)
        if not self.model.strip():
            with about("model"):
                raise ConfigError("Choose a model.")
        read(RunRequest, self.__getstate__(), "request")
        for name, sentence in self._misfits():
            with about(name):
                raise ConfigError(sentence)
        with about("protect"):
            self._check_protected()
        if self.name and self.baseline != FULL:
            _ = self.baseline_point  # raises
        return self.specs

    def check_budgets(self, compressed: int, question: int) -> None:
        """Refuse a budget that is too small for its prompt; see `VariantSpec.check_prompt`."""
        for _, spec in self._parsed:
            is_shared = spec.params.get("budget") in self._budgets
            with about("budget" if is_shared else "variants"):
                spec.check_prompt(compressed, question)

    # --- points -------------------------------------------------------------------------

    @cached_property
    def _budgets(self) -> tuple[str, ...]:
        """Each once, as a SPEC has it; of many samples rising and of one unit."""
        budgets = _distinct("budget", self.budgets)
        if not self.name:
            return budgets
        with about("budget"):
            parsed = sorted(map(Budget.parse, budgets), key=lambda each: each.amount)
            if not parsed:
                raise ConfigError("List at least one budget, for example 10%.")
            units = {budget.unit for budget in parsed}
            if len(units) > 1 or "mib" in units:
                raise ConfigError(
                    "The budgets of many samples are all in percent (10%) or all in tokens (128), "
                    "so that the smallest is known."
                )
        return tuple(map(str, parsed))

    @cached_property
    def _alphas(self) -> tuple[str, ...]:
        return _distinct("alpha", self.alphas)

    @cached_property
    def _parsed(self) -> tuple[tuple[Point, VariantSpec], ...]:
        """The points that are run, with their parsed variants."""
        with about("variants"):
            found = self._all_points()
        return tuple(found[at] for at in self.places if at < len(found)) if self.places else found

    def _all_points(self) -> tuple[tuple[Point, VariantSpec], ...]:
        found: dict[tuple[object, ...], tuple[int, Point, VariantSpec]] = {}
        is_sweep = self.kind == "sweep"
        for row, text in enumerate(self.variants):
            for spec in self._at_each_value(text):
                if is_sweep and not spec.method.evicts:
                    continue
                first = found.setdefault(spec.settings(), (row, self._point(text, spec), spec))
                if first[0] != row and (self.name or not is_sweep):
                    raise ConfigError(f"Method {text!r} is listed twice; change or remove one.")
                if len(found) >= MAX_SWEEP_POINTS:
                    raise ConfigError(
                        f"The run has over {MAX_SWEEP_POINTS} points; take fewer budgets, alphas "
                        "or methods."
                    )
        if is_sweep and not found:
            raise ConfigError("Choose at least one method that evicts, for example snapkv.")
        points = tuple((point, spec) for _, point, spec in found.values())
        return ((Point(FULL, None), VariantSpec.parse(FULL)), *points) if is_sweep else points

    def _at_each_value(self, text: str) -> Iterator[VariantSpec]:
        """A variant at each alpha and budget that it takes."""
        written = written_parameters(text)
        if self.name and "budget" in written:
            raise ConfigError(f"{text!r} sets a budget; leave it out and list it under budgets.")
        for alpha in self._alphas or ("",):
            for budget in self._budgets or ("",):
                values = {"alpha": alpha, "budget": budget}
                given = {name: value for name, value in values.items() if value}
                spec = VariantSpec.parse(text, {**self.defaults, **given})
                yield spec
                if "budget" in written or not spec.method.evicts:
                    break
            if "alpha" in written or "alpha" not in spec.params:
                return

    def _point(self, text: str, spec: VariantSpec) -> Point:
        if not spec.method.evicts:
            return Point(spec.spec, None)
        is_as_written = self.name and not self.alphas and not self.defaults
        variant = text.strip() if is_as_written else spec_without(spec.spec, "budget")
        return Point(variant, str(spec.budget))

    # --- checks -------------------------------------------------------------------------

    def _misfits(self) -> Iterator[tuple[str, str]]:
        """Fields that do not fit to the others, each with a sentence."""
        count, is_sweep = len(self.variants) + len(self.own_indices), self.kind == "sweep"
        labels = [each.label for each in self.own_indices]
        if not count:
            yield "variants", "Choose at least one method."
        if twice := [label for label in labels if labels.count(label) > 1]:
            yield "variants", f"Method 'own:label={twice[0]}' is listed twice; remove one."
        if is_sweep:
            yield from self._misfits_of_a_sweep()
        elif count > MAX_VARIANTS:
            yield "variants", f"{count} methods are too many; one run takes up to {MAX_VARIANTS}."
        least = 0 if is_sweep and not self.name else 1
        if not least <= self.max_new_tokens <= MAX_NEW_TOKENS:
            yield "max_new_tokens", f"New tokens must be from {least} to {MAX_NEW_TOKENS}."
        if self.follow_ups and self.scenario != "context-only":
            yield (
                "follow_ups",
                "Follow-up questions need the scenario context-only, where the cache does not "
                "depend on the question; choose that or remove them.",
            )
        yield from self._misfits_of_prefills()
        for name, what in (("follow_ups", "follow-up question"), ("protect", "protected text")):
            if not all(text.strip() for text in getattr(self, name)):
                yield name, f"A {what} is empty; write it or remove it."

    def _misfits_of_prefills(self) -> Iterator[tuple[str, str]]:
        """Settings without the one prefill for all, or the full cache, that they need."""
        if self.time and not (self.reference and all(not spec.block for spec in self.specs)):
            yield "time", "Timing takes one prefill for all: keep the full cache, and no blocks."
        if self.reference:
            return
        if self.kind == "sweep":
            yield (
                "reference",
                "Several budgets, alphas or samples need the full cache; keep it.",
            )
        if self.analysis:
            yield "analysis", "Diagnostics compare with the full cache; keep it, or leave them out."

    def _misfits_of_a_sweep(self) -> Iterator[tuple[str, str]]:
        one = "one budget and one alpha"
        if self.own_indices:
            yield "variants", f"Kept positions of your own have one budget; give {one}."
        if others := " and ".join(sorted({*self.analysis} - {"bounds"})):
            at_several = "at several, take bounds alone."
            yield "analysis", f"The analysis {others} needs {one}; {at_several}"
        if self.follow_ups:
            sentence = f"Follow-up questions need {one}; give one of each, or remove the questions."
            yield "follow_ups", sentence

    def _check_protected(self) -> None:
        """Refuse passages of which the text alone says that they are none."""
        # A template may add words of its own; positions protect them.
        question = self.question if self.scenario == "regular" else ""
        joint = "\n\n" if self.answer_prefix is None else ""
        prompt = " ".join(f"{self.context}{joint}{question}".casefold().split())
        missing = []
        for text in map(str.strip, self.protect):
            match = TOKEN_RANGE.fullmatch(text)
            if match is None and " ".join(text.casefold().split()) not in prompt:
                missing.append(text)
            if match is not None and int(match[1]) > int(match[2]):
                raise PromptError(f"{text!r} ends before it begins; give the first position first.")
        if missing:
            raise no_passage(*missing)


# What is given of one sample, and the fields that hold several values of an argument.
LISTS = {"budget": "budgets", "alpha": "alphas"}
_FIRST = ("context", "question", "variants", *LISTS)
_NOT_GIVEN = OF_MANY | {"places", "defaults", *LISTS.values(), *_FIRST}
ARGUMENTS = (*_FIRST, *(each.name for each in fields(RunRequest) if each.name not in _NOT_GIVEN))


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """A request about a run, which needs the run's model."""

    run: RunRequest

    @property
    def model(self) -> str:
        return self.run.model

    @property
    def device(self) -> str:
        return self.run.device

    @property
    def dtype(self) -> str:
        return self.run.dtype


def _distinct(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Each value of a parameter once, as a SPEC has it; ConfigError for a wrong one."""
    with about(name):
        values = [PARAMETERS[name].parse(text) for text in texts]
    return tuple(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))


def meaning(name: str) -> str:
    """The meaning of a field of a request, or of a parameter that all its variants share."""
    if name in PARAMETERS:
        return PARAMETERS[name].help
    hint = get_type_hints(RunRequest, include_extras=True)[name]
    return next(each for each in hint.__metadata__ if isinstance(each, str))


def check_context(text: str) -> None:
    """Refuse a context that is empty, or that `check_text` refuses."""
    with about("context"):
        check_text("context", text)
        if not text.strip():
            raise PromptError("The text is empty; paste one or open a file.")


def no_passage(*texts: str) -> PromptError:
    """The error for protected texts that do not occur."""
    shown = " and ".join(repr(each if len(each) <= 60 else f"{each[:57]}...") for each in texts)
    noun, verb = ("text", "does") if len(texts) == 1 else ("texts", "do")
    return PromptError(
        f"The protected {noun} {shown} {verb} not occur in the text; copy the words from there, "
        "or give positions (tokens:12-39)."
    )


def check_text(name: str, text: str) -> None:
    """Refuse text that is too long, or not valid Unicode (a lone surrogate): PromptError."""
    if len(text) > MAX_TEXT_CHARS:
        raise PromptError(
            f"The {name} has {len(text):,} characters; the limit is {MAX_TEXT_CHARS:,}. Shorten it."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The {name} has an invalid character (lone surrogate) at position {error.start:,}; "
            "remove it and try again."
        ) from None
