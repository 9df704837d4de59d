"""Which test of the contract notices which defect, and the two schedulers from which broken ones are made."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from airflow_provider_launch.schedulers.api import Capability, Scheduler
from airflow_provider_launch.schedulers.local.options import LocalConnection
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from tests.support.threads_engine import ThreadsEngine
from tests.support.threads_scheduler import ThreadsScheduler

DEFECTS: dict[type[Scheduler[Any]], tuple[str, ...]] = {}
"""Broken scheduler -> names of the tests that fail for it, or of single cases of them: `test_x[a]`."""

_S = TypeVar("_S", bound=type[Scheduler[Any]])


def caught_by(*tests: str) -> Callable[[_S], _S]:
    """Name the tests that must fail for the scheduler."""

    def register(scheduler: _S) -> _S:
        DEFECTS[scheduler] = tests
        return scheduler

    return register


def load_all() -> dict[type[Scheduler[Any]], tuple[str, ...]]:
    """Return the defects of all modules beside this one."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name != "suite":
            importlib.import_module(f"{package}.{module.name}")
    return DEFECTS


class Local(LocalScheduler):
    """Base of defects in what the threads scheduler does not offer. Its class is its factory."""

    promised: ClassVar[frozenset[Capability] | None] = None
    """Capabilities that the contract expects, where they are not those of the healthy scheduler."""
    timeout_s: ClassVar[float] = 30
    """How long the contract waits. Short where waiting in vain is how the defect is noticed."""

    def __init__(self, session_name: str, *, root: str, **_: Any) -> None:
        super().__init__(session_name, LocalConnection(root=root))


class Threads(ThreadsScheduler):
    """Base of the other defects: counts how often the root is asked, and its log files can be stalled."""

    promised: ClassVar[frozenset[Capability] | None] = None
    timeout_s: ClassVar[float] = 30
    asked: ClassVar[int] = 0
    flowing: ClassVar[threading.Event] = threading.Event()
    open_streams: ClassVar[list[socket.socket]] = []
    """The far ends of streams, for schedulers which have some."""

    def _reached(self) -> Path:
        Threads.asked += 1
        return super()._reached()

    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        self.flowing.wait()
        return super()._read(path, at, ended)


Threads.flowing.set()


class WatchedEngine(ThreadsEngine):
    """The engine of `Threads`."""

    def requests(self) -> int:
        return Threads.asked

    def cut_streams(self) -> int:
        streams, Threads.open_streams = Threads.open_streams, []
        for peer in streams:
            peer.close()
        return len(streams)

    @contextlib.contextmanager
    def stall_logs(self) -> Iterator[None]:
        Threads.flowing.clear()
        try:
            yield
        finally:
            Threads.flowing.set()

    @contextlib.contextmanager
    def clock(self, offset_s: float) -> Iterator[Callable[[float], None]]:
        # A file, as the engine's clock is the same for all processes.
        clock = self.root.with_name("clock")
        clock.write_text("0")

        def step(by_s: float) -> None:
            clock.write_text(str(float(clock.read_text()) + by_s))

        step(offset_s)
        try:
            yield step
        finally:
            clock.unlink()


def end_all(directory: Path) -> None:
    """Kill every process that works in the directory: what a broken scheduler has left."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").resolve() == directory:
                os.kill(int(entry.name), signal.SIGKILL)
