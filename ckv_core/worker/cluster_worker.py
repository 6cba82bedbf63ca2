"""A worker in an actor of a Ray cluster: the same loop and messages as in a process. No torch."""

import contextlib
import logging
import pickle
import queue
import threading
from collections.abc import Callable, Iterator

from ckv_core.runtime.terminal import neutralised
from ckv_core.studies.cluster import Cluster
from ckv_core.worker.messages import Command, Reply
from ckv_core.worker.process import make_runner, prepare
from ckv_core.worker.serve import WorkerLoop

LOGGER = logging.getLogger(__name__)


class ClusterWorker:
    """One actor: sending never blocks the caller, replies come from a thread; as `WorkerProcess`.

    The cluster starts the actor where it has room, however long that takes; this is not told.
    """

    pid = None  # it may be another machine's

    def __init__(
        self,
        cluster: Cluster,
        runner: str,
        on_reply: Callable[["ClusterWorker", Reply], None],
        on_lost: Callable[["ClusterWorker"], None],
    ) -> None:
        """Ask for it.

        Args:
            cluster: whose room for a worker it takes.
            runner: `module:attribute` of the engine, imported in the actor only.
            on_reply: gets every reply, in the reading thread.
            on_lost: called once, in the reading thread, when the actor is gone.
        """
        self._cluster = cluster
        self._actor = cluster.actor(_Host, runner, max_concurrency=2)  # `put` beside `take`
        self._on_reply, self._on_lost = on_reply, on_lost
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.has_replied = False
        threading.Thread(target=self._write, name="actor-send", daemon=True).start()
        threading.Thread(target=self._read, name="actor-receive", daemon=True).start()

    def send(self, command: Command) -> None:
        """Hand over a command; lost if the actor dies first."""
        self._outbox.put(command)

    def kill(self) -> None:
        """End it now; `on_lost` follows."""
        with contextlib.suppress(Exception):  # it, or the cluster, is gone already
            self._cluster.kill(self._actor)

    def stop(self, timeout_s: float) -> None:  # noqa: ARG002 - there is nothing to wait for
        """End it; it has nothing to save."""
        self.kill()

    def exit_reason(self) -> str:
        """Half a sentence on how it ended; what Ray says of it fills a screen."""
        if self.has_replied:
            return "a worker of the cluster was lost; Ray's log has the reason, often full memory"
        return (
            "no worker could be started on the cluster; it may be full, or a machine lacks this "
            "checkout, which Ray's log tells"
        )

    def _write(self) -> None:
        """One after another: an actor of several threads keeps no order by itself."""
        with contextlib.suppress(Exception):  # the reader sees the same end and tells it
            while (command := self._outbox.get()) is not None:
                self._cluster.answer(self._actor.put.remote(command))

    def _read(self) -> None:
        try:
            for reply in self._replies():
                self.has_replied = True
                self._on_reply(self, reply)
        except Exception:
            LOGGER.info("An actor is gone.", exc_info=True)
        self.kill()
        self._outbox.put(None)
        self._on_lost(self)

    def _replies(self) -> Iterator[Reply]:
        """Until the actor's loop ends."""
        while True:
            for reply in pickle.loads(self._cluster.answer(self._actor.take.remote())):  # noqa: S301 - of our own actor
                if reply is None:
                    return
                yield reply


class _Host:
    """What the actor is: the loop, between two queues."""

    def __init__(self, runner: str) -> None:
        prepare("worker")
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(runner,), daemon=True).start()

    # --- called by the app --------------------------------------------------------------------

    def put(self, command: Command) -> None:
        self._commands.put(command)

    def take(self) -> bytes:
        """Wait for replies; all since the last call, pickled, and None where the loop has ended.

        Arrays that Ray hands over itself are read-only, and fill its store as long as they live.
        """
        replies = [self._replies.get()]
        while replies[-1] is not None and not self._replies.empty():
            replies.append(self._replies.get())
        return pickle.dumps(replies)

    # --- the channel of the loop --------------------------------------------------------------

    def recv(self) -> Command:
        return self._commands.get()

    def send(self, reply: Reply) -> None:
        self._replies.put(reply)

    def _serve(self, runner: str) -> None:
        try:
            with neutralised():
                WorkerLoop(self, lambda: make_runner(runner)).run()
        except BaseException:
            LOGGER.exception("The worker stopped.")
        self._replies.put(None)
