"""The list of runs by its address: query to filter and back, summaries to rows. No Gradio."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from ckv_core.errors import CkvError, StorageError
from ckv_core.experiment.sentences import budget_words
from ckv_core.records.variants import VariantSpec, method_of, spec_without, written_parameters
from storage.library import SORTS
from storage.records import RunFilter, RunSort, RunSummary
from storage.repository import is_slug
from ui.looks.palette import look_of

T = TypeVar("T")
TEXT_CHARS = 400
MOST_CHOSEN = 100
FULL = "full"
_TEXTS = ("text", "model", "method", "state", "kind", "answer")
NAMES = (*_TEXTS, "since", "until", "sort", "page")


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What an address asks of the list; `notice` names what in it could not be read."""

    wanted: RunFilter
    sort: RunSort
    page: int
    notice: str


def read_query(given: Mapping[str, str]) -> RunQuery:
    """Read an address, which may hold anything; what cannot be read is left out and named."""
    wrong: list[str] = []

    def read(name: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(text) if (text := given.get(name, "").strip()) else None
        except ValueError:
            wrong.append(name.replace("_", " "))
            return None

    until = read("until", _day)
    if until is not None and until.year < 9999:
        until += timedelta(days=1)
    wanted = RunFilter(
        **{name: _text(given.get(name, "")) for name in _TEXTS},
        since=read("since", _day),
        until=until,
    )
    sort = given.get("sort", SORTS[0])
    page = read("page", _number)
    notice = f"Left out, because it cannot be read: {', '.join(wrong)}." if wrong else ""
    return RunQuery(wanted, sort if sort in SORTS else SORTS[0], page or 1, notice)


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def _text(given: str) -> str:
    """PostgreSQL takes neither a NUL nor half a character."""
    valid = given.replace("\x00", "").encode("utf-8", "ignore").decode()
    return valid.strip()[:TEXT_CHARS]


def read_slugs(given: object) -> list[str]:
    """The chosen runs, which a client may send as anything; StorageError for none or too many."""
    slugs = [slug for slug in given if is_slug(slug)] if isinstance(given, list) else []
    if not slugs:
        raise StorageError("Choose at least one run first.")
    if len(slugs) > MOST_CHOSEN:
        raise StorageError(f"Choose up to {MOST_CHOSEN} runs at a time.")
    return slugs


def run_row(run: RunSummary) -> dict[str, Any]:
    """Value of one row of the RunList."""
    evicting = [spec for spec in run.variant_specs if method_of(spec) != FULL]
    return {
        "slug": run.slug,
        "title": run.title,
        "kind": run.kind,
        "state": run.state,
        "model": run.model_name,
        "methods": methods_of(evicting),
        "budget": budget_text(evicting),
        "specs": list(run.variant_specs),
        "tokens": run.prompt_tokens,
        "created": run.created_at.isoformat(),
        "note": run.note,
        **outcome_line(run),
    }


def methods_of(specs: Sequence[str]) -> list[dict[str, Any]]:
    """{"look", "label"} of each method, with CriticalKV or without, whatever its budget.

    One that this version does not know is drawn as a plain mark with its own text.
    """
    found: dict[str, dict[str, Any]] = {}
    for spec in specs:
        try:
            variant = VariantSpec.parse(spec_without(spec, "budget", "alpha"))
            found[variant.label] = {"look": look_of(variant.spec).value, "label": variant.label}
        except CkvError:
            name = method_of(spec)[:TEXT_CHARS]
            found[name] = {"look": None, "label": name}
    return list(found.values())


def budget_text(specs: Sequence[str]) -> str:
    """`20 %`, or the first and the last of several: `5 % to 50 %`; empty where none is written."""
    written = dict.fromkeys(written_parameters(spec).get("budget", "") for spec in specs)
    budgets = [budget_words(each) for each in written if each]
    return budgets[0] if len(budgets) == 1 else f"{budgets[0]} to {budgets[-1]}" if budgets else ""


def outcome_line(run: RunSummary) -> dict[str, str]:
    """What came out: `outcome` of the page's pills, its `words` and `more`.

    A run that is not done has its state alone.
    """
    if run.counts:
        return {"outcome": "none", "words": _state(run), "more": run.counts.sentence}
    if run.state != "done":
        return {"outcome": "failed" if run.state == "failed" else "none", "words": _state(run)}
    result, kind = run.outcome, "point" if run.kind == "sweep" else "method"
    more = result.about_full
    if not result.by_answer:
        same = f"{result.same} of {result.compared} same text" if result.compared else "Done"
        return {"outcome": "none", "words": same, "more": result.phrase(kind)}
    count = result.answered + result.missed + result.cut + result.failed
    others = [f"{n} {word}" for word, n in (("cut", result.cut), ("failed", result.failed)) if n]
    word = "answered" if result.answered else "cut" if result.cut == count else "missed"
    words = f"{result.answered} of {count} answered"
    if not count:  # the full cache alone
        word, words = str(result.full), f"Full cache {result.full}"
    return {
        "outcome": word,
        "words": words,
        "more": ". ".join(filter(None, [", ".join(others), more])),
    }


def _state(run: RunSummary) -> str:
    return run.state.capitalize()
