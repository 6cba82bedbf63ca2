"""Made-up runs, and a Services that only remembers what it was asked."""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import Progress, RunResult
from ckv_core.results.records import (
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    VariantResult,
)
from ckv_core.worker.messages import ModelStatus, TokensCounted
from storage.records import Lineage, Outcome, RunNotes, RunSummary
from storage.repository import RunMissingError
from tests import made_up_models
from ui.accounts.access import Viewer
from ui.services.services import RunSnapshot

SLUG = "abc123def456"
# The last one could be a run, but is none.
BAD_SLUGS = [
    "",
    "nope",
    "../../etc/passwd",
    "a" * 100,
    "abc123def45\n",
    "ABC123DEF456",
    "zzz999zzz999",
]
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LAYERS, KV_HEADS, QUERY_HEADS, POSITIONS, HEAD_DIM = 3, 2, 4, 10, 8
ENTRY_BYTES = 2 * HEAD_DIM * 4
FULL_BYTES = LAYERS * KV_HEADS * POSITIONS * ENTRY_BYTES


def model_info(**changes) -> ModelInfo:
    shape = {"layers": LAYERS, "query_heads": QUERY_HEADS, "kv_heads": KV_HEADS}
    own = {"name": "tiny", "sha256": "f" * 64, "head_dim": HEAD_DIM}
    return made_up_models.model_info(**shape | own | changes)


def prompt_info() -> PromptInfo:
    return PromptInfo(
        scenario="regular",
        token_ids=tuple(range(POSITIONS)),
        compressed_tokens=POSITIONS,
        pieces=tuple(f"t{i} " for i in range(POSITIONS)),
        context_tokens=(1, 8),
    )


def full_variant() -> VariantResult:
    everything = LAYERS * KV_HEADS * POSITIONS
    return VariantResult(
        spec="full",
        label="Full cache",
        method="full",
        critical=False,
        receipt=Receipt(
            budget_tokens=POSITIONS,
            requested_entries=everything,
            retained_entries=everything,
            cache_bytes=FULL_BYTES,
            full_cache_bytes=FULL_BYTES,
        ),
        text="one two",
        token_ids=(1, 2),
        token_texts=("one", " two"),
        stopped="eos",
        answer_found=True,
    )


def kept_variant(*, critical: bool = False, kept: int = 4) -> VariantResult:
    mask = np.zeros((LAYERS, KV_HEADS, POSITIONS), np.bool_)
    mask[..., :kept] = True
    entries = LAYERS * KV_HEADS * kept
    head_l1 = np.arange(LAYERS * QUERY_HEADS, dtype=np.float32).reshape(LAYERS, QUERY_HEADS)
    spec = f"snapkv{'+critical' if critical else ''}:budget={kept}"
    return VariantResult(
        spec=spec,
        label="SnapKV + CriticalKV" if critical else "SnapKV",
        method="snapkv",
        critical=critical,
        params=VariantSpec.parse(spec, {"window": "2", "sinks": "1"}).params,
        retained=RetainedSet.from_mask(mask),
        receipt=Receipt(
            budget_tokens=kept,
            requested_entries=entries,
            retained_entries=entries,
            cache_bytes=entries * ENTRY_BYTES,
            full_cache_bytes=FULL_BYTES,
            warnings=("Watch out.",),
        ),
        perturbation=Perturbation(
            head_l1=head_l1,
            base_head_l1=head_l1 + np.where(head_l1 < 9, 1, -1) if critical else None,
            layer_hidden_l1=np.array([1, 2, 3.5], np.float32),
            kl=0.25,
        ),
        text="one three",
        token_ids=(1, 3),
        token_texts=("one", " three"),
        stopped="length",
        agreement=0.5,
        first_difference=1,
        answer_found=False,
    )


def done_result() -> RunResult:
    return RunResult(
        model=model_info(),
        prompt=prompt_info(),
        variants=[full_variant(), kept_variant(), kept_variant(critical=True)],
        environment={"python": "3.11"},
        timings_ms={"prefill": 5.0},
        finished=True,
    )


def request(**changes) -> CompareRequest:
    asked = CompareRequest(
        context="a long text",
        question="what?",
        answer="two",
        variants=("full", "snapkv", "snapkv+critical"),
        defaults={"budget": "4"},
    )
    return dataclasses.replace(asked, **changes)


def snapshot(**changes) -> RunSnapshot:
    run = RunSnapshot(
        slug=SLUG,
        title="what?",
        state="done",
        reason="",
        progress=None,
        stage_ms={"prefill": 5.0},
        queue_ahead=0,
        request=request(),
        result=done_result(),
        created_at=START,
        started_at=START,
        finished_at=START + timedelta(seconds=2),
        version=0,
    )
    return dataclasses.replace(run, **changes)


