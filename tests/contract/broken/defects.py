"""Registry of defects and of the tests that notice them, and the two healthy base schedulers."""

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
from airflow_provider_launch.testing.example_scheduler import ThreadsScheduler
from tests.support.threads_engine import ThreadsEngine

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
    """Return the defects of all modules in this folder."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name != "suite":
            importlib.import_module(f"{package}.{module.name}")
    return DEFECTS


class Local(LocalScheduler):
    """Base of defects in features that the threads scheduler lacks. The class is the factory."""

    promised: ClassVar[frozenset[Capability] | None] = None
    """Capabilities that the contract expects, if different from those of the healthy scheduler."""
    timeout_s: ClassVar[float] = 30
    """Seconds that the contract waits; short if a timeout is how the defect is noticed."""

    def __init__(self, session_name: str, *, root: str, **_: Any) -> None:
        super().__init__(session_name, LocalConnection(root=root))


class Threads(ThreadsScheduler):
    """Base of the other defects: counts accesses to the root, and its log reads can be stalled."""

    promised: ClassVar[frozenset[Capability] | None] = None
    timeout_s: ClassVar[float] = 30
    asked: ClassVar[int] = 0
    flowing: ClassVar[threading.Event] = threading.Event()
    open_streams: ClassVar[list[socket.socket]] = []
    """Peers of the open streams, for schedulers with streams."""

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
        # A file, because all processes share the engine's clock.
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
    """Kill every process in the directory, left by a broken scheduler."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").resolve() == directory:
                os.kill(int(entry.name), signal.SIGKILL)
