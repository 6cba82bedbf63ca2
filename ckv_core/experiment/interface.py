"""`ckv_core.compare` and what it returns: a comparison in a script or a notebook."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckv_core.experiment.summary import metric_rows
from ckv_core.experiment.verdict import verdict_of
from ckv_core.experiment.why import Why, why_of
from ckv_core.records.codec import to_json
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import DEFAULT_MODEL, RunRequest
from ckv_core.records.work_requests import WhyRequest

if TYPE_CHECKING:
    import pandas

    from ckv_core.models.loaded import LoadedModel


@dataclass(frozen=True, slots=True)
class Run:
    """What a comparison came to; `result` has every array and kept set."""

    result: RunResult
    answer: str = ""

    @property
    def verdict(self) -> str:
        """The sentences that stand first on the page of a run, a line each."""
        verdict = verdict_of(self.result)
        return "\n".join(verdict.lines) if verdict else ""

    def table(self) -> "pandas.DataFrame":
        """A row per variant and budget, a column per metric, as the CSV file of a run has them."""
        import pandas  # takes a second

        head, rows = metric_rows(self.result)
        return pandas.DataFrame(rows, columns=head)

    def save(self, path: str | Path) -> None:
        """Write the result JSON, as `compare --json` does; the app imports it."""
        document = json.dumps(to_json(self.result), allow_nan=False)
        Path(path).write_text(f"{document}\n", encoding="utf-8")


def compare(
    context: str,
    question: str = "",
    *,
    methods: Sequence[str] = ("snapkv", "adakv", "streaming_llm"),
    budgets: Sequence[str | int] = (),
    model: str | None = None,
    **settings: Any,
) -> Run:
    """Run several methods on one prompt, the full cache first where there is a reference.

    Args:
        context: the long text.
        question: about it; empty for none.
        methods: SPECs, such as `adakv+critical:alpha=0.5`.
        budgets: entries per KV head (128) or shares of the prompt ("10%"); of several budgets the
            kept sets are not stored.
        model: a name, a Hugging Face id or a folder; None for that of CKV_MODEL, or the default.
        settings: more fields of a `RunRequest`: answer, scenario, max_new_tokens, device, ...;
            reference=False leaves the full cache out.

    Raises:
        CkvError: an argument is wrong or the run failed; one sentence says what to do.
    """
    is_beside = settings.get("reference", True)
    request = RunRequest(
        context=context,
        question=question,
        variants=tuple(dict.fromkeys(("full", *methods) if is_beside else methods)),
        budgets=tuple(str(budget) for budget in budgets),
        model=model or os.environ.get("CKV_MODEL") or DEFAULT_MODEL,
        **settings,
    )
    request.validate()
    from ckv_core.engine.compare import compare as events_of

    result = RunResult()
    for event in events_of(request, _loaded(request.model, request.device, request.dtype)):
        result.apply(event)
    return Run(result, request.answer)


def why(
    context: str,
    question: str,
    answer: str,
    method: str,
    *,
    evidence: Sequence[str] = (),
    model: str | None = None,
    **settings: Any,
) -> Why:
    """Which evicted entries bring the answer back that a method lost; `.sentence` says it.

    Args:
        context: the long text.
        question: about it.
        answer: the expected one.
        method: SPEC with its budget, such as `snapkv:budget=20%`.
        evidence: passages of the context that hold the answer; without any, the sentences in which
            it stands.
        model: as of `compare`.
        settings: as of `compare`.

    Raises:
        CkvError: as of `compare`.
    """
    run = RunRequest(
        context=context,
        question=question,
        answer=answer,
        model=model or os.environ.get("CKV_MODEL") or DEFAULT_MODEL,
        **settings,
    )
    from ckv_core.engine.why import why as events_of

    result = RunResult()
    request = WhyRequest(run=run, variant=method, evidence=tuple(evidence))
    for event in events_of(request, _loaded(run.model, run.device, run.dtype)):
        result.apply(event)
    return why_of(result)


@lru_cache(maxsize=1)
def _loaded(model: str, device: str, dtype: str) -> "LoadedModel":
    """The model, kept for the next call."""
    from ckv_core.models.loading import load_model

    return load_model(model, device, dtype)
