"""One triggerer process for a measure: Airflow's runner of triggers behind Airflow's supervisor, without a database.

The measured process is forked by Airflow's supervisor and runs its `TriggerRunner`; communication, log socket and the
reading of records are those of Airflow. Only the database is replaced: the measure passes triggers, and XComs are kept
in memory. The module also runs in the environment of the peer, so it must not import this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import time
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import structlog
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory, TriggerRunner, TriggerRunnerSupervisor
from airflow.models.trigger import Trigger
from airflow.sdk.execution_time.comms import GetXCom, SetXCom, XComResult
from airflow.triggers.base import BaseTrigger, TriggerEvent

LAG_STEP_S = 0.01


class Records:
    """The log of all triggers, in one file; records when each marked record arrived."""

    def __init__(self, mark: str) -> None:
        self.times: list[float] = []
        self._mark = mark
        self._log: Any = None
        self._file = _OneFile(log_path="triggers.log", ti=None)  # type: ignore[arg-type]

    def __call__(self, processors: Any) -> Records:
        self._log = self._log or self._file(processors)
        return self

    def log(self, level: int, event: str, **values: Any) -> None:
        """Accept a record from Airflow's supervisor."""
        if self._mark and str(event).startswith(self._mark):
            self.times.append(time.monotonic())
        self._log.log(level, event, **values)

    def within(self, start: float, end: float) -> int:
        """Return the number of records between two times."""
        return bisect_left(self.times, end) - bisect_left(self.times, start)

    def upload_to_remote(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing, because other triggers use it."""


class _OneFile(TriggerLoggingFactory):
    """Airflow's path from a record to the log file of its trigger."""


class _Stamped(deque[Any]):
    """The fired events, each with its time."""

    def append(self, entry: Any) -> None:
        entry.event.payload["out_at"] = time.time()
        super().append(entry)


@attrs.define(kw_only=True)
class Triggerer(TriggerRunnerSupervisor):
    """The supervisor, with memory instead of the database. Events are added to `fired`."""

    fired: dict[int, dict[str, Any]] = attrs.field(factory=dict, init=False)
    failed: list[Any] = attrs.field(factory=list, init=False)
    xcoms: dict[tuple[Any, ...], Any] = attrs.field(factory=dict, init=False)
    records: Any = attrs.field(default=None, init=False)
    made: int = attrs.field(default=0, init=False)

    @classmethod
    def run_in_process(cls) -> None:
        runner = TriggerRunner()
        runner.events = _Stamped()
        runner.run()

    def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
        if isinstance(msg, GetXCom):
            value = self.xcoms.get((msg.dag_id, msg.run_id, msg.task_id, msg.map_index, msg.key))
            self.send_msg(XComResult(key=msg.key, value=value), request_id=req_id, error=None)
        elif isinstance(msg, SetXCom):
            self.xcoms[msg.dag_id, msg.run_id, msg.task_id, msg.map_index, msg.key] = msg.value
            self.send_msg(None, request_id=req_id, error=None)
        else:
            TriggerRunnerSupervisor._handle_request(self, msg, log, req_id)  # noqa: SLF001 - the class above it

    def load_triggers(self) -> None:
        """Do nothing, because `add` passes triggers."""

    def heartbeat(self) -> None:
        """Do nothing, without a job."""

    def clean_unused(self) -> None:
        """Do nothing, without a table."""

    def emit_metrics(self) -> None:
        """Do nothing, without metrics."""

    def on_trigger_event(self, trigger_id: int, event: Any) -> None:
        self.fired[trigger_id] = event.payload

    def on_trigger_failure(self, trigger_id: int, exc: Any) -> None:
        self.failed.append((trigger_id, exc))

    def add(self, classpath: str, kwargs: dict[str, Any]) -> int:
        """Run one more trigger, of a separate task; return its id."""
        self.made += 1
        task = TaskInstanceDTO(
            id=uuid.uuid4(),
            dag_version_id=uuid.uuid4(),
            dag_id="bench",
            run_id="manual__2026-01-01T00:00:00+00:00",
            task_id=f"task_{self.made}",
            try_number=1,
            map_index=-1,
            pool_slots=1,
            priority_weight=1,
            queue="default",
        )
        self.logger_cache[self.made] = self.records
        encrypted = Trigger.encrypt_kwargs(kwargs)
        self.creating_triggers.append(
            RunTrigger(id=self.made, classpath=classpath, encrypted_kwargs=encrypted, ti=task)
        )
        return self.made

    def run_until(self, is_over: Callable[[], object], limit_s: float = 300.0) -> None:
        """Serve the process until a condition is true."""
        deadline = time.monotonic() + limit_s
        while not is_over():
            if time.monotonic() > deadline or not self.is_alive():
                raise TimeoutError(f"the triggerer is {'slow' if self.is_alive() else 'dead'}; see its log")
            if self.failed:
                raise RuntimeError(f"a trigger failed: {self.failed[0]}")
            self.run_once()

    def run_for(self, seconds: float) -> None:
        """Serve the process for a while."""
        end = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end, seconds + 60)

    def ask(self, classpath: str, **kwargs: Any) -> dict[str, Any]:
        """Run a trigger to its event, and return that."""
        one = self.add(classpath, kwargs)
        self.run_until(lambda: one in self.fired)
        return self.fired[one]


@contextlib.contextmanager
def triggerer(mark: str = "") -> Iterator[Triggerer]:
    """Start a triggerer process, and end it. `mark`: prefix of the counted records."""
    log = structlog.get_logger(logger_name="bench")
    process = Triggerer.start(job=None, capacity=5000, logger=log)
    process.records = Records(mark)
    try:
        yield process
    finally:
        process.kill(escalation_delay=5, force=True)


class Empty(BaseTrigger):
    """The smallest trigger, which only waits: its cost is Airflow's."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "triggerer.Empty", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(3600)
        yield TriggerEvent({})


class Probe(BaseTrigger):
    """Measures its own process for a while: lag of the loop, time of its log calls, CPU, memory.

    Args:
        seconds: how long.
        logs: whether it logs too, as another trigger would.
    """

    def __init__(self, seconds: float, logs: bool = False) -> None:
        super().__init__()
        self.seconds = seconds
        self.logs = logs

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "triggerer.Probe", {"seconds": self.seconds, "logs": self.logs}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        lags, calls = [], []
        start, cpu = time.monotonic(), cpu_s()
        while (before := time.monotonic()) - start < self.seconds:
            await asyncio.sleep(LAG_STEP_S)
            lags.append(time.monotonic() - before - LAG_STEP_S)
            if self.logs:
                before = time.monotonic()
                self.log.info("another trigger says something")
                calls.append(time.monotonic() - before)
        end, used = time.monotonic(), cpu_s() - cpu
        gc.collect()
        seen = {"lags": lags, "calls": calls, "start": start, "end": end, "cpu": used, "rss": rss()}
        yield TriggerEvent(seen)


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss() -> int:
    """Return the bytes of memory of this process that are not mapped from files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
