"""Why a job waits in its queue, asked for rarely: once a minute for all jobs of a queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError

_KEPT_S = 60.0
_BUSY_S = 10.0
"""After this the queue is asked again when AWS did not answer."""
_WAITS_S = 20.0
"""A job that waits shorter is not asked about."""
_STARTING = "STARTING: its host pulls the image or starts the container"


@dataclass
class _Queue:
    """What is known of one queue."""

    due_at: float = 0.0
    hindrance: str = ""
    """What keeps all its jobs from being started."""
    places: dict[str, int] = field(default_factory=dict)
    """Job id to its place among those that wait."""


class Queues:
    """What is known of the queues of the apps that wait."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._queues: dict[str, _Queue] = {}

    def reason(self, queue: str, job: Mapping[str, Any]) -> str:
        """Return why a job waits that gives no reason itself; empty: it is not known, or it does not wait long.

        Args:
            queue: name or ARN.
            job: as Batch describes it.
        """
        if job["status"] == "RUNNING" or self._aws.now() - job["createdAt"] / 1000 < _WAITS_S:
            return ""
        if job["status"] == "STARTING":
            return _STARTING
        known = self._queues.setdefault(queue, _Queue())
        if time.monotonic() >= known.due_at:
            self._refresh(queue, known)
        if known.hindrance:
            return f"{job['status']}: {known.hindrance}"
        place = known.places.get(job["jobId"])
        return f"{job['status']}: number {place} of those that wait in queue {queue!r}" if place else ""

    def _refresh(self, queue: str, known: _Queue) -> None:
        known.due_at = time.monotonic() + _KEPT_S
        try:
            known.hindrance = _hindrance(queue, self._aws.queue(queue))
            known.places = {} if known.hindrance else {it: n for n, it in enumerate(self._aws.front_of_queue(queue), 1)}
        except SchedulerUnavailableError:
            # What was known stays, and is asked for again sooner.
            known.due_at = time.monotonic() + _BUSY_S
        except LaunchError:  # an extra, which the policy need not allow
            return


def _hindrance(queue: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"there is no queue {queue!r}"
    if found.get("state") == "DISABLED":
        return f"queue {queue!r} is disabled"
    if found.get("status") == "INVALID":
        return f"queue {queue!r} is invalid: {found.get('statusReason') or 'AWS gives no reason'}"
    return ""
