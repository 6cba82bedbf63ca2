"""The list of runs by its address: query to filter and back, summaries to rows. No Gradio."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from ckv_core.errors import StorageError
from ckv_core.methods import METHODS
from ckv_core.records.outcomes import Tally
from ckv_core.records.variants import written_parameters
from storage.library import SORTS
from storage.records import RunFilter, RunSort, RunSummary
from storage.repository import is_slug

T = TypeVar("T")
TEXT_CHARS = 400
MOST_CHOSEN = 100
MOST_BUDGETS = 5  # that are named
FULL = "full"
_LABELS = {method.name: method.label for method in METHODS}
_TEXTS = ("text", "model", "method", "tag", "state", "kind", "answer")
NAMES = (*_TEXTS, "min_budget", "max_budget", "since", "until", "pinned", "sort", "page")


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
        min_budget=read("min_budget", _number),
        max_budget=read("max_budget", _number),
        since=read("since", _day),
        until=until,
        pinned=given.get("pinned") == "1",
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
    return {
        "slug": run.slug,
        "title": run.title,
        "kind": run.kind,
        "state": run.state,
        "model": run.model_name,
        "variants": len(run.variant_specs),
        "specs": list(run.variant_specs),
        "tokens": run.prompt_tokens,
        "created": run.created_at.isoformat(),
        "note": run.note,
        "tags": list(run.tags),
        "pinned": run.pinned,
        "outcome": run.counts.sentence if run.counts else outcome_text(run.outcome, run.kind),
    }


def request_text(specs: Sequence[str]) -> str:
    """What tells runs of one question apart: methods and budgets, as `SnapKV; budget 64`."""
    forms: dict[str, set[bool]] = {}
    budgets: dict[str, None] = {}
    for spec in specs:
        name, plus, _ = spec.partition(":")[0].partition("+")
        if name != FULL:
            forms.setdefault(name, set()).add(bool(plus))
            budgets |= {v: None for key, v in written_parameters(spec).items() if key == "budget"}
    methods = [_method_text(name, kinds) for name, kinds in forms.items()]
    parts = [", ".join(methods) or _LABELS[FULL]]
    if len(budgets) > MOST_BUDGETS:
        parts.append(f"{len(budgets)} budgets")
    elif budgets:
        parts.append(f"budget {', '.join(budgets)}")
    return "; ".join(parts)


def _method_text(name: str, with_critical: set[bool]) -> str:
    """With the second stage, without, or both."""
    label = _LABELS.get(name, name)
    if with_critical == {False}:
        return label
    return f"{label} ± CriticalKV" if len(with_critical) == 2 else f"CriticalKV-{label}"


def outcome_text(outcome: Tally, kind: str = "compare") -> str:
    """What came out, in the words of the verdict's headline; empty if unknown."""
    phrase = outcome.phrase("point" if kind == "sweep" else "method")
    return f"{outcome.about_full} {phrase[:1].upper()}{phrase[1:]}".strip()
