"""The request of a run, checked as far as it can be without a model. No torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, get_type_hints

from ckv_core.base.checked import EXACT, By, Plain, chars, many, one_of, read, within
from ckv_core.errors import ConfigError, PromptError, about
from ckv_core.methods import PARAMETERS
from ckv_core.records.external_selection import (
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    ExternalSelection,
    own_from_json,
)
from ckv_core.records.variants import VariantSpec, written_parameters

Scenario = Literal["regular", "context-only"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
# A sweep is a run of many variants that only measures: no kept sets, usually no generation.
Kind = Literal["compare", "sweep"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# bounds: quantities of heads and layers, with oracles; forced: every method on the full cache's
# own continuation; greedy: the slow oracle. See metrics.py.
Analysis = Literal["bounds", "forced", "greedy"]
ANALYSES: tuple[Analysis, ...] = get_args(Analysis)
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{DEFAULT_MODEL}"
MAX_SWEEP_POINTS = 256
MAX_NEW_TOKENS = 1024
MAX_FOLLOW_UPS = 8
MAX_PROTECTED = 12  # places of a prompt: their positions fit into one parameter of a record
LongText = Annotated[str, chars(MAX_TEXT_CHARS)]
Flag = Annotated[bool, EXACT]
TOKEN_RANGE = re.compile(r"tokens:(\d{1,9})-(\d{1,9})", re.ASCII)  # positions that are protected


def _read_own(value: Any, _: Plain) -> tuple[ExternalSelection, ...]:
    """Documents in a request that comes from outside; selections in one that is made here."""
    return value if isinstance(value, tuple) else own_from_json(value, "own_indices")


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One comparison as the user wants it; plain values, safe to store and to send.

    A field is one line here: its type, its bounds, and what it means, which `meaning` reads. The
    command line, the endpoints, the database and bundles take it from here.
    """

    context: Annotated[LongText, "the long text whose cache entries are evicted"]
    question: Annotated[LongText, "question about the text; empty for none"] = ""
    # The compressed part of the prompt: context and question, or the context alone.
    scenario: Annotated[Scenario, "what is compressed: regular takes the question too"] = "regular"
    model: Annotated[str, chars(500), "name, Hugging Face id or folder"] = DEFAULT_MODEL
    variants: Annotated[
        tuple[Annotated[str, chars(1000)], ...],
        many(MAX_SWEEP_POINTS),
        "methods and their settings: METHOD[+critical|+critical_auto][:key=value,...]",
    ] = ("full",)
    # Run-wide parameter values as text, for keys that a SPEC leaves out.
    defaults: Annotated[Mapping[str, Annotated[str, chars(200)]], many(64)] = field(
        default_factory=dict
    )
    max_new_tokens: Annotated[
        int,
        within(0, MAX_NEW_TOKENS),
        f"tokens to generate per variant, up to {MAX_NEW_TOKENS}; at several budgets 0 only "
        "measures",
    ] = 64
    answer: Annotated[LongText, "expected answer to look for in the output"] = ""
    ignore_eos: Annotated[bool, EXACT, "generate past the end-of-sequence token"] = False
    device: Annotated[str, one_of(*DEVICES), ", ".join(DEVICES)] = "auto"
    dtype: Annotated[
        str,
        one_of(*DTYPES),
        f"{', '.join(DTYPES)}; auto: float32 on CPU, bfloat16 on CUDA (float16 on older GPUs)",
    ] = "auto"
    # Compare, or sweep: many variants, no kept sets; max_new_tokens may be 0.
    kind: Kind = "compare"
    analysis: Annotated[
        tuple[Annotated[str, one_of(*ANALYSES)], ...],
        many(len(ANALYSES)),
        f"also measure, of {', '.join(ANALYSES)} (slow); at several budgets bounds alone",
    ] = ()
    follow_ups: Annotated[
        tuple[LongText, ...],
        many(MAX_FOLLOW_UPS),
        "further questions to the same evicted caches; with context-only",
    ] = ()
    own_indices: Annotated[
        tuple[ExternalSelection, ...],
        By(_read_own),
        "kept positions of other code as more variants (docs/external_selection.md)",
    ] = ()
    # See `protection.protected_ranges`.
    protect: Annotated[
        tuple[LongText, ...],
        many(MAX_PROTECTED),
        "texts of the prompt that no method may evict, or positions as tokens:12-39; counted in "
        "the budget",
    ] = ()

    @cached_property
    def specs(self) -> tuple[VariantSpec, ...]:
        """The parsed variants, those of given positions last; ConfigError for a wrong one."""
        seen: dict[tuple[object, ...], str] = {}
        with about("variants"):
            specs = [VariantSpec.parse(text, self.defaults) for text in self.variants]
            specs += [own.spec() for own in self.own_indices]
            for spec in specs:
                key = spec.settings()
                if key in seen:
                    raise ConfigError(
                        f"Variant {spec.spec!r} is listed twice; change or remove one."
                    )
                seen[key] = spec.spec
        return tuple(specs)

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed variants: a method's parts are not sent to another process."""
        return {key: value for key, value in vars(self).items() if key != "specs"}

    def validate(self) -> tuple[VariantSpec, ...]:
        """Check all that needs no model: PromptError for a text, ConfigError for a setting."""
        for field_name, name, texts in (
            ("question", "question", (self.question,)),
            ("answer", "reference answer", (self.answer,)),
            ("follow_ups", "follow-up question", self.follow_ups),
            ("protect", "protected text", self.protect),
        ):
            with about(field_name):
                for text in texts:
                    check_text(name, text)
        check_context(self.context)
        if not self.model.strip():
            with about("model"):
                raise ConfigError("Choose a model.")
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        read(RunRequest, own, "request")
        self._check_counts()
        with about("protect"):
            self._check_protected()
        with about("follow_ups"):
            self._check_extras()
        return self.specs

    def check_budgets(self, compressed: int, question: int) -> None:
        """Refuse a budget that is too small for its prompt; see `VariantSpec.check_prompt`."""
        for text, spec in zip(self.variants, self.specs, strict=False):
            is_own = self.kind == "compare" and "budget" in written_parameters(text)
            with about("variants" if is_own else "budget"):
                spec.check_prompt(compressed, question)

    def _check_counts(self) -> None:
        count, is_sweep = len(self.variants) + len(self.own_indices), self.kind == "sweep"
        limit = MAX_SWEEP_POINTS if is_sweep else MAX_VARIANTS
        with about("variants"):
            if not count:
                raise ConfigError("Choose at least one variant.")
            if is_sweep and self.own_indices:
                raise ConfigError(
                    "Kept positions of your own have one budget; give one budget and one alpha."
                )
            if count > limit:
                raise ConfigError(
                    f"{count} variants are too many; one {'sweep' if is_sweep else 'run'} "
                    f"takes up to {limit}."
                )
        least = 0 if is_sweep else 1
        with about("max_new_tokens"):
            if not least <= self.max_new_tokens <= MAX_NEW_TOKENS:
                raise ConfigError(f"New tokens must be from {least} to {MAX_NEW_TOKENS}.")

    def _check_protected(self) -> None:
        """Refuse passages of which the text alone says that they are none."""
        if not all(text.strip() for text in self.protect):
            raise ConfigError("A protected text is empty; write it or remove it.")
        if not self.protect:
            return
        # A template may add words of its own; positions protect them.
        question = self.question if self.scenario == "regular" else ""
        prompt = " ".join(f"{self.context}\n\n{question}".casefold().split())
        for text in map(str.strip, self.protect):
            match = TOKEN_RANGE.fullmatch(text)
            if match is None and " ".join(text.casefold().split()) not in prompt:
                raise no_passage(text)
            if match is not None and int(match[1]) > int(match[2]):
                raise PromptError(f"{text!r} ends before it begins; give the first position first.")

    def _check_extras(self) -> None:
        if not self.follow_ups:
            return
        if self.kind == "sweep":
            raise ConfigError(
                "Follow-up questions need one budget and one alpha; give one of each, or remove "
                "the questions."
            )
        if self.scenario != "context-only":
            raise ConfigError(
                "Follow-up questions need the scenario context-only, where the cache does not "
                "depend on the question; choose that or remove them."
            )
        if not all(text.strip() for text in self.follow_ups):
            raise ConfigError("A follow-up question is empty; write it or remove it.")


def meaning(name: str) -> str:
    """What a field of a request means, or a parameter that all its variants share."""
    if name in PARAMETERS:
        return PARAMETERS[name].help
    hint = get_type_hints(RunRequest, include_extras=True)[name]
    return next(each for each in hint.__metadata__ if isinstance(each, str))


def check_context(text: str) -> None:
    """Refuse a context that is empty, or that `check_text` refuses."""
    with about("context"):
        check_text("context", text)
        if not text.strip():
            raise PromptError("The context is empty; paste or upload a text first.")


def no_passage(text: str) -> PromptError:
    """What to raise for a protected text that does not occur."""
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return PromptError(
        f"The protected text {shown!r} does not occur in the compressed prompt; copy the words "
        "from the context, or give positions (tokens:12-39)."
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
