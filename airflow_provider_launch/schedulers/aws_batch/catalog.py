"""The cache of apps, and the requests that fill it."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.claims import Claims, is_deleted
from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.schedulers.aws_batch.jobs import Replica, has_ended, replica_id, replicas_of
from airflow_provider_launch.schedulers.aws_batch.naming import APP_ID, Tag, attempt_of, definition_name
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest, request_in
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.util.untrusted import UntrustedError, parse_int

Job = dict[str, Any]

_FEW = 2
_MANY = 100
"""Maximum number of children or nodes that one request describes."""
_LIVE_STATES, _END_STATES = ("STARTING", "RUNNING"), ("SUCCEEDED", "FAILED")
"""States by which many parts are listed, in this order, so that a part that changes meanwhile is not missed."""
_SHORTEST_PREFIX = 4
_KEPT_APPS = 5000


@dataclass
class CachedApp:
    """The cached facts about one app."""

    app_id: str
    request: AwsBatchRequest
    cancelled: bool = False
    """Whether its record is marked as cancelled."""
    revisions: list[int] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    """Attempt of the app to its job, as last read."""
    parts: dict[str, Job] = field(default_factory=dict)
    """Id to child or node, as last read."""
    seen_at: dict[int, float] = field(default_factory=dict)
    """Attempt to the time when its job and parts were read."""
    summary: Any = None
    """Number of children in each state, when the children were read."""
    unlisted_since: float | None = None
    """Since when the app has a record but no job."""
    missing_since: float | None = None
    """Since when Batch no longer has the job."""
    final: DescribeAppResponse | None = None
    log_denied: bool = False
    """Whether a missing permission to read the log was reported."""

    @property
    def attempt(self) -> int:
        """The current attempt of the app."""
        return max(self.jobs, default=0)

    def replicas(self, attempt: int) -> Sequence[Replica]:
        """Return the replicas of an attempt."""
        return replicas_of(self.request, self.jobs[attempt], self.parts)


class Catalog:
    """The cached apps by id; others are looked up by their records, then by the names of their jobs."""

    def __init__(self, aws: Aws, claims: Claims) -> None:
        self._aws = aws
        self._claims = claims
        self.mutex = threading.RLock()
        self._apps: dict[str, CachedApp] = {}

    def get(self, app_id: str) -> CachedApp | None:
        """Return the cached app, without a request."""
        return self._apps.get(app_id)

    def forget(self, app_id: str) -> None:
        """Drop the app from the cache."""
        self._apps.pop(app_id, None)

    def remember(self, request: AwsBatchRequest, job_id: str | None) -> None:
        """Cache a new app with its job."""
        cached = CachedApp(request.app_id, request)
        if job_id is not None:
            cached.jobs[0] = {"jobId": job_id, "status": "SUBMITTED", "jobName": request.app_id, "createdAt": 0}
        self._apps[request.app_id] = cached

    def refresh(self, app_ids: Iterable[str]) -> dict[str, CachedApp]:
        """Return the apps that exist, with their current jobs, children and nodes."""
        ids = [app_id for app_id in dict.fromkeys(app_ids) if APP_ID.fullmatch(app_id)]
        self._poll([self._apps[app_id] for app_id in ids if app_id in self._apps])
        unknown = [app_id for app_id in ids if app_id not in self._apps or not self._apps[app_id].jobs]
        if unknown:
            self._find(unknown)
        found = {app_id: self._apps[app_id] for app_id in ids if app_id in self._apps}
        self._tidy([*found])
        return found

    def _tidy(self, used: Sequence[str]) -> None:
        """Drop the apps that were not read for longest: a triggerer runs for months, and each list reads all apps."""
        for app_id in used:
            self._apps[app_id] = self._apps.pop(app_id)
        for app_id in [*self._apps][: -max(_KEPT_APPS, len(used))]:
            del self._apps[app_id]

    # ---- cached apps ------------------------------------------------------------------------------------------------

    def _poll(self, apps: Sequence[CachedApp]) -> None:
        asked = time.monotonic()
        submitted = [cached for cached in apps if cached.jobs]
        wanted: dict[str, CachedApp] = {}
        for cached in submitted:
            wanted[cached.jobs[cached.attempt]["jobId"]] = cached
            if cached.request.layout == "multi-node" and len(nodes := self._live_parts(cached)) <= _MANY:
                wanted |= dict.fromkeys(nodes, cached)
        if not wanted:
            return
        found = self._aws.describe(wanted)
        parts: dict[str, dict[str, Job]] = {}
        for job_id, job in found.items():
            parts.setdefault(wanted[job_id].app_id, {})[job_id] = job
        again = [cached for cached in submitted if self._take(cached, parts.get(cached.app_id, {}), asked)]
        self._read_parts(again, asked)

    def _take(self, cached: CachedApp, found: dict[str, Job], asked: float) -> bool:
        """Cache the answer of Batch about an app; return whether its children or nodes must be read, too."""
        job = found.pop(cached.jobs[cached.attempt]["jobId"], None)
        if job is not None and is_deleted(job):
            self.forget(cached.app_id)
            return False
        cached.seen_at[cached.attempt] = asked
        cached.parts |= found
        if job is None:
            self._miss(cached, asked)
            return False
        cached.missing_since = None
        cached.jobs[cached.attempt] = job
        if cached.request.layout == "array":
            return self._news(cached, job)
        if cached.request.layout != "multi-node":
            return False
        # Few nodes were read together with their job, possibly before its end.
        left = len(self._live_parts(cached))
        return left > _MANY or (has_ended(job) and left > 0)

    def _miss(self, cached: CachedApp, asked: float) -> None:
        """Handle a job that Batch no longer has: keep the cache if it had ended, else drop it after a while."""
        if has_ended(cached.jobs[cached.attempt]):
            return
        # Batch may show a new job late.
        cached.missing_since = cached.missing_since or asked
        if asked - cached.missing_since > self._claims.wait_s:
            self.forget(cached.app_id)

    def _read_parts(self, apps: Sequence[CachedApp], asked: float) -> None:
        wanted = {job_id: cached for cached in apps for job_id in self._changed_parts(cached)}
        for job_id, part in (self._aws.describe(wanted) if wanted else {}).items():
            wanted[job_id].parts[job_id] = part
        for cached in apps:
            cached.seen_at[cached.attempt] = asked

    @staticmethod
    def _news(cached: CachedApp, job: Job) -> bool:
        """Return whether children have changed their states, according to the summary of their parent."""
        summary = job.get("arrayProperties", {}).get("statusSummary")
        if summary == cached.summary and not has_ended(job):
            return False
        cached.summary = summary
        return True

    def _changed_parts(self, cached: CachedApp) -> builtins.list[str]:
        """Return the ids of children or nodes to read; if there are many, those that changed according to lists."""
        live = self._live_parts(cached)
        if len(live) <= _MANY:
            return live
        job = cached.jobs[cached.attempt]
        counts = job.get("arrayProperties", {}).get("statusSummary")
        left, changed = set(live), []
        # If all run, they can only end.
        began = all(one in cached.parts and cached.parts[one]["status"] == "RUNNING" for one in live)
        for state in _END_STATES if began else (*_LIVE_STATES, *_END_STATES):
            seen = sum(part["status"] == state for part in cached.parts.values())
            if counts is not None and counts.get(state, 0) == seen:
                continue
            for row in self._aws.parts(job["jobId"], cached.request.layout, state):
                old = cached.parts.get(row["jobId"])
                if row["jobId"] in left and (old is None or old["status"] != state):
                    changed.append(row["jobId"])
        return changed

    @staticmethod
    def _live_parts(cached: CachedApp) -> builtins.list[str]:
        if cached.request.layout == "single" or not cached.jobs:
            return []
        job_id = cached.jobs[cached.attempt]["jobId"]
        ids = (replica_id(cached.request, job_id, number) for number in range(len(cached.request.replica_keys)))
        return [one for one in ids if one not in cached.parts or not has_ended(cached.parts[one])]

    # ---- other apps --------------------------------------------------------------------------------------------------

    def _find(self, app_ids: Sequence[str]) -> None:
        records = self.records(app_ids)
        by_queue: dict[str, builtins.list[CachedApp]] = {}
        for app_id in app_ids:
            cached = self._from_records(app_id, records.get(app_id, []))
            if cached is None:
                self.forget(app_id)
            else:
                old = self._apps.get(app_id)
                cached.unlisted_since = old.unlisted_since if old else None
                self._apps[app_id] = cached
                by_queue.setdefault(cached.request.queue, []).append(cached)
        for queue, apps in by_queue.items():
            self._find_jobs(queue, apps)

    def records(self, app_ids: Sequence[str]) -> dict[str, builtins.list[Job]]:
        """Return the active definitions of apps, in ascending order of their revisions."""
        found: dict[str, builtins.list[Job]] = {}
        missing = list(app_ids)
        if len(missing) > _FEW:
            names = {definition_name(app_id): app_id for app_id in missing}
            for one in self._aws.first_revisions(names):
                found[names[one["jobDefinitionName"]]] = [one]
            missing = [app_id for app_id in missing if app_id not in found]
        for app_id in missing:
            if active := self._aws.active(definition_name(app_id)):
                found[app_id] = active
        return found

    @staticmethod
    def _from_records(app_id: str, records: Sequence[Job]) -> CachedApp | None:
        for record in records:
            request = request_in(record)
            if request is not None and request.app_id == app_id:
                cancelled = any(str(Tag.CANCELLED) in one.get("tags", {}) for one in records)
                return CachedApp(app_id, request, cancelled, [int(one["revision"]) for one in records])
        return None

    def _find_jobs(self, queue: str, apps: Sequence[CachedApp]) -> None:
        """Find the jobs of apps by their names: a few apps one by one, many by a common prefix."""
        rows: dict[str, builtins.list[Job]] = {cached.app_id: [] for cached in apps}
        left = dict.fromkeys(rows)
        prefix = _common_prefix(list(rows))
        if len(apps) > _FEW and len(prefix) >= _SHORTEST_PREFIX:
            for row in self._aws.jobs_named(queue, f"{prefix}*"):
                app_id = row["jobName"].partition("_")[0]
                if app_id in rows:
                    rows[app_id].append(row)
                    left.pop(app_id, None)
                if not left:
                    break
        for app_id in left:
            resubmits = self._apps[app_id].request.resubmits
            for row in self._aws.jobs_named(queue, f"{app_id}*" if resubmits else app_id):
                if attempt_of(app_id, row["jobName"]) is not None:
                    rows[app_id].append(row)
        self._add_jobs(rows)

    def _add_jobs(self, rows: dict[str, builtins.list[Job]]) -> None:
        asked = time.monotonic()
        found = self._aws.describe(row["jobId"] for group in rows.values() for row in group)
        new = []
        for app_id, group in rows.items():
            cached = self._apps[app_id]
            jobs = [found[row["jobId"]] for row in group if row["jobId"] in found]
            if self._was_deleted(cached, jobs):
                self.forget(app_id)
                continue
            attempts: dict[int, builtins.list[Job]] = {}
            for job in jobs:
                attempt = attempt_of(app_id, job["jobName"])
                if attempt is not None:
                    attempts.setdefault(attempt, []).append(job)
            for attempt, same in attempts.items():
                if (winner := self._claims.elected(same)) is not None:
                    cached.jobs[attempt] = winner
            if cached.jobs:
                cached.unlisted_since = None
                cached.seen_at[cached.attempt] = asked
                new.append(cached)
            elif cached.unlisted_since is None:
                cached.unlisted_since = asked
        self._read_parts([cached for cached in new if cached.request.layout != "single"], asked)
        for cached in new:
            cached.summary = cached.jobs[cached.attempt].get("arrayProperties", {}).get("statusSummary")

    @staticmethod
    def _was_deleted(cached: CachedApp, jobs: Sequence[Job]) -> bool:
        """Return whether a deletion was interrupted before it had removed the record."""
        ends = [_revision(job["tags"][str(Tag.DELETED)]) for job in jobs if is_deleted(job)]
        return bool(ends) and max(ends) >= max(cached.revisions, default=0)

    def every(self) -> tuple[builtins.list[str], builtins.list[str]]:
        """Return the ids of all apps with a record, after reading their jobs; and the ids of damaged records."""
        records: dict[str, builtins.list[Job]] = {}
        for one in self._aws.all_active():
            app_id = one.get("tags", {}).get(str(Tag.APP_ID))
            if app_id and one["jobDefinitionName"] == definition_name(app_id):
                records.setdefault(app_id, []).append(one)
        by_queue: dict[str, dict[str, builtins.list[Job]]] = {}
        for app_id, group in records.items():
            old = self._apps.get(app_id)
            if old is not None and old.jobs:
                continue
            cached = self._from_records(app_id, sorted(group, key=lambda one: int(one["revision"])))
            if cached is not None:
                cached.unlisted_since = old.unlisted_since if old else None
                self._apps[app_id] = cached
                by_queue.setdefault(cached.request.queue, {})[app_id] = []
        for queue, rows in by_queue.items():
            for row in self._aws.jobs_of_definitions(queue, f"{definition_name('')}*"):
                app_id = row["jobName"].partition("_")[0]
                if app_id in rows:
                    rows[app_id].append(row)
            self._add_jobs(rows)
        ids = sorted(app_id for app_id in records if app_id in self._apps)
        damaged = [app_id for app_id, group in records.items() if self._from_records(app_id, group) is None]
        return ids, sorted({*damaged} - {*ids})


def _revision(text: str) -> int:
    """Return the revision in a tag; 0 for other texts, because other users may write tags."""
    try:
        return parse_int(text)
    except UntrustedError:
        return 0


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    same = next((at for at, letter in enumerate(first) if letter != last[at : at + 1]), len(first))
    return first[:same]
