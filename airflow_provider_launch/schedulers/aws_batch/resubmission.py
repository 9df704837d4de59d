"""Submits the next attempt of a multi-node app, exactly once, from its observers."""

from __future__ import annotations

import logging
import time

from airflow_provider_launch.schedulers.aws_batch.catalog import Known
from airflow_provider_launch.schedulers.aws_batch.claims import Claims
from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.schedulers.aws_batch.naming import Tag, definition_name
from airflow_provider_launch.schedulers.aws_batch.status import CANCELLED

log = logging.getLogger(__name__)


class Resubmission:
    """Claims attempts as launches do, but without waiting: a later poll continues."""

    def __init__(self, aws: Aws, claims: Claims, wait_s: float) -> None:
        self._aws = aws
        self._claims = claims
        self._wait_s = wait_s
        self._seen: dict[tuple[str, int], float] = {}
        """App and attempt to the time when its claim was first seen without a job."""
        self._fences: dict[tuple[str, int], tuple[float, int]] = {}
        """App and attempt to the time when older claims were made inactive, and our own revision."""

    def work(self, known: Known) -> bool:
        """Submit the next attempt; return whether the app was cancelled instead."""
        request, attempt = known.request, known.attempt + 1
        if self._is_cancelled(known):
            return True
        job = self._claims.find(request, attempt)
        job_id = job["jobId"] if job else self._submit(known, attempt)
        if job_id is None:
            return False
        key = (known.app_id, attempt)
        self._seen.pop(key, None)
        self._fences.pop(key, None)
        log.info("app %s: attempt %d is job %s", known.app_id, attempt, job_id)
        known.jobs[attempt] = job or {
            "jobId": job_id, "status": "SUBMITTED", "jobName": known.app_id, "createdAt": self._aws.now() * 1000,
        }  # fmt: skip
        if job is None and self._is_cancelled(known):
            # The cancel came between our poll and the submission, so it has not ended this job.
            self._aws.terminate(job_id, CANCELLED)
        return False

    def _submit(self, known: Known, attempt: int) -> str | None:
        """Return the id of the submitted job; None if the claim is not ready, or another observer has it."""
        request, key, now = known.request, (known.app_id, attempt), time.monotonic()
        name = definition_name(known.app_id, attempt)
        if fence := self._fences.get(key):
            since, own = fence
            return self._claims.submit(request, attempt, own) if now - since > self._wait_s else None
        if not self._aws.active(name):
            revision = self._claims.register(request, attempt)
            if revision == 1:
                return self._claims.submit(request, attempt, revision)
            self._aws.deregister(name, revision)
        since = self._seen.setdefault(key, now)
        if now - since > self._wait_s:
            own = self._claims.register(request, attempt)
            for lower in range(1, own):
                self._aws.deregister(name, lower)
            self._fences[key] = now, own
        return None

    def _is_cancelled(self, known: Known) -> bool:
        records = self._aws.active(definition_name(known.app_id))
        known.cancelled = any(str(Tag.CANCELLED) in one.get("tags", {}) for one in records)
        return known.cancelled