def running(**changes) -> RunSnapshot:
    base = {
        "state": "running",
        "progress": Progress("prefill", 0.5, "layer 1 of 3"),
        "stage_ms": {"load": 7.0},
        "result": RunResult(),
        "finished_at": None,
        "version": 3,
    }
    return snapshot(**(base | changes))


class FakeAccounts:
    """Everybody with a password comes in; there is no session and no token."""

    def viewer(self, kind: str, token: str) -> None: ...

    def viewer_by_password(self, name: str) -> Viewer:
        return Viewer(user=name)

    def note_password(self, user: str | None, is_right: bool) -> None: ...


class FakeShares:
    """There is no share link."""

    def slugs(self, cookies) -> frozenset[str]:
        return frozenset()


class FakeServices:
    """The methods that pages call."""

    is_guest = False
    with_logins = False

    def __init__(self, *runs: RunSnapshot) -> None:
        self.runs = {run.slug: run for run in runs or (snapshot(),)}
        self.library = FakeLibrary(self.runs)
        self.accounts = FakeAccounts()
        self.shares = FakeShares()
        self.started: list[CompareRequest] = []
        self.lineages: list[Lineage | None] = []
        self.cancelled: list[str] = []
        self.steps: list[RunSnapshot] = []
        self.status: ModelStatus | None = None
        self.counted = TokensCounted("", 10, 10, 100)

    def start_run(self, asked: CompareRequest, lineage=None) -> str:
        self.started.append(asked)
        self.lineages.append(lineage)
        return SLUG

    def cancel_run(self, slug: str) -> None:
        self.snapshot(slug)
        self.cancelled.append(slug)

    def snapshot(self, slug: str) -> RunSnapshot:
        if slug not in self.runs:
            raise RunMissingError(f"There is no run {slug!r}.")
        return self.runs[slug]

    async def watch(self, slug: str) -> AsyncIterator[RunSnapshot]:
        for step in self.steps or [self.snapshot(slug)]:
            yield step

    def retained(self, slug: str, index: int) -> RetainedSet | None:
        variants = self.snapshot(slug).result.variants
        if not 0 <= index < len(variants):
            raise StorageError("No such variant.")
        return variants[index].retained

    def count_tokens(self, asked: CompareRequest, timeout_s: float = 30) -> TokensCounted:
        return self.counted

    def model_status(self, model: str) -> ModelStatus | None:
        return self.status if self.status and self.status.model == model else None

    def warm(self, model: str) -> None: ...

    def may_change(self, slug: str) -> bool:
        return True

    def note_export(self, slugs: Sequence[str]) -> None: ...


class FakeLibrary:
    """The part of the services that keeps the list of runs."""

    def __init__(self, runs: dict[str, RunSnapshot]) -> None:
        self.runs = runs
        self.asked: list[tuple] = []
        self.deleted: dict[str, RunSnapshot] = {}
        self.called: list[tuple] = []

    def list_runs(self, wanted=None, sort="newest", limit: int = 50, offset: int = 0):
        self.asked.append((wanted, sort, limit, offset))
        listed = [
            RunSummary(
                slug=run.slug,
                title=run.title,
                model_name=run.request.model,
                state=run.state,
                variant_specs=run.request.variants,
                prompt_tokens=None,
                created_at=run.created_at,
                outcome=Outcome(agreeing=1, compared=2),
            )
            for run in self.runs.values()
        ]
        return listed[offset : offset + limit], len(listed)

    def choices(self) -> dict[str, list[str]]:
        return {"models": ["tiny"], "methods": ["full", "snapkv"], "tags": ["good"]}

    def relatives(self, slug: str):
        return None, []

    def notes(self, slug: str) -> RunNotes:
        return RunNotes("a note", ("good",))

    def annotate(self, *args) -> None:
        self.called.append(("annotate", *args))

    def add_tag(self, *args) -> None:
        self.called.append(("add_tag", *args))

    def set_pinned(self, slug: str, *, pinned: bool) -> None:
        self.called.append(("set_pinned", slug, pinned))

    def delete(self, slugs) -> None:
        if any(slug not in self.runs for slug in slugs):
            raise StorageError("A chosen run is gone; reload the list.")
        for slug in slugs:
            self.deleted[slug] = self.runs.pop(slug)

    def restore(self, slugs) -> int:
        back = {slug: self.deleted.pop(slug) for slug in slugs if slug in self.deleted}
        self.runs |= back
        return len(back)
