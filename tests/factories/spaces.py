"""A stand-in of Hugging Face's package `spaces`, by the sources of its version 0.51.3.

As there, a generator is called in a forked process, arguments and values are pickled, a closed
generator is closed over there at its next value, a process that dies is `GPU task aborted`, and
what the generator raises is known by its class alone. Unlike there each process is killed after its
call, so that nothing can be relied on that a call left behind.
"""

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

VISITOR: ContextVar[str] = ContextVar("visitor", default="")  # whose quota it is


class GpuError(Exception):
    """As Gradio's own, with its message apart."""

    def __init__(self, message: str) -> None:
        super().__init__(repr(message))
        self.message = message


class Spaces(ModuleType):
    """The package. `refusal` is why nobody gets a GPU now; `lent` is who had one for how long."""

    def __init__(self) -> None:
        super().__init__("spaces")
        self.__spec__ = ModuleSpec("spaces", None)
        self.refusal = ""
        self.lent: list[tuple[str, int]] = []
        self.pids: list[int] = []
        self.starts = 0

    def install(self, monkeypatch: Any) -> None:
        zero = ModuleType("spaces.zero")
        zero.startup = self._startup  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "spaces", self)
        monkeypatch.setitem(sys.modules, "spaces.zero", zero)

    def _startup(self) -> None:
        self.starts += 1

    def GPU(self, *, duration: Callable[..., int]) -> Callable[..., Any]:
        def decorate(task: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            def lend(*given: Any) -> Iterator[Any]:
                self.lent.append((VISITOR.get(), duration(*given)))
                if self.refusal:
                    raise GpuError(self.refusal)
                return (yield from self._call(task, pickle.dumps(given)))

            return lend

        return decorate

    def _call(self, task: Callable[..., Iterator[Any]], given: bytes) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        stop = context.Event()
        process = context.Process(target=_work, args=(task, given, theirs, stop), daemon=True)
        process.start()
        theirs.close()
        self.pids.append(process.pid or 0)
        try:
            while (word := ours.recv()) is not None:
                value, error = pickle.loads(word)
                if error:
                    raise GpuError(error)
                yield value
        except EOFError:
            raise GpuError("GPU task aborted") from None
        except GeneratorExit:
            stop.set()
            while True:  # it waits for the process, as the package does
                try:
                    if ours.recv() is None:
                        break
                except EOFError:
                    break
            raise
        finally:
            process.kill()
            process.join()
            ours.close()


def _work(task: Any, given: bytes, theirs: Connection, stop: Any) -> None:
    values = task(*pickle.loads(given))
    try:
        for value in values:
            if stop.is_set():
                values.close()
                break
            theirs.send(pickle.dumps((value, "")))
    except Exception as error:
        theirs.send(pickle.dumps((None, type(error).__name__)))
    theirs.send(None)
