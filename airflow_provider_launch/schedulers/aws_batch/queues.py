"""Reads why jobs wait in a queue, once a minute for all jobs of a queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError

_KEPT_S = 60.0
_BUSY_S = 10.0
"""Seconds until the queue is read again if AWS did not answer."""
_WAITS_S = 20.0
"""Seconds that a job may wait before the reason is read."""
_STARTING = "STARTING: its host pulls the image or starts the container"


@dataclass
class _Queue:
    """The cached state of one queue."""

    due_at: float = 0.0
    blocker: str = ""
    """Why none of its jobs can start; empty if they can."""
    positions: dict[str, int] = field(default_factory=dict)
    """Job id to its position in the queue."""


class Queues:
    """The cache of the queues of waiting apps."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._queues: dict[str, _Queue] = {}

    def reason(self, queue: str, job: Mapping[str, Any]) -> str:
        """Return why a job waits that has no reason itself; empty if unknown, or if it has just started to wait."""
        if job["status"] == "RUNNING" or self._aws.now() - job["createdAt"] / 1000 < _WAITS_S:
            return ""
        if job["status"] == "STARTING":
            return _STARTING
        known = self._queues.setdefault(queue, _Queue())
        if time.monotonic() >= known.due_at:
            self._refresh(queue, known)
        if known.blocker:
            return f"{job['status']}: {known.blocker}"
        position = known.positions.get(job["jobId"])
        return f"{job['status']}: position {position} in queue {queue!r}" if position else ""

    def _refresh(self, queue: str, known: _Queue) -> None:
        known.due_at = time.monotonic() + _KEPT_S
        try:
            known.blocker = _blocker(queue, self._aws.queue(queue))
            waiting = [] if known.blocker else self._aws.front_of_queue(queue)
            known.positions = {job_id: number for number, job_id in enumerate(waiting, 1)}
        except SchedulerUnavailableError:
            # Keep the cached state, and read it again sooner.
            known.due_at = time.monotonic() + _BUSY_S
        except LaunchError:  # the permission for this is optional
            return


def _blocker(queue: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"queue {queue!r} does not exist"
    if found.get("state") == "DISABLED":
        return f"queue {queue!r} is disabled"
    if found.get("status") == "INVALID":
        return f"queue {queue!r} is invalid: {found.get('statusReason') or 'AWS gives no reason'}"
    return ""
