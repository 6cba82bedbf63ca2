"""Parts of other packages, found by entry point: what loading one does harms no other. No torch."""

import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from ckv_core.base.terminal import neutralised, plain
from ckv_core.errors import in_short
from ckv_core.methods.base import METHODS, SELECTORS, all_parameters
from ckv_core.methods.parts.steps import POLICIES
from ckv_core.methods.parts.store import STORES

LOGGER = logging.getLogger(__name__)
Event = TypeVar("Event")
ENTRY_POINTS = "criticalkv.parts"  # what other packages register theirs under
SLOW_S = 5.0
HANG_S = 300.0  # the first import of torch from a slow disk is under it
# From one event of a run to the next, where another package's code may hang; ours needs minutes.
STEP_S = 1800.0
STEP = "A step of a method of the package {}"
_packages: dict[str, str] = {}  # names of entry points by the package that is imported


def load_all() -> None:
    """Load the parts of all packages that are installed."""
    for point in entry_points(group=ENTRY_POINTS):
        load(point)


def load(point: EntryPoint) -> None:
    """Load one package's parts: all that it registers, or none and a sentence on why."""
    registries: tuple[dict[str, Any], ...] = (METHODS.by_name, SELECTORS, POLICIES, STORES)
    before = [dict(registry) for registry in registries]
    name = plain(repr(point.value))
    try:
        with _loading(name), neutralised():
            point.load()
            all_parameters()  # asks each part what a list of methods asks it
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # another package's code; one may even try to exit
        for registry, parts in zip(registries, before, strict=True):
            registry.clear()
            registry.update(parts)
        why = plain(in_short(error))
        LOGGER.error("The parts of %s cannot be loaded (%s); they are left out.", name, why)  # noqa: TRY400
    else:
        _packages[point.module.partition(".")[0]] = point.value


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Log a warning if the block takes long; end this process if it takes over `HANG_S`."""
    slowly = f"Loading the parts of {name} takes over {SLOW_S:g} s. It may take {HANG_S:g} s."
    hangs = (
        f"Loading the parts of {name} does not end, so this program ends. Remove or update that "
        "package."
    )

    with _after(SLOW_S, lambda: LOGGER.warning(slowly)), _after(HANG_S, lambda: _end(hangs)):
        yield


@contextmanager
def _after(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Act if the block takes longer."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(sentence: str) -> None:
    LOGGER.error(sentence)
    os._exit(1)  # nothing else interrupts what another package waits for


def watched(events: Iterable[Event], parts: Iterable[object]) -> Iterator[Event]:
    """The events; ends this process where one does not come and other packages' parts are used."""
    packages, events = packages_of(parts), iter(events)
    if not packages:
        yield from events
        return
    hangs = f"{STEP.format(packages)} took longer than {STEP_S:,.0f} s, so this program ends. "
    while True:
        with _after(STEP_S, lambda: _end(f"{hangs}Update or remove that package.")):
            event = next(events, None)
        if event is None:
            return
        yield event


def packages_of(parts: Iterable[object]) -> str:
    """Which other packages these parts come from, for a sentence; empty where they are ours."""
    roots = {type(part).__module__.partition(".")[0] for part in parts}
    return ", ".join(repr(root) for root in sorted(roots & {*_packages}))


def fault(error: BaseException) -> str:
    """A sentence on an error that another package's parts raised; empty where none did."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _packages:
            method = "".join(f" in {note}" for note in getattr(error, "__notes__", [])[-1:])
            place = f"line {line} of {frame.f_globals['__name__']}"
            return (
                f"The parts of {_packages[package]!r} fail{method} ({in_short(error)}; {place}). "
                "Update or remove that package."
            )
    return ""
