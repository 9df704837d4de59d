"""Claims apps: only the process with the first revision of the job definition submits the app.

SubmitJob has no idempotency token, and ListJobs may show a new job late. But each revision of a definition is given
once, and an inactive revision cannot be submitted. So the process that gets revision 1 submits. Other processes search
for its job, and replace the claim only if no job appears for a long time: they make the lower revisions inactive, check
again, and submit with their own revision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.refusals import deleted_meanwhile, refuse_other_spec
from airflow_provider_launch.schedulers.aws_batch.client import Aws, LostAnswerError, RefusedError
from airflow_provider_launch.schedulers.aws_batch.naming import Tag, definition_name, job_name
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest
from airflow_provider_launch.schedulers.aws_batch.status import CANCELLED
from airflow_provider_launch.specs.errors import AppConflictError, LaunchError, SchedulerRejectedError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.aws_batch.catalog import CachedApp

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_FORGOTTEN_S = 24 * 3600.0
_RECENT_S, _LISTED_S = 600.0, 10.0
"""Age of a claim whose job may have been submitted just now, and the time until Batch lists a job for sure."""
_DELETED = "launch: the app was deleted while it was submitted"
_SECOND = "launch: a second job of this name; the first one stays"

Job = dict[str, Any]


def is_deleted(job: Mapping[str, Any]) -> bool:
    """Return whether the job belongs to a deleted app."""
    return str(Tag.DELETED) in job.get("tags", {})


class Claims:
    """Submits attempts of apps, each once."""

    def __init__(self, aws: Aws, wait_s: float) -> None:
        self._aws = aws
        self.wait_s = wait_s

    def claim(self, request: AwsBatchRequest, attempt: int = 0) -> str | None:
        """Submit an attempt of the app, or adopt its job, and return the id of the job; None if it was cancelled.

        Raises:
            AppConflictError: the id belongs to another app.
            SchedulerRejectedError: AWS refuses the job, or has removed the ended app.
            SchedulerUnavailableError: AWS is unreachable.
        """
        revision = self.register(request, attempt)
        if revision == 1:
            found = self.submit(request, attempt, revision)
            if found is not None:
                self._end_if_deleted(request, attempt, revision, found)
                return found
            return self._adopt_or_replace(request, attempt, self.register(request, attempt), was_claimed=True)
        return self._adopt_or_replace(request, attempt, revision)

    def register(self, request: AwsBatchRequest, attempt: int = 0, *, cancelled: bool = False) -> int:
        """Register a revision of the definition."""
        return self._aws.register(request.definition(attempt, int(self._aws.now()), cancelled=cancelled))

    def submit(self, request: AwsBatchRequest, attempt: int, revision: int) -> str | None:
        """Return the id of the job; None if another revision has replaced this one, or the answer was lost."""
        name = definition_name(request.app_id, attempt)
        try:
            return self._aws.submit(request.submission(attempt, revision))
        except LostAnswerError as error:
            log.warning("app %s: %s; searching for its job", request.app_id, error)
            return None
        except RefusedError:
            if revision not in {int(one["revision"]) for one in self._aws.active(name)}:
                return None
            self._aws.deregister(name, revision)
            raise
        except SchedulerRejectedError:
            with suppress(LaunchError):  # raise the refusal instead
                self._aws.deregister(name, revision)
            raise

    def _adopt_or_replace(
        self, request: AwsBatchRequest, attempt: int, own: int, *, was_claimed: bool = False
    ) -> str | None:
        name = definition_name(request.app_id, attempt)
        while True:
            active = self._aws.active(name)
            rivals = [one for one in active if int(one["revision"]) < own]
            if was_claimed and not rivals:
                return self._adopt_of_later(request, attempt, own, active)
            for rival in rivals:
                self._check(request, rival, own, name)
            if any(str(Tag.CANCELLED) in rival["tags"] for rival in rivals):
                self._aws.deregister(name, own)
                return None
            if rivals and (found := self._wait_for(request, attempt, own)):
                # The other claim is the record, so remove ours.
                self._aws.deregister(name, own)
                return found
            for revision in range(1, own) if rivals else ():
                self._aws.deregister(name, revision)
            if found := self._wait_for(request, attempt, own):
                return found
            if found := self.submit(request, attempt, own):
                self._end_if_deleted(request, attempt, own, found)
                return found
            own, was_claimed = self.register(request, attempt), True

    def _adopt_of_later(
        self, request: AwsBatchRequest, attempt: int, own: int, active: Iterable[Mapping[str, Any]]
    ) -> str | None:
        """Return the id of the job of a submitter that has removed our claim.

        That submitter, or a later one, has its own claim and owns the app. Only a deletion leaves no claim.
        """
        name = definition_name(request.app_id, attempt)
        self._aws.deregister(name, own)
        later = [one for one in active if int(one["revision"]) > own]
        if not later:
            raise deleted_meanwhile(request.app_id)
        for one in later:
            self._check(request, one, own, name)
        return self._wait_for(request, attempt, own)

    def _end_if_deleted(self, request: AwsBatchRequest, attempt: int, revision: int, job_id: str) -> None:
        """End a job whose app was cancelled or deleted before it was listed, so that the cancel has missed it."""
        name = definition_name(request.app_id, attempt)
        if not self._aws.is_inactive(name, revision):
            return
        active = self._aws.active(name)
        if not active:
            self._aws.terminate(job_id, _DELETED)
            raise deleted_meanwhile(request.app_id)
        # Else another submitter has replaced this one, and the first of the two jobs stays.
        if any(str(Tag.CANCELLED) in one["tags"] for one in active):
            self._aws.terminate(job_id, CANCELLED)

    def _check(self, request: AwsBatchRequest, rival: Mapping[str, Any], own: int, name: str) -> None:
        tags = rival["tags"]
        try:
            refuse_other_spec("aws_batch", request.app_id, request.spec_hash, tags.get(str(Tag.SPEC_HASH)))
        except AppConflictError:
            self._aws.deregister(name, own)
            raise
        age_s = self._aws.now() - float(tags.get(str(Tag.SUBMITTED), 0))
        if age_s > _FORGOTTEN_S and not self.find(request, 0):
            self._aws.deregister(name, own)
            raise SchedulerRejectedError(
                f"app {request.app_id!r} was launched {age_s / 3600:.0f} hours ago, has ended, and AWS Batch has "
                f"forgotten how; delete it to launch it again, or choose another id"
            )

    def _wait_for(self, request: AwsBatchRequest, attempt: int, own: int) -> str | None:
        """Wait for the job of another claim to be listed, and return its id; None if none appears in time."""
        deadline = time.monotonic() + self.wait_s
        while True:
            if found := self.find(request, attempt):
                name = definition_name(request.app_id, attempt)
                try:
                    refuse_other_spec(
                        "aws_batch", request.app_id, request.spec_hash, found["tags"].get(str(Tag.SPEC_HASH))
                    )
                except AppConflictError:
                    self._aws.deregister(name, own)
                    raise
                return str(found["jobId"])
            if time.monotonic() > deadline:
                return None
            time.sleep(min(_PAUSE_S, self.wait_s / 5))

    def find(self, request: AwsBatchRequest, attempt: int) -> Job | None:
        """Return the job of an attempt if it is listed; if there are two, end the second one."""
        name = job_name(request.app_id, attempt)
        found = [row for row in self._aws.jobs_named(request.queue, name) if row["jobName"] == name]
        return self.elected(self._aws.describe(row["jobId"] for row in found).values())

    def find_late(self, request: AwsBatchRequest, claims: Iterable[Mapping[str, Any]]) -> Job | None:
        """Return the first job of an app whose claims were removed, which may have been submitted just before that.

        Batch lists a job some time after its submission, so this waits for jobs of recent claims.
        """
        claimed_at = max((float(one.get("tags", {}).get(str(Tag.SUBMITTED), 0)) for one in claims), default=0.0)
        is_recent = self._aws.now() - claimed_at < _RECENT_S
        deadline = time.monotonic() + (min(_LISTED_S, self.wait_s) if is_recent else 0)
        while (found := self.find(request, 0)) is None and time.monotonic() < deadline:
            time.sleep(min(_PAUSE_S, self.wait_s / 5))
        return found

    def elected(self, jobs: Iterable[Job]) -> Job | None:
        """Return the job to keep of several jobs of one attempt, and end the others.

        Every process that lists the same jobs keeps the same one: the oldest, or the one with the smallest id.
        """
        alive = sorted((job for job in jobs if not is_deleted(job)), key=lambda job: (job["createdAt"], job["jobId"]))
        for job in alive[1:]:
            if job["status"] not in {"SUCCEEDED", "FAILED"}:
                log.warning("app %s: job %s is a duplicate and will be ended", job["jobName"], job["jobId"])
                self._aws.terminate(job["jobId"], _SECOND)
        return alive[0] if alive else None


class Resubmission:
    """Submits later attempts of multi-node apps from their observers: claims as launches do, but without waiting.

    A later poll continues.
    """

    def __init__(self, aws: Aws, claims: Claims, wait_s: float) -> None:
        self._aws = aws
        self._claims = claims
        self._wait_s = wait_s
        self._seen: dict[tuple[str, int], float] = {}
        """App and attempt to the time when its claim was first seen without a job."""
        self._fences: dict[tuple[str, int], tuple[float, int]] = {}
        """App and attempt to the time when older claims were made inactive, and our own revision."""

    def work(self, cached: CachedApp) -> bool:
        """Submit the next attempt; return whether the app was cancelled instead."""
        request, attempt = cached.request, cached.attempt + 1
        if self._is_cancelled(cached):
            return True
        job = self._claims.find(request, attempt)
        job_id = job["jobId"] if job else self._submit(cached, attempt)
        if job_id is None:
            return False
        key = (cached.app_id, attempt)
        self._seen.pop(key, None)
        self._fences.pop(key, None)
        log.info("app %s: attempt %d is job %s", cached.app_id, attempt, job_id)
        cached.jobs[attempt] = job or {
            "jobId": job_id, "status": "SUBMITTED", "jobName": cached.app_id, "createdAt": self._aws.now() * 1000,
        }  # fmt: skip
        if job is None and self._is_cancelled(cached):
            # The cancel came between our poll and the submission, so it has not ended this job.
            self._aws.terminate(job_id, CANCELLED)
        return False

    def _submit(self, cached: CachedApp, attempt: int) -> str | None:
        """Return the id of the submitted job; None if the claim is not ready, or another observer has it."""
        request, key, now = cached.request, (cached.app_id, attempt), time.monotonic()
        name = definition_name(cached.app_id, attempt)
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

    def _is_cancelled(self, cached: CachedApp) -> bool:
        records = self._aws.active(definition_name(cached.app_id))
        cached.cancelled = any(str(Tag.CANCELLED) in one.get("tags", {}) for one in records)
        return cached.cancelled
