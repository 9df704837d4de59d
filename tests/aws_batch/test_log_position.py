"""The position in a shared stream, without an engine."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.log_feed import _Stream
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup


def event(at: int, number: int) -> dict[str, Any]:
    return {"timestamp": at, "eventId": str(number), "message": "x", "logStreamName": "s"}


def new_stream(ids: list[Any] | None = None) -> _Stream:
    return _Stream.at(LogGroup("g"), "s", {"m": 1000, "f": 1000, "i": ids or []})


def test_a_flood_in_one_millisecond_leaves_a_short_position() -> None:
    """A job that may write to CloudWatch chooses the times of its events."""
    stream = new_stream()
    for number in range(30_000):
        stream.add(event(1000, number))
    position = stream.state()

    assert len(json.dumps(position)) < 300_000
    following = _Stream.at(LogGroup("g"), "s", position)
    for number in range(30_000):
        following.add(event(1000, number))
    following.add(event(1001, 30_000))
    assert [one["timestamp"] for one in following.events] == [1001], "no line comes twice, or is lost later"


def test_all_ids_of_a_millisecond_are_kept_up_to_a_limit() -> None:
    stream = new_stream()
    for number in range(5000):
        stream.add(event(1000, number))

    assert len(stream.state()["i"]) == 5000


def test_a_stored_position_of_many_ids_takes_little_memory() -> None:
    assert len(new_stream([[1000, f"{number:08x}"] for number in range(100_000)]).seen) == 10_000
