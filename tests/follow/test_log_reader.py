"""When a log is read next."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from airflow_provider_launch.follow.events import LogGap
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers.api import LogChunk


def test_an_end_that_comes_in_the_middle_of_a_read_is_read_at_once():
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


@pytest.mark.parametrize("answer", [None, iter(()), LogChunk([3], None)], ids=["none", "iterator", "no lines"])
def test_an_answer_that_is_no_chunk_is_a_gap(answer):
    """A triggerer reads the logs of all apps on a few threads, which must not end by a plug-in's mistake."""
    scheduler = SimpleNamespace(backend="odd", poll_interval_s=1.0, read_logs=lambda *_place, **_how: answer)
    reader = LogReader(
        scheduler, "app-1", threading.Condition(), cursors={}, streams=None, from_now=False, own_thread=False
    )
    reader.want([("main", 0)], existing=False)
    reader.step()

    item = reader.pop()
    assert item is not None
    assert isinstance(item.event, LogGap)
    assert reader.incomplete()
