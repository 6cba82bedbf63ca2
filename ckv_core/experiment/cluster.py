"""A Ray cluster, and studies on it: Ray Data hands samples to actors with the model. No torch.

A worker that is lost is started again by Ray, and its samples retried; that no result counts twice
is the key's business (study, sample, variant, budget). Ray is optional and imported on use.
"""

import importlib.util
import logging
import os
import pickle
import warnings
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ckv_core.errors import CkvError, ConfigError, first_line
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_runner import (
    Results,
    Served,
    Todo,
    failed_sample,
)
from ckv_core.methods.plug_ins import fault
from ckv_core.records.events import TokensCounted
from ckv_core.records.run_request import RunRequest

if TYPE_CHECKING:
    from ckv_core.experiment.study_engine import LocalEngine

LOCAL = "local"
TRIES = 3  # a sample whose worker was lost so often is at fault itself
LOST = (
    f"The worker was lost {TRIES} times while it ran this sample; the log of the cluster has the "
    "reason. Often the machine was out of memory."
)
MOST_AT_ONCE = 8  # samples of a context that come back together, and are lost together
_Job = list[Todo]  # samples of one context, which share its prefill


class Cluster:
    """A connection to a cluster; one at a time in a process. The engine of whole studies.

    Attributes:
        workers: how many there is room for, or how many the user requested.
        is_local: all of it is on this machine.
    """

    def __init__(
        self,
        address: str,
        device: str = "auto",
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        """Start one on this machine, or join one.

        Args:
            address: `local`, `auto` for the one that this machine belongs to, or Ray's address.
            device: auto, cpu or cuda.
            workers: at most; None for one a GPU, or one per `threads` CPUs.
            threads: CPUs of a worker without a GPU.

        Raises:
            ConfigError: Ray is not installed, nobody answers, or there is no room for a worker.
        """
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "CKV_CLUSTER needs Ray: pip install -r requirements-cluster.txt, or leave it out."
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # At Ray's own 15 a worker stands nearly still beside anything else on its machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # who asks after `close` must start none
        if address == LOCAL:  # loopback only; Ray looks at it when it is imported, and never again
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        import ray
        import ray.data

        self._ray, self._device = ray, device
        here = {"num_cpus": workers * threads} if address == LOCAL and workers else {}
        try:
            ray.init(
                address,
                include_dashboard=False if address == LOCAL else None,
                configure_logging=False,
                log_to_driver=False,
                **here,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"No Ray cluster answers at {address!r}: {first_line(error)} CKV_CLUSTER is local, "
                "auto or an address such as ray://host:10001."
            ) from None
        ray.put(None)  # imports pydantic here; a thread would fail beside the pages' import of it
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        room = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(room.get("GPU", 0))
        self._needs = {"num_gpus": 1} if gpus else {"num_cpus": threads}
        most = gpus or int(room.get("CPU", 0)) // threads
        if not most:
            raise ConfigError(
                f"No machine of the cluster has {threads} CPUs for a worker; take fewer threads."
            )
        self.workers = min(most, workers or most)
        self.is_local = address == LOCAL
        self._engine: Any = None
        self.parameters: int | None = None

    def close(self) -> None:
        """Leave; a cluster that was started here ends."""
        self._ray.shutdown()

    def actor(self, kind: type, *values: object, **options: object) -> Any:
        """An actor with a worker's share; it starts when there is room."""
        return self._ray.remote(**self._needs, **options)(kind).remote(*values)

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor)

    def answer(self, reference: Any) -> Any:
        """Of an actor; waits.

        Raises:
            CkvError: it failed with that, or the actor was lost.
        """
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CkvError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayActorError:
            raise CkvError(f"A worker of the cluster was lost. {LOST.partition('; ')[0]}") from None

    def samples(self, study: RunRequest) -> tuple[Sample, ...]:
        """The samples of a study's task, made by a worker with the model's tokens."""
        found: tuple[Sample, ...] = self._answer_of(study, "samples", study)
        return found

    def sizes(self, study: RunRequest, samples: Sequence[Sample]) -> dict[str, TokensCounted]:
        """Of the prompts that can be tokenised, by sample; counted by a worker."""
        found: dict[str, TokensCounted] = self._answer_of(study, "sizes", study, samples)
        return found

    def results(
        self, study: RunRequest, todo: Sequence[Todo], served: Served
    ) -> Generator[Results]:
        """Results of the given points, sample by sample; `study_runner.Engine` has the rules.

        Raises:
            CkvError: a worker cannot load the model, or something failed that is no sample's fault.
        """
        if self._engine is not None:
            self.kill(self._engine)  # its room is for the workers
            self._engine = None
        groups = [[*group] for _, group in groupby(todo, key=lambda left: left[0].context)]
        jobs = [
            group[at : at + MOST_AT_ONCE]
            for group in groups
            for at in range(0, len(group), MOST_AT_ONCE)
        ]
        open_jobs = dict(enumerate(jobs))
        for at, outcome in self._outcomes(study, jobs):
            if isinstance(outcome, CkvError):
                raise outcome
            if open_jobs.pop(at, None) is None:
                continue  # it was retried though its first result had come
            results, info, versions = outcome
            served(info, versions)
            yield from results
        for job in open_jobs.values():
            for sample, points in job:
                yield failed_sample(sample, points, CkvError(LOST))

    def _outcomes(self, study: RunRequest, jobs: Sequence[_Job]) -> Iterator[tuple[int, Any]]:
        data = self._ray.data
        # What a lost worker did not bring is recorded as that sample's failure.
        data.DataContext.get_current().max_errored_blocks = -1
        rows = [
            {"at": at, "job": pickle.dumps((study, self._device, job))}
            for at, job in enumerate(jobs)
        ]
        pool = data.ActorPoolStrategy(
            size=min(self.workers, len(jobs)), max_tasks_in_flight_per_actor=1
        )
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
            # Ray 2.60 has no other way to bound the tries.
            ran = data.from_items(rows, override_num_blocks=len(rows)).map(
                _Worker,
                compute=pool,
                ray_remote_args_fn=lambda: {"max_task_retries": TRIES - 1},
                **self._needs,
            )
        for row in ran.iter_rows():
            yield row["at"], pickle.loads(row["outcome"])  # noqa: S301 - of our own worker

    def _answer_of(self, study: RunRequest, name: str, *values: object) -> Any:
        """Return what an engine of the cluster answers.

        Raises:
            CkvError: it cannot.
        """
        if self._engine is None:
            engine = self.actor(_Engine)
            self.parameters = self.answer(engine.load.remote(study.model, self._device))
            self._engine = engine  # one that could not load would answer the next question wrongly
        return self.answer(self._engine.ask.remote(name, *values))


