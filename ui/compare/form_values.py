"""What the form of a run holds, and its way to a request and back. Pure: no Gradio."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.experiment.ablation import ablation
from ckv_core.experiment.data import COLUMNS
from ckv_core.experiment.sentences import counted
from ckv_core.experiment.tasks import TASKS
from ckv_core.methods import PARAMETERS
from ckv_core.methods.parameters import DEFAULT_BUDGET
from ckv_core.methods.parts.critical import CRITICAL
from ckv_core.records.agreement import answer_found
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.grid import cost, duration
from ckv_core.records.run_request import (
    ANALYSES,
    DEFAULT_MODEL,
    DEFAULT_TOLERANCE,
    FULL,
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_TOLERANCE,
    OF_MANY,
    OF_ONE,
    RunRequest,
)
from ckv_core.records.variants import (
    VariantSpec,
    method_of,
    selector_of,
    spec_without,
    written_parameters,
)
from storage.repository import is_slug
from ui.compare.offers import FIRST_CHIPS

ALPHA = str(PARAMETERS["alpha"].default)
CHARS_PER_TOKEN = 4
ANSWER_NOT_IN_TEXT = " The text does not hold the expected answer."
MOST_RUNS = 100  # in an address


@dataclass(frozen=True, slots=True, kw_only=True)
class FormValues:
    """The form's values as the reader sees them, in the order of the controls.

    Those that a request has under the same name mean the same; several of a kind stand on lines.

    Attributes:
        mode: `text` for one text, `many` for many samples.
        source: where many samples come from: `pasted`, whose text is in `data`, `task`, `lm_eval`,
            a task of that package, or `runs`, the texts of stored runs.
        columns: `ours=theirs`, with commas, where names in the file differ.
        length, samples: tokens of the tasks' prompts, several with commas; how many of each task at
            each length.
        variants: SPECs beside the full cache, each with its own parameters.
        budget, alpha: one or several, with commas, for every variant without its own.
    """

    mode: str = "text"
    source: str = "pasted"
    name: str = ""
    data: str = ""
    columns: str = ""
    task: tuple[str, ...] = ("niah_multikey_1",)
    lm_eval: str = ""
    runs: str = ""
    length: str = "1024"
    samples: str = "50"
    sample_seed: str = "0"
    metric: str = "string_match"
    tolerance: str = f"{DEFAULT_TOLERANCE:g}"
    baseline: str = FULL
    context: str = ""
    question: str = ""
    answer: str = ""
    answer_prefix: str = ""
    scenario: str = "regular"
    protect: str = ""
    model: str = DEFAULT_MODEL
    device: str = "auto"
    variants: tuple[str, ...] = FIRST_CHIPS
    budget: str = "20%"
    alpha: str = ALPHA
    max_new_tokens: int = 64
    analysis: tuple[str, ...] = ANALYSES
    follow_ups: str = ""
    dtype: str = "auto"
    repeats: str = ""
    ignore_eos: bool = False
    time: bool = False
    reference: bool = True

    @classmethod
    def from_controls(cls, values: Sequence[object]) -> "FormValues":
        """Of all controls, in order; a client may send anything, which is a ConfigError."""
        given: dict[str, Any] = dict(zip(CONTROL_NAMES, values, strict=True))
        for name in (f.name for f in fields(cls) if f.type is str):
            with about(name):
                given[name] = read_text(given[name])
        for name in ("analysis", "task"):
            if not isinstance(given[name], (list, tuple)):
                raise ConfigError(f"The form sent no list of the field {name}; reload the page.")
        return cls(
            **given
            | {
                "variants": read_specs(given["variants"]),
                "max_new_tokens": read_new_tokens(given["max_new_tokens"]),
                "analysis": _offered_analyses(given["analysis"]),
                "task": tuple(name for name in TASKS if name in given["task"]),
            }
            | {f.name: bool(given[f.name]) for f in fields(cls) if f.type is bool}
        )

    @classmethod
    def from_request(cls, request: RunRequest) -> "FormValues":
        """The form that gives this run of one text again, but for what only other ways ask for."""
        defaults = dict(request.defaults)
        budgets = request.budgets or (defaults.pop("budget", DEFAULT_BUDGET),)
        alphas = request.alphas or tuple(filter(None, [defaults.pop("alpha", "")]))
        same = {name: getattr(request, name) for name in SHARED - OF_MANY - {"variants"}}
        same |= {name: "\n".join(same[name]) for name in LINES}
        same["answer_prefix"] = request.answer_prefix or ""
        same["analysis"] = _offered_analyses(request.analysis)
        chips = (own_spec(spec, defaults, has_alpha=bool(alphas)) for spec in request.variants)
        return cls(
            **same,
            variants=tuple(spec for spec in chips if spec != FULL or not request.reference),
            budget=", ".join(budgets),
            alpha=", ".join(alphas) or ALPHA,
        )

    def controls(self) -> list[object]:
        """One value per control, in the order of `CONTROL_NAMES`."""
        values = [getattr(self, name) for name in CONTROL_NAMES]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    @property
    def alphas(self) -> tuple[str, ...]:
        """None where the field holds the default alone, or no variant takes one."""
        alphas = read_list(self.alpha) or ("",)
        is_read = any(selector_of(spec) is CRITICAL for spec in self.variants)
        return alphas if is_read and alphas != (ALPHA,) else ()

    @property
    def specs(self) -> tuple[str, ...]:
        """The full cache, which stands first in every run that has a reference, and the chips."""
        if self.mode == "text" and not self.reference:
            return self.variants
        is_there = any(method_of(spec) == FULL for spec in self.variants)
        return self.variants if is_there else (FULL, *self.variants)

    def request(self) -> RunRequest:
        """The run of one text or many samples; still to be validated.

        Raises:
            ConfigError: what says where samples come from is wrong.
        """
        left_out = OF_MANY if self.mode == "text" else OF_ONE
        own = {name: getattr(self, name) for name in SHARED - left_out}
        own |= {name: read(own[name]) for name, read in READ.items() if name in own}
        if "data" in own:
            own["data"] = _data(self)
        budgets, alphas = read_list(self.budget), self.alphas
        if "analysis" in own and max(len(budgets), len(alphas)) > 1:
            own["analysis"] = tuple(set(self.analysis) & {"bounds"})
        if "analysis" in own and not self.reference:  # they compare with the full cache
            own["analysis"] = ()
        return RunRequest(
            **own | {"variants": self.specs, "alphas": alphas},
            budgets=budgets or ("",),  # which is refused
        )


# Fields of a request that have a control.
SHARED = {f.name for f in fields(FormValues)} & {f.name for f in fields(RunRequest)}
CONTROL_NAMES: tuple[str, ...] = tuple(f.name for f in fields(FormValues))


def own_spec(spec: str, defaults: Mapping[str, str], *, has_alpha: bool) -> str:
    """The SPEC with the run's values for all variants written into it.

    So is an alpha that a preset gives it, where the run has none. One that this version cannot
    read stays as it is.
    """
    whole = {} if "budget" in written_parameters(spec) else {"budget": "100%"}
    try:
        parsed = VariantSpec.parse(spec, {**defaults, **whole})
        alpha = str(parsed.params.get("alpha", ALPHA))
        if not has_alpha and alpha != ALPHA and "alpha" not in parsed.given:
            parsed = VariantSpec.parse(spec, {**defaults, **whole, "alpha": alpha})
        elif not defaults:
            return spec.strip()
    except CkvError:
        return spec.strip()
    return spec_without(parsed.spec, *whole)


def with_ablation(base: str, chosen: Sequence[str]) -> list[str]:
    """The SPECs that are chosen, and the steps of a base's ablation that are not among them."""
    steps = {step.variant.settings(): step.spec for step in ablation(base)}
    with about("variants"):
        known = {VariantSpec.parse(spec).settings() for spec in chosen}
    return [*chosen, *(spec for settings, spec in steps.items() if settings not in known)]


