"""What the form of a run holds, and its way to a request and back. Pure: no Gradio."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.experiment.ablation import ablation
from ckv_core.experiment.data import COLUMNS
from ckv_core.methods import PARAMETERS
from ckv_core.methods.parameters import DEFAULT_BUDGET, Parameter
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.grid import sweep_cost
from ckv_core.records.run_request import (
    DEFAULT_MODEL,
    DEFAULT_TOLERANCE,
    MAX_NEW_TOKENS,
    OF_MANY,
    OF_ONE,
    RunRequest,
)
from ckv_core.records.variants import VariantSpec
from storage.repository import is_slug
from ui.charts.layout import display_names
from ui.compare.offers import DEFAULT_VARIANTS, offered, shown_default, variant_choices

# Not among the advanced parameters: these have a control of their own.
MAIN_PARAMETERS = ("budget", "alpha")
ADVANCED_PARAMETERS: tuple[Parameter, ...] = tuple(
    k for k in PARAMETERS.values() if k.name not in MAIN_PARAMETERS
)
OFFERED_ANALYSES = ("bounds", "forced")  # the greedy oracle takes minutes a variant
CHARS_PER_TOKEN = 4
MOST_RUNS = 100  # in an address


@dataclass(frozen=True, slots=True, kw_only=True)
class FormValues:
    """The form's values as the reader sees them, in the order of the controls.

    Those that a request has under the same name mean the same; several of a kind stand on lines.

    Attributes:
        mode: `text` for one text, `many` for many samples.
        source: where many samples come from: `file`, whose text is in `data`, `task`, `lm_eval`, a
            task of that package, or `runs`, the texts of stored runs.
        columns: `ours=theirs`, with commas, where names in the file differ.
        length, samples: tokens of a task's prompts, several with commas; how many at each length.
        variants: SPECs ticked in the list.
        budget, alpha: one or several, with commas, for every variant without its own.
        more_variants: one SPEC per line.
        parameters: text of each advanced parameter; empty for its default.
    """

    mode: str = "text"
    source: str = "file"
    name: str = ""
    data: str = ""
    columns: str = ""
    task: str = "niah_multikey_1"
    lm_eval: str = ""
    runs: str = ""
    length: str = "1024"
    samples: str = "50"
    sample_seed: str = "0"
    metric: str = "string_match"
    tolerance: str = f"{DEFAULT_TOLERANCE:g}"
    context: str = ""
    question: str = ""
    answer: str = ""
    scenario: str = "regular"
    protect: str = ""
    model: str = DEFAULT_MODEL
    device: str = "auto"
    variants: tuple[str, ...] = DEFAULT_VARIANTS
    budget: str = DEFAULT_BUDGET
    alpha: str = "0.25"
    max_new_tokens: int = 64
    more_variants: str = ""
    analysis: tuple[str, ...] = OFFERED_ANALYSES
    follow_ups: str = ""
    dtype: str = "auto"
    ignore_eos: bool = False
    parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_controls(cls, values: Sequence[object]) -> "FormValues":
        """Of all controls, in order; a client may send anything, which is a ConfigError."""
        given: dict[str, Any] = dict(zip(CONTROL_NAMES, values, strict=True))
        for name in (f.name for f in fields(cls) if f.type is str):
            with about(name):
                given[name] = read_text(given[name])
        parameters = {k.name: read_text(given.pop(k.name)).strip() for k in ADVANCED_PARAMETERS}
        if not isinstance(given["analysis"], (list, tuple)):
            raise ConfigError("The form sent no list of analyses; reload the page.")
        return cls(
            **given
            | {
                "variants": ticked_specs(given["variants"]),
                "max_new_tokens": read_new_tokens(given["max_new_tokens"]),
                "analysis": _offered_analyses(given["analysis"]),
            }
            | {f.name: bool(given[f.name]) for f in fields(cls) if f.type is bool},
            parameters=parameters,
        )

    @classmethod
    def from_request(cls, request: RunRequest) -> "FormValues":
        """The form that gives this run of one text again, but for what only other ways ask for."""
        defaults = dict(request.defaults)
        ticked = {spec: offered(spec, defaults) for spec in request.variants}
        alpha = shown_default(PARAMETERS["alpha"], defaults.get("preset", ""))
        same = {name: getattr(request, name) for name in SHARED - OF_MANY - {"variants"}}
        same |= {name: "\n".join(same[name]) for name in LINES}
        same["analysis"] = _offered_analyses(request.analysis)
        return cls(
            **same,
            variants=tuple(filter(None, ticked.values())),
            budget=", ".join(request.budgets) or DEFAULT_BUDGET,
            alpha=", ".join(request.alphas) or str(alpha),
            more_variants="\n".join(spec for spec, choice in ticked.items() if not choice),
            parameters={k.name: defaults.get(k.name, "") for k in ADVANCED_PARAMETERS},
        )

    def controls(self) -> list[object]:
        """One value per control, in the order of `CONTROL_NAMES`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {
            k.name: self.parameters.get(k.name, "") for k in ADVANCED_PARAMETERS
        }
        values |= {"variants": list(self.variants), "analysis": list(self.analysis)}
        return [values[name] for name in CONTROL_NAMES]

    @property
    def defaults(self) -> dict[str, str]:
        """Values of the parameters that were filled in, for every variant."""
        return {name: text for name, text in self.parameters.items() if text}

    @property
    def alphas(self) -> tuple[str, ...]:
        """None where the field holds the default alone."""
        default = shown_default(PARAMETERS["alpha"], self.parameters.get("preset", ""))
        alphas = read_list(self.alpha) or ("",)
        return () if alphas == (str(default),) else alphas

    @property
    def specs(self) -> tuple[str, ...]:
        """SPECs of the list and of the lines; ConfigError for a line that is wrong."""
        parsed_lines(self.more_variants)
        return (*self.variants, *read_lines(self.more_variants))

    def request(self) -> RunRequest:
        """The run of one text or many samples; still to be validated.

        Raises:
            ConfigError: a line of variants, or what says where samples come from, is wrong.
        """
        left_out = OF_MANY if self.mode == "text" else OF_ONE
        own = {name: getattr(self, name) for name in SHARED - left_out}
        own |= {name: read(own[name]) for name, read in READ.items() if name in own}
        if "data" in own:
            own["data"] = _data(self)
        budgets, alphas = read_list(self.budget), self.alphas
        if "analysis" in own and max(len(budgets), len(alphas)) > 1:
            own["analysis"] = tuple(set(self.analysis) & {"bounds"})
        return RunRequest(
            **own | {"variants": self.specs, "alphas": alphas, "defaults": self.defaults},
            budgets=budgets or ("",),  # which is refused
        )


