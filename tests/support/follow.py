"""Helpers that run a follower in a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from airflow_provider_launch.follow.events import Event, LogLines, StateChanged
from airflow_provider_launch.follow.follower import Follower


def collect(follower: Follower, limit_s: float = 10.0) -> list[Event]:
    """Return all events up to the last one."""
    return list(_limited(follower, limit_s))


def until(follower: Follower, wanted: Callable[[Event], bool], limit_s: float = 10.0) -> list[Event]:
    """Return the events up to the first wanted one; the follower can continue afterwards."""
    events = []
    for event in _limited(follower, limit_s):
        events.append(event)
        if wanted(event):
            return events
    raise AssertionError(f"it never came; there were {events}")


def _limited(follower: Follower, limit_s: float) -> Iterator[Event]:
    deadline = time.monotonic() + limit_s
    for event in follower:
        yield event
        if time.monotonic() > deadline:
            raise AssertionError(f"not ended within {limit_s} s, last event {event}")


def states(events: list[Event]) -> list[str]:
    """Return the names of the states in the order of their events."""
    return [str(event.new) for event in events if isinstance(event, StateChanged)]


def texts(events: list[Event], role: str = "worker", replica: int = 0) -> list[str]:
    """Return the lines of one replica in the order of their events."""
    return [
        line.text
        for event in events
        if isinstance(event, LogLines) and (event.role, event.replica) == (role, replica)
        for line in event.lines
    ]


def launch_threads() -> list[str]:
    """Return the names of the helper threads of followers that are alive."""
    kinds = ("launch-status-", "launch-logs-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(kinds)]