def describe_variants(form: FormValues) -> str:
    """How many methods or points would run beside the full cache, and how long.

    Raises:
        ConfigError: they are wrong.
    """
    request = form.request()
    points = request.points()  # also refuses a wrong one
    count = len(points)
    if request.kind == "compare" and (more := count - MAX_VARIANTS) > 0:
        with about("variants"):
            raise ConfigError(
                f"{count} methods with the full cache are too many; one run takes up to "
                f"{MAX_VARIANTS}: take out {more}."
            )
    evicting = sum(method_of(point.variant) != FULL for point in points)
    noun = "method" if request.kind == "compare" else "point"
    what = counted(evicting, noun) if evicting else "The full cache alone"
    if not request.context.strip():
        return f"{what}. Add a text to see how long it takes."
    tokens = max(1, (len(request.context) + len(request.question)) // CHARS_PER_TOKEN)
    found = cost(request, [(tokens, count)], is_counted=False)
    other = "" if request.model == DEFAULT_MODEL else " with the default model"
    takes = f"{what}, about {duration(found.seconds)}{other} on two CPU cores."
    is_missing = answer_found(request.context, request.answer) is False
    return takes + ANSWER_NOT_IN_TEXT * is_missing


def describe_advanced(form: FormValues) -> str:
    """What the drawer of further settings holds, in a line."""
    settings = {
        "protected text": form.protect,
        "beginning of the answer given": form.answer_prefix,
        "follow-up questions": form.follow_ups,
        "sampled texts": form.repeats.strip(),
        "past the end of text": form.ignore_eos,
        "each method timed": form.time,
        "without the full cache": not form.reference,
        form.dtype: form.dtype != "auto",
        form.device: form.device != "auto",
    }
    count = f"{form.max_new_tokens} new token{'' if form.max_new_tokens == 1 else 's'}"
    set_ones = [words for words, is_set in settings.items() if is_set and form.mode == "text"]
    return ", ".join([f"{form.scenario} scenario", count, *set_ones])


def _offered_analyses(names: Sequence[object]) -> tuple[str, ...]:
    return tuple(name for name in ANALYSES if name in names)


def read_specs(chosen: object) -> tuple[str, ...]:
    """The chips' SPECs; ConfigError for what is no list of texts."""
    if not isinstance(chosen, (list, tuple)) or not all(isinstance(spec, str) for spec in chosen):
        with about("variants"):
            raise ConfigError("The form sent no list of methods; reload the page.")
    return tuple(chosen)


def read_lines(text: str) -> tuple[str, ...]:
    """The lines that are not blank."""
    return tuple(filter(None, map(str.strip, text.splitlines())))


def read_list(text: str) -> tuple[str, ...]:
    """The parts of a list such as `64, 128, 10%`."""
    return read_lines(re.sub("[,;]", "\n", text))


def read_text(value: object) -> str:
    """The text of a field, empty for none; ConfigError for something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError("The form sent something that is not text; reload the page.")
    return value


def read_new_tokens(value: object) -> int:
    """The number of tokens to generate; ConfigError for anything else."""
    if isinstance(value, (int, float)) and 1 <= value <= MAX_NEW_TOKENS and value == int(value):
        return int(value)
    with about("max_new_tokens"):
        raise ConfigError(f"New tokens must be a whole number from 1 to {MAX_NEW_TOKENS}.")


# --- where many samples come from -----------------------------------------------------------


def _data(form: FormValues) -> dict[str, Any]:
    match form.source:
        case "pasted":
            if not form.data.strip():
                with about("data"):
                    raise ConfigError("Paste the samples or open their file.")
            columns = {"columns": mapping(form)} if form.columns.strip() else {}
            return {"file": file_name(form)} | columns
        case "runs":
            return {"runs": read_run_slugs(form.runs)}
        case "lm_eval":
            return {"lm_eval": form.lm_eval, "samples": _whole("samples", form.samples, least=1)}
        case "task":
            lengths = [_whole("length", text, least=1) for text in read_list(form.length)]
            return {
                "task": form.task[0] if len(form.task) == 1 else list(form.task),
                "length": lengths[0] if len(lengths) == 1 else lengths,
                "samples": _whole("samples", form.samples, least=1),
                "seed": _whole("sample_seed", form.sample_seed),
            }
    with about("source"):
        raise ConfigError("Choose where the samples come from.")


def read_run_slugs(text: str) -> list[str]:
    """Names of runs, each once.

    Raises:
        ConfigError: one cannot name a run, there are too many, or none.
    """
    slugs = list(dict.fromkeys(read_list(text)))
    if not 0 < len(slugs) <= MOST_RUNS or not all(map(is_slug, slugs)):
        with about("runs"):
            raise ConfigError(
                f"Name 1 to {MOST_RUNS} runs, such as 4f0c1a2b3c4d, the end of a run's address. "
                "A YAML file takes more (data.runs)."
            )
    return slugs


def file_name(form: FormValues) -> str:
    """What the pasted text would be called: its ending says how it is read."""
    return "samples.jsonl" if form.data.lstrip()[:1] in ("{", "") else "samples.csv"


def mapping(form: FormValues) -> dict[str, str]:
    """Our column -> the file's.

    Raises:
        ConfigError: a part does not read `ours=theirs`.
    """
    columns = {}
    for part in read_list(form.columns):
        own, equals, theirs = (text.strip() for text in part.partition("="))
        if not (equals and theirs) or own not in COLUMNS:
            with about("columns"):
                raise ConfigError(
                    f"{part[:60]!r} must read NAME=COLUMN with a NAME of {', '.join(COLUMNS)}, "
                    "for example answers=label."
                )
        columns[own] = theirs
    return columns


def _whole(name: str, text: str, least: int = 0) -> int:
    if not text.strip().isdecimal() or len(text.strip()) > 9 or int(text) < least:
        with about(name):
            label = name.removeprefix("sample_").capitalize()
            raise ConfigError(
                f"{label} must be a whole number from {least}; got {text.strip()[:40]!r}."
            )
    return int(text)


def _follow_ups(text: str) -> tuple[str, ...]:
    lines = read_lines(text)
    if len(lines) > MAX_FOLLOW_UPS:
        with about("follow_ups"):
            raise ConfigError(
                f"Give up to {MAX_FOLLOW_UPS} follow-up questions, one a line; there are "
                f"{len(lines)}."
            )
    return lines


def _tolerance(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= MAX_TOLERANCE:
            return float(text)
    with about("tolerance"):
        raise ConfigError(
            f"Tolerance must be a number of points from 0 to {MAX_TOLERANCE:g}; "
            f"got {text.strip()[:40]!r}."
        )


LINES = ("protect", "follow_ups")  # one a line
# How the text of a control becomes a field of the request, where that is another value.
READ: dict[str, Callable[[str], Any]] = {
    "model": str.strip,
    "name": str.strip,
    "baseline": lambda text: text.strip() or FULL,
    "answer_prefix": lambda text: text or None,
    "tolerance": _tolerance,
    "protect": read_lines,
    "follow_ups": _follow_ups,
}