# Fields of a request that have a control.
SHARED = {f.name for f in fields(FormValues)} & {f.name for f in fields(RunRequest)}
CONTROL_NAMES: tuple[str, ...] = (
    *(f.name for f in fields(FormValues) if f.name != "parameters"),
    *(k.name for k in ADVANCED_PARAMETERS),
)


def with_ablation(base: str, ticked: Sequence[str], lines: str) -> str:
    """The lines of "More variants", and the steps over a base that are not there or ticked."""
    typed = lines.rstrip("\n").splitlines()
    steps = {step.variant.settings(): step.spec for step in ablation(base)}
    known = {spec.settings() for spec in parsed_lines("\n".join([*ticked, *typed]))}
    missing = [spec for settings, spec in steps.items() if settings not in known]
    return "\n".join([*typed, *missing])


def describe_variants(form: FormValues, most: int = MAX_VARIANTS) -> str:
    """One line that names the variants that would run; ConfigError if they are wrong."""
    request = form.request()
    # A lone `full` takes none of them, so a wrong one would pass unseen.
    for name, text in request.defaults.items():
        with about(name):
            PARAMETERS[name].parse(text)
    if request.kind == "sweep":
        characters = len(request.context) + len(request.question)
        if not request.context.strip():
            return f"{len(request.points())} points. Paste a context to see what they cost."
        return sweep_cost(request, max(1, characters // CHARS_PER_TOKEN), is_counted=False).text
    specs = request.specs
    with about("variants"):
        if not specs:
            raise ConfigError("Choose at least one variant.")
        if (more := len(specs) - most) > 0:
            raise ConfigError(
                f"{len(specs)} variants are too many; one run takes up to {most}: take out {more}."
            )
    names = display_names(specs, escaped=False)
    count = "1 variant" if len(names) == 1 else f"{len(names)} variants"
    return f"{count}: {', '.join(names)}."


def _offered_analyses(names: Sequence[object]) -> tuple[str, ...]:
    return tuple(name for name in OFFERED_ANALYSES if name in names)


def parsed_lines(text: str) -> list[VariantSpec]:
    """The variants of the lines; ConfigError with the number of the line that is wrong."""
    parsed = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            parsed.append(VariantSpec.parse(line))
        except CkvError as error:
            with about("more_variants"):
                raise ConfigError(f"More variants, line {number}: {error}") from error
    return parsed


def ticked_specs(ticked: object) -> tuple[str, ...]:
    """The SPECs of the list that are ticked, in its order, and then those of a run beside it.

    ConfigError for no list.
    """
    if not isinstance(ticked, (list, tuple)):
        with about("variants"):
            raise ConfigError("Choose at least one variant.")
    listed = variant_choices()
    others = [spec for spec in ticked if isinstance(spec, str) and spec not in listed]
    return (*(spec for spec in listed if spec in ticked), *dict.fromkeys(others))


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
    if isinstance(value, (int, float)) and 0 <= value <= MAX_NEW_TOKENS and value == int(value):
        return int(value)
    with about("max_new_tokens"):
        raise ConfigError(f"New tokens must be a whole number from 1 to {MAX_NEW_TOKENS}.")


# --- where many samples come from -----------------------------------------------------------


def _data(form: FormValues) -> dict[str, Any]:
    match form.source:
        case "file":
            if not form.data.strip():
                with about("data"):
                    raise ConfigError("Paste the samples or open their file.")
            columns = {"columns": mapping(form)} if form.columns.strip() else {}
            return {"file": file_name(form)} | columns
        case "runs":
            return {"runs": read_run_slugs(form.runs)}
        case "lm_eval":
            return {"lm_eval": form.lm_eval, "samples": _whole("samples", form.samples)}
        case "task":
            lengths = [_whole("length", text) for text in read_list(form.length)]
            return {
                "task": form.task,
                "length": lengths[0] if len(lengths) == 1 else lengths,
                "samples": _whole("samples", form.samples),
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
            raise ConfigError(f"Name up to {MOST_RUNS} runs; a YAML file takes more as data.runs.")
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


def _whole(name: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text.strip()) > 9:
        with about(name):
            label = name.removeprefix("sample_").capitalize()
            raise ConfigError(f"{label} must be a whole number; got {text.strip()[:40]!r}.")
    return int(text)


def _tolerance(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        with about("tolerance"):
            raise ConfigError(f"Tolerance must be a number; got {text.strip()[:40]!r}.") from None


LINES = ("protect", "follow_ups")  # one a line
# How the text of a control becomes a field of the request, where that is another value.
READ: dict[str, Callable[[str], Any]] = {
    "model": str.strip,
    "name": str.strip,
    "tolerance": _tolerance,
    **dict.fromkeys(LINES, read_lines),
}
