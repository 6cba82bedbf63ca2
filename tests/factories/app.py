"""Services without a model: played by scripts, or only remembering what they were asked."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

from sqlalchemy import delete, select

from ckv_core.errors import StorageError
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.records.events import Progress, RunResult, TokensCounted
from ckv_core.records.grid import at_points
from ckv_core.records.outcomes import Tally
from ckv_core.records.records import RetainedSet
from ckv_core.records.run_request import FULL, RunRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import ModelStatus
from storage.models import ALIVE, Base, Run
from storage.records import RunNotes, RunSummary
from storage.repository import RunMissingError
from tests.factories.events import events_of
from tests.factories.runs import done_result, sweep_result
from tests.processes import wait_for
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

SLUG = "abc123def456"
SWEEP_SLUG = "sweep0123456"
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

# --- runs as the pages see them ---------------------------------------------------------------


def request(**changes) -> RunRequest:
    asked = RunRequest(
        context="a long text",
        question="what?",
        answer="two",
        variants=("full", "snapkv", "snapkv+critical"),
        budgets=("4",),
    )
    return replace(asked, **changes)


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
    )
    return replace(run, **changes)


def running(**changes) -> RunSnapshot:
    base = {
        "state": "running",
        "progress": Progress("prefill", 0.5, "layer 1 of 3"),
        "stage_ms": {"load": 7.0},
        "result": RunResult(),
        "finished_at": None,
    }
    return snapshot(**(base | changes))


def sweep_snapshot(**changes: object) -> RunSnapshot:
    result = changes.pop("result", None) or sweep_result(generated=True)
    asked = at_points(request(budgets=()), [variant.spec for variant in result.variants])
    return snapshot(
        **{"slug": SWEEP_SLUG, "title": "A sweep", "request": asked, "result": result} | changes
    )


def store_run(
    services: Services,
    asked: RunRequest,
    result: RunResult,
    owner: str | None = None,
    reason: str = "",
) -> str:
    """Save a run as if the worker had sent it, failed where a reason is given; returns its slug."""
    recorder = services._runs.recorder
    slug = recorder.create(asked, owner=owner)
    recorder.start(slug)
    for event in events_of(result):
        recorder.apply(slug, event)
    recorder.end(slug, *(("failed", reason) if reason else ()))
    return slug


def prompt_run(prompt: int, better: float = 0.5, **changes: object):
    """A run on its own prompt."""
    result = sweep_result(better=better, plain=0.75 + better / 2)  # prompts differ
    tokens = tuple(range(prompt, prompt + 10))
    result.prompt = replace(result.prompt, token_ids=tokens)
    return sweep_snapshot(slug=f"runabc{prompt}", result=result, **changes)


def runs_of(count: int):
    return [prompt_run(at, 0.5 + 0.04 * at) for at in range(count)]


# --- services that only remember --------------------------------------------------------------


class FakeAccounts:
    """There is no session and no token."""

    def viewer(self, kind: str, token: str) -> None: ...

    def note_failure(self, user: str | None) -> None: ...


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
        self.caches = SimpleNamespace(refusal="")
        self.previews = SimpleNamespace(may_start=lambda: True)
        self.started: list[RunRequest] = []
        self.cancelled: list[str] = []
        self.steps: list[RunSnapshot] = []
        self.status: ModelStatus | None = None
        self.counted = TokensCounted(10, 10, 100)

    def start_run(self, asked: RunRequest) -> str:
        self.started.append(asked)
        return SLUG

    def cancel_run(self, slug: str) -> None:
        self.snapshot(slug)
        self.cancelled.append(slug)

    def snapshot(self, slug: str) -> RunSnapshot:
        if slug not in self.runs:
            raise RunMissingError(f"There is no run {slug!r}.")
        return self.runs[slug]

    view = snapshot

    async def watch(self, slug: str) -> AsyncIterator[RunSnapshot]:
        for step in self.steps or [self.snapshot(slug)]:
            yield step

    def retained(self, slug: str, index: int) -> RetainedSet | None:
        variants = self.snapshot(slug).result.variants
        if not 0 <= index < len(variants):
            raise StorageError("No such variant.")
        return variants[index].retained

    def count_tokens(self, asked: RunRequest, timeout_s: float = 30) -> TokensCounted:
        return self.counted

    def model_status(self, model: str) -> ModelStatus | None:
        return self.status if self.status and self.status.model == model else None

    def warm(self, model: str) -> None: ...

    def check_model(self, model: str) -> None: ...

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
                outcome=Tally(same=1, compared=2),
            )
            for run in self.runs.values()
        ]
        return listed[offset : offset + limit], len(listed)

    def choices(self) -> dict[str, list[str]]:
        return {"models": ["tiny"], "methods": ["full", "snapkv"]}

    def notes(self, slug: str) -> RunNotes:
        return RunNotes("a note")

    def annotate(self, *args) -> None:
        self.called.append(("annotate", *args))

    def delete(self, slugs) -> None:
        if any(slug not in self.runs for slug in slugs):
            raise StorageError("A chosen run is gone; reload the list.")
        for slug in slugs:
            self.deleted[slug] = self.runs.pop(slug)

    def restore(self, slugs) -> int:
        back = {slug: self.deleted.pop(slug) for slug in slugs if slug in self.deleted}
        self.runs |= back
        return len(back)


# --- services whose worker plays the scripts of tests/ckv_core/worker/scripted_runner.py ------

ENDLESS = "steps 1000000"
make_client = partial(
    WorkerClient,
    runner="tests.ckv_core.worker.scripted_runner:ScriptedRunner",
    counter="tests.ckv_core.worker.scripted_runner:ScriptedCounter",
    cancel_grace_s=0.5,
)


def script(text: str, model: str = "tiny") -> RunRequest:
    return RunRequest(context="one two three", question=text, model=model)


def wait_until(services: Services, slug: str, wanted: Callable[[RunSnapshot], bool]) -> RunSnapshot:
    return wait_for(lambda: services.snapshot(slug), wanted)


def end_of(services: Services, slug: str) -> RunSnapshot:
    return wait_until(services, slug, lambda view: view.is_final)


def finished(services: Services, text: str) -> str:
    """The slug of a run that was played to its end."""
    return end_of(services, services.start_run(script(text))).slug


def generating(view: RunSnapshot) -> bool:
    return bool(view.result.variants and view.result.variants[0].text)


def empty(services: Services) -> None:
    """End what runs, and delete all rows."""
    for run in services._runs.unfinished():
        services._runs.stop(run.slug, "")
    while services._runs.unfinished():
        time.sleep(0.01)
    with services._database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))


def states_of(services: Services) -> dict[str, int]:
    """How many saved runs are in each state."""
    with services._database.read() as session:
        return dict(Counter(session.scalars(select(Run.state).where(ALIVE))))


def worker_pid(services: Services) -> int:
    pid = services._client.worker_pid
    assert pid is not None
    return pid


async def collect(views: AsyncIterator[RunSnapshot]) -> list[RunSnapshot]:
    return [view async for view in views]


# --- a study on needles: scores by rule, so that what the page says is known ------------------

LENGTHS, DEPTHS, PER_CELL = (1024, 2048), (0.05, 0.35, 0.65, 0.95), 5
STUDY = RunRequest(
    name="needles <b>*two*</b>",
    data={"file": "samples.jsonl"},
    variants=("snapkv", "snapkv+critical:stage2=raw", "keydiff"),
    budgets=("10%", "50%"),
    max_new_tokens=16,
)
COUNT = len(LENGTHS) * len(DEPTHS) * PER_CELL


def study_samples(count: int = COUNT) -> list[Sample]:
    """Samples on a grid of lengths and depths, of two tasks."""
    return [
        Sample(
            id=f"s{at:03}",
            context=f"Filler. The code of house {at} is 7{at:03}. Filler.",
            question=f"What is the code of house {at}? <img src=x onerror=alert(1)>",
            answers=(f"7{at:03}",),
            tags={
                "task": ("single", "multi")[at % 2],
                "length": LENGTHS[at // (len(DEPTHS) * PER_CELL)],
                "depth": DEPTHS[at // PER_CELL % len(DEPTHS)],
            },
        )
        for at in range(count)
    ]


def sample_result(sample: str, number: int, variant: str, budget: str | None) -> SampleResult:
    """The full cache and SnapKV at 50 % answer all; others lose every so many."""
    misses = {("snapkv", "10%"): 3, ("keydiff", "10%"): 2, ("keydiff", "50%"): 4}
    often = misses.get((variant, budget or ""), 5 if "critical" in variant else 0)
    if number == 7 and variant == "keydiff":
        reason = "The budget of 10 holds not what is always kept."
        return SampleResult(
            sample=sample, variant=variant, budget=budget, state="failed", reason=reason
        )
    share = 1.0 if budget is None else float(budget.rstrip("%")) / 100
    return SampleResult(
        sample=sample,
        variant=variant,
        budget=budget,
        state="done",
        score=0.0 if often and number % often == 0 else 1.0,
        text="7",
        stopped="eos",
        prompt_tokens=1000,
        figures={"cache_bytes": int(10_000 * share), "full_cache_bytes": 10_000}
        | ({} if variant == FULL else {"head": (2 if "critical" in variant else 3) / share}),
    )


def study_results(of: list[Sample]) -> list[SampleResult]:
    """Of every sample at every point."""
    return [
        sample_result(sample.id, number, point.variant, point.budget)
        for number, sample in enumerate(of)
        for point in STUDY.points()
    ]


def store_study(
    services: Services, study: RunRequest = STUDY, done: int = COUNT, owner: str | None = None
) -> str:
    """Save it with the results of some samples, as if the worker had run them; its slug."""
    store, found = services.studies._store, study_samples()
    slug = store.save(study, found, owner)
    store.commit(slug, study_results(found[:done]))
    store.end(slug)
    return slug
