"""Watching apps: state changes, log lines, and the cursors from which another process continues."""

from __future__ import annotations

from airflow_provider_launch.follow.events import (
    AttemptEnded,
    Ended,
    Event,
    LogGap,
    LogLines,
    Reached,
    StateChanged,
    Tick,
    Unfinished,
    Unreachable,
)
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poll_schedule import Answer
from airflow_provider_launch.follow.poller import Poller, poll_many

__all__ = [
    "Answer",
    "AttemptEnded",
    "Ended",
    "Event",
    "Follower",
    "LogGap",
    "LogLines",
    "Poller",
    "Reached",
    "StateChanged",
    "Tick",
    "Unfinished",
    "Unreachable",
    "poll_many",
]