class _Engine:
    """What counts tokens for the driver, which need not have the model."""

    def load(self, model: str, device: str) -> int:
        from ckv_core.experiment.study_engine import LocalEngine

        self._engine = LocalEngine(model, device)
        return self._engine.parameters

    def ask(self, name: str, *values: object) -> Any:
        return getattr(self._engine, name)(*values)


class _Worker:
    """Loads the model at the first job, then runs one job after another."""

    def __init__(self) -> None:
        self._engine: LocalEngine | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"at": row["at"], "outcome": pickle.dumps(self._run(row["job"]))}

    def _run(self, job: bytes) -> Any:
        """The results of each sample, the model and the versions; or why nothing can run."""
        from ckv_core.experiment.study_engine import LocalEngine

        study, device, samples = pickle.loads(job)  # noqa: S301 - of our own driver
        try:
            self._engine = self._engine or LocalEngine(study.model, device)
            engine = self._engine
            results = [*engine.results(study, samples, lambda *_: None)]
        except CkvError as error:
            return error
        except Exception as error:  # one sample must not end the others
            logging.getLogger(__name__).exception("A sample failed.")
            return CkvError(
                fault(error)
                or f"A worker failed on sample {samples[0][0].id!r}: {type(error).__name__}. The "
                "cluster's log has the details."
            )
        return results, engine.info, engine.environment
