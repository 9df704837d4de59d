"""Lines of a program next to the end marks in its log. No server is needed."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.jobs import AttemptLog
from airflow_provider_launch.schedulers.aws_batch.log_reader import CloudWatchLogs, LogMarks
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup

MARK = "launch-0123abcd"


class Log:
    """A log with endless pages."""

    def __init__(self, text: str, events: int) -> None:
        self._page = [{"timestamp": 1, "message": text}] * events
        self._tokens = itertools.count()

    def log_events(self, *_where: Any, **_how: Any) -> dict[str, Any]:
        time.sleep(0.01)
        return {"events": self._page, "nextForwardToken": str(next(self._tokens))}

    def now(self) -> float:
        return 1000.0


def documents(log: Any) -> tuple[dict[str, list[str]], bool, float]:
    began = time.monotonic()
    attempt = AttemptLog(LogGroup("group", None), "stream", 999.0)
    found, ended = CloudWatchLogs(log).documents([attempt], LogMarks(MARK), limit_s=0.5)["stream"]
    return found, ended, time.monotonic() - began


def test_a_log_without_an_end_is_read_for_a_limited_time() -> None:
    """Polls of other apps of the connection wait meanwhile."""
    _, ended, took_s = documents(Log("a line", 10))

    assert not ended
    # Much less than an endless wait; the machine may be busy.
    assert took_s < 30


def test_forged_marks_take_little_memory() -> None:
    found, _, _ = documents(Log(f"{MARK}-error:" + "x" * 10_000, 100))

    assert sum(len(text) for texts in found.values() for text in texts) <= 256 * 1024
    assert SimpleNamespace(**found).error
