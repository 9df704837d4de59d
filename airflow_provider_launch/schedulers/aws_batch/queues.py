"""Why a job waits in its queue, asked for rarely: once a minute for all jobs of a queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.specs.errors import LaunchError

__all__ = ["Queues"]

_KEPT_S = 60.0
_WAITS_S = 20.0
"""A job that waits shorter is not asked about."""
_STARTING = "STARTING: its host pulls the image or starts the container"


class Queues:
    """What is known of the queues of the apps that wait."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._known: dict[str, tuple[float, str, dict[str, int]]] = {}

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
        asked_at, state, places = self._known.get(queue, (0.0, "", {}))
        if not asked_at or time.monotonic() - asked_at > _KEPT_S:
            state, places = self._ask(queue)
            self._known[queue] = time.monotonic(), state, places
        if state:
            return f"{job['status']}: {state}"
        place = places.get(job["jobId"])
        return f"{job['status']}: number {place} of those that wait in queue {queue!r}" if place else ""

    def _ask(self, queue: str) -> tuple[str, dict[str, int]]:
        """Return what hinders all jobs of the queue, and job id to place in it; nothing where that may not be asked."""
        try:
            found = self._aws.queue(queue)
            if found is None:
                return f"there is no queue {queue!r}", {}
            if found.get("state") == "DISABLED":
                return f"queue {queue!r} is disabled", {}
            if found.get("status") == "INVALID":
                return f"queue {queue!r} is invalid: {found.get('statusReason') or 'AWS gives no reason'}", {}
            return "", {job_id: n for n, job_id in enumerate(self._aws.front_of_queue(queue), 1)}
        except LaunchError:  # an extra, which the policy need not allow
            return "", {}
