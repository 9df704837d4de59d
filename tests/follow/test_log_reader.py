"""When a log is read next."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers.api import LogChunk


def test_an_end_that_comes_in_the_middle_of_a_read_is_looked_at_at_once():
    """Such a read says nothing about the end, and the next one must not wait for the slow step of a quiet log."""

    def read_logs(*_place, **_how) -> LogChunk:
        if not reads:
            reader.finish()
        reads.append(reader)
        return LogChunk([], None)

    reads: list[LogReader] = []
    scheduler = SimpleNamespace(backend="slow", poll_interval_s=10.0, read_logs=read_logs)
    reader = LogReader(
        scheduler, "app-1", threading.Condition(), cursors={}, streams=None, from_now=False, own_thread=False
    )
    reader.want([("main", 0)], existing=False)
    reader.step()

    assert not reader.done()
    assert reader.due_in() <= 0
    reader.step()
    assert reader.incomplete() == []
    assert len(reads) == 2
