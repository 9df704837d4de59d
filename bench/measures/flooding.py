"""A plug-in scheduler with apps in memory that write as fast as they are read, and measurements of the process."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.task_log import line_logger
from airflow_provider_launch.schedulers.logs import LogChunk, LogLine, Stream
from airflow_provider_launch.specs import AppDef, Role
from tests.support.fake_scheduler import FakeEngine, FakeScheduler
from triggerer import Probe

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent

MARK = "[r/0] "
TEXTS = [f"step {n}: loss 0.12345, accuracy 0.98, of usual length" for n in range(1000, 1256)]
LINES = [LogLine(f"{text}\n", Stream.STDOUT) for text in TEXTS]
ENGINE = FakeEngine()
OPEN = threading.Event()
"""Whether the apps write."""


class Flood(FakeScheduler):
    """The engine costs nothing, because its lines are in memory."""

    poll_interval_s = 0.5

    def read_logs(
        self,
        app_id: str,  # noqa: ARG002
        role_name: str,  # noqa: ARG002
        k: int,  # noqa: ARG002
        cursor: Any = None,
        *,
        streams: Any = None,  # noqa: ARG002
    ) -> LogChunk:
        at = cursor or 0
        return LogChunk(LINES, at + len(LINES)) if OPEN.is_set() else LogChunk([], at)


def create_scheduler(session_name: str, **_: Any) -> Flood:
    """The factory of the entry point."""
    return Flood(session_name, ENGINE, "flood")


def install(site: Path, count: int) -> list[str]:
    """Write the plug-in's metadata into a folder, run apps, and return their ids."""
    info = site / "launch_flood-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launch-flood\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[airflow_provider_launch.schedulers]\nflood = flooding:create_scheduler\n")
    sys.path.insert(0, str(site))
    scheduler = create_scheduler("bench_flood")
    app = AppDef("flood", [Role("r", "", entrypoint="yes")])
    made = [scheduler.submit_dryrun(app, {}, app_id=f"flood-{number:03}") for number in range(count)]
    return [scheduler.schedule(each) for each in made]


class Window(Probe):
    """Measures the process while `kind` writes: `airflow` or `lines` (one thread with one logger), or `apps`."""

    def __init__(self, kind: str, seconds: float) -> None:
        super().__init__(seconds, logs=kind == "apps")
        self.kind = kind
        self.over = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "flooding.Window", {"kind": self.kind, "seconds": self.seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        writing = None
        if self.kind == "apps":
            OPEN.set()
        else:
            writing = asyncio.ensure_future(asyncio.to_thread(self.write))
        # Skip the start, before lines are written.
        await asyncio.sleep(0.5)
        async for event in super().run():
            OPEN.clear()
            self.over = True
            if writing is not None:
                await writing
            yield event

    def write(self) -> None:
        """Write the same records by one thread."""
        write = (line_logger(self.log) if self.kind == "lines" else self.log).info
        texts = [MARK + text for text in TEXTS]
        end = time.monotonic() + self.seconds + 10
        while not self.over and time.monotonic() < end:
            for text in texts:
                write(text)
