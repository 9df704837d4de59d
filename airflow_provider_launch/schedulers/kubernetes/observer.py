"""The observer of apps: reads and assesses an app, and performs the next step.

Several observers may work on one app, because the server refuses a change if the app has changed since it was read; see
`reconcile`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog, selector
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, ConflictError
from airflow_provider_launch.schedulers.kubernetes.manifests import BACKSTOP_S, job_body, owner, preemptions_body
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod, newest_attempts, pods_in
from airflow_provider_launch.schedulers.kubernetes.reconcile import (
    CANCEL,
    SIDECARS,
    Assessment,
    assess,
    jobs_kept,
    pods_kept,
)
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord, Plan
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest, KubernetesRole
from airflow_provider_launch.schedulers.kubernetes.status import response_from
from airflow_provider_launch.schedulers.retry import Phase, reconcile
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppUnavailableError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.backoff import backoff
from airflow_provider_launch.util.threads import for_each_parallel

log = logging.getLogger(__name__)

_ROUNDS = 8
"""Maximum number of steps in one poll of an app; the next poll does the rest."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_CHANGED = "the server rejected our request due to an error in our request"
"""The complete answer of the server if a test in a JSON Patch fails."""
_REFUSED_S = 5.0
"""Seconds until a refused step is tried again."""
_STOPPED_PODS = 100
"""Maximum number of pods that are stopped one by one, which keeps their logs. If there are more, the end of the Job
stops them, and their logs are lost."""
_BACKOFF_S = 8
"""Seconds within which a Job has to end, because Kubernetes replaces a failed replica after 10 seconds, then 20, ..."""
_LINGERS_S = 10.0
"""Seconds within which a pod ends after its program. If it takes longer, another container still runs in it."""


class Observer:
    """Performs the next steps of the apps of one namespace."""

    def __init__(self, cluster: Cluster, catalog: Catalog) -> None:
        self._cluster = cluster
        self._catalog = catalog

    def work(
        self,
        app_id: str,
        *,
        submitted: bool = False,
        request: KubernetesRequest | None = None,
        report_refusals: bool = False,
    ) -> tuple[App, Plan, Assessment] | None:
        """Reconcile the app: read it and do the next step, until nothing is due; return None if it does not exist.

        `request` is that of the submission, if the caller submits the app. With `report_refusals` a refused step is
        reported in the message of the assessment instead of raised, and the next poll retries it.

        Raises:
            SchedulerUnavailableError: another observer was faster each time, and the app has not started.
        """
        late: LaunchError | None = None
        refused: tuple[App, Plan, Assessment] | None = None
        pauses = _pauses()
        now = 0.0

        def read() -> tuple[App, Plan, Assessment] | None:
            nonlocal late, now
            if late is not None:
                time.sleep(next(pauses))  # let the other observer finish its step
                late = None
            found, now = self._read(app_id, submitted=submitted)
            return found

        def act(found: tuple[App, Plan, Assessment]) -> bool:
            nonlocal late, refused
            try:
                return not found[2].settled and self._act(*found, request, now)
            except (ConflictError, NotFoundError) as error:
                late = error  # another observer was faster: read again
                return True
            except (SchedulerRejectedError, AppConflictError, AppUnavailableError) as error:
                if not report_refusals:
                    raise
                refused = self._refused(found, error)
                return False

        found = reconcile(read, act, rounds=_ROUNDS)
        if refused is not None:
            return refused
        if late is None or found is None or is_terminal(found[2].state):
            return found
        return self._left_over(found, late, submitted=submitted, report_refusals=report_refusals)

    def _left_over(
        self, found: tuple[App, Plan, Assessment], late: LaunchError, *, submitted: bool, report_refusals: bool
    ) -> tuple[App, Plan, Assessment]:
        """Return the assessment, or raise, when another observer was faster in every round."""
        unwritten = self._unwritten(found[0].app_id, late)
        if report_refusals:
            return self._refused(found, unwritten)
        has_started = found[0].record is not None and found[0].record.released
        if isinstance(unwritten, SchedulerRejectedError) or (submitted and not has_started):
            raise unwritten from late
        return found  # the next poll continues

    def _unwritten(self, app_id: str, error: LaunchError) -> LaunchError:
        """Return the error to raise when no round could write the step."""
        text = f"the next step of app {app_id!r} could not be written in namespace {self._cluster.namespace!r}: {error}"
        # A failed test of a patch gives the server's standard text; policies and webhooks have their own texts.
        if isinstance(error.__cause__, SchedulerRejectedError) and _CHANGED not in str(error):
            return SchedulerRejectedError(f"{text}; ask the administrator of the cluster to allow it")
        return SchedulerUnavailableError(f"{text}; the same call may succeed later")

    def _refused(self, found: tuple[App, Plan, Assessment], error: LaunchError) -> tuple[App, Plan, Assessment]:
        """Cache the reason of a refused step, and return the assessment with this reason as its message."""
        cached = self._catalog.of(found[0].app_id)
        if cached.refusal != str(error):
            # Log it, because followers of a running app do not show the message.
            log.warning("app %s: its next step was refused and will be retried: %s", found[0].app_id, error)
        cached.refusal, cached.refused_at = str(error), time.monotonic()
        return self.with_recent_refusal(found) or found

    def with_recent_refusal(self, found: tuple[App, Plan, Assessment]) -> tuple[App, Plan, Assessment] | None:
        """Return the assessment with the refusal of its next step, or None if there was no recent refusal."""
        app, plan, assessment = found
        cached = self._catalog.of(app.app_id)
        if time.monotonic() - cached.refused_at > _REFUSED_S:
            return None
        return app, plan, assessment if is_terminal(assessment.state) else replace(assessment, msg=cached.refusal)

    def cancel(self, app_id: str) -> None:
        """Cancel an app; no-op if it has ended."""
        late: ConflictError | None = None
        pauses = _pauses()
        for _ in range(_ROUNDS):
            if late is not None:
                time.sleep(next(pauses))
            found, _ = self._read(app_id)
            if found is None or is_terminal(found[2].state):
                return
            record = found[0].record
            if record is None or record.deleting:
                return
            if record.cancelled:
                break
            try:
                self._note(record, {Annotation.CANCELLED: "true"})
                break
            except ConflictError as error:
                late = error
        else:
            assert late is not None
            raise self._unwritten(app_id, late) from late
        self.work(app_id)

    def _read(self, app_id: str, *, submitted: bool = False) -> tuple[tuple[App, Plan, Assessment] | None, float]:
        """Return a pair: the app with its plan and assessment, or None if it does not exist; and the server's time."""
        missed: Mapping[str, str] | None = None
        while True:
            apps, now = self._catalog.jobs([app_id])
            app = apps.get(app_id) or App(app_id)
            # Read the record after the Jobs, so that it is not older than they are.
            app.record = self._catalog.record(app_id)
            if app.record is None or (submitted and app.record.deleting):
                return None, now
            plan = self._catalog.plan(app_id)
            assessment = assess(app, plan, now, submitted=submitted)
            if plan.max_disruptions and Phase.FAILED in assessment.phases.values():
                app.disrupted = self._disrupted(app, assessment)
                assessment = assess(app, plan, now, submitted=submitted)
            # Another observer may have started an attempt between the two requests. A Job is lost only if it is
            # missing although an earlier read of the record already named it.
            if assessment.state is not AppState.UNKNOWN or app.record.committed == missed:
                return (app, plan, assessment), now
            missed = app.record.committed

    def _disrupted(self, app: App, assessment: Assessment) -> frozenset[str]:
        """Return the roles of the current attempt with a disrupted pod, also if the pod has not ended yet."""
        self._catalog.read_pods([(app, assessment)])
        pods = self._catalog.of(app.app_id).pods
        return frozenset(pod.role for pod in pods if pod.app_attempt == app.attempt and pod.disruption)

    def _act(self, app: App, plan: Plan, assessment: Assessment, request: KubernetesRequest | None, now: float) -> bool:
        """Do one step; return whether to continue with another."""
        record = app.record
        assert record is not None
        if assessment.end:
            self._end(app, assessment.end, plan)
            self._expire(plan, assessment.expire, now)
            return False
        if assessment.settle_end or assessment.expire:
            # The app has ended, even if the cluster refuses this.
            with contextlib.suppress(SchedulerRejectedError, AppUnavailableError):
                if assessment.settle_end:
                    self._note_result(app, plan, assessment)
                self._expire(plan, assessment.expire, now)
            return False
        if assessment.restart is not None:
            cause = self._cause(app, plan, Assessment(AppState.FAILED))
            if assessment.disrupted:
                cause[Annotation.DISRUPTED] = str(record.disrupted + 1)
            self._note(record, {Annotation.ATTEMPT: str(record.attempt + 1), **cause})
        elif assessment.settle_failure:
            self._note_result(app, plan, Assessment(AppState.FAILED, assessment.msg, assessment.phases))
        elif assessment.create:
            self._create(app, request or self._catalog.whole_request(app.app_id))
        elif assessment.release is not None:
            for job in assessment.release:
                change = {"metadata": {"resourceVersion": job.version}, "spec": {"suspend": False}}
                self._cluster.patch("jobs", job.name, change)
            self._note(record, {Annotation.RELEASED: str(record.attempt)})
        return True

    def _cause(self, app: App, plan: Plan, assessment: Assessment) -> dict[str, str]:
        """Return the annotation for the record that states why an attempt failed."""
        cause = response_from(app, plan, assessment, self._catalog.of(app.app_id).pods, None).msg
        return {f"{Annotation.CAUSE}{app.attempt}": cause[:500]}

    def _note_result(self, app: App, plan: Plan, assessment: Assessment) -> None:
        """Write the result of the app into the record, because its Jobs may be removed soon."""
        assert app.record is not None
        notes = {Annotation.RESULT: assessment.state.name}
        if assessment.state is AppState.FAILED:
            # The cause is found in the pods, which the response needs, too.
            self._catalog.read_pods([(app, assessment)])
            notes |= self._cause(app, plan, assessment)
        self._note(app.record, notes)

    def note_failure(self, record: AppRecord, cause: str) -> None:
        """Record that an app has failed, and why; no-op if another observer has recorded its end."""
        notes = {Annotation.RESULT: AppState.FAILED.name, f"{Annotation.CAUSE}{record.attempt}": cause[:500]}
        with contextlib.suppress(ConflictError, NotFoundError):
            self._note(record, notes)

    def _expire(self, plan: Plan, jobs: list[Job], now: float) -> None:
        """Set the TTL of ended Jobs, so that Kubernetes removes all of them at about the same time."""
        for job in jobs:
            # Kubernetes counts from the end of the Job.
            ttl_s = (plan.ttl_s or 0) + max(0, int(now - (job.finished_at or now)))
            with contextlib.suppress(NotFoundError, ConflictError):  # it was removed meanwhile
                change = {"metadata": {"uid": job.uid}, "spec": {"ttlSecondsAfterFinished": ttl_s}}
                self._cluster.patch("jobs", job.name, change)

    def _note(self, record: AppRecord, notes: Mapping[str, str], owners: list[dict[str, Any]] | None = None) -> None:
        """Write annotations into the record; a ConflictError if another observer has changed it."""
        unless = (
            (Annotation.CANCELLED, Annotation.RESULT, *notes)
            if Annotation.RESULT not in notes
            else (Annotation.RESULT,)
        )
        tests: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": record.uid}]
        # The value None means that it must be absent.
        tests += [
            {"op": "test", "path": _note_path(name), "value": record.annotations.get(name)}
            for name in dict.fromkeys([Annotation.ATTEMPT, *unless])
        ]
        changes: list[dict[str, Any]] = [
            {"op": "add", "path": _note_path(name), "value": text} for name, text in notes.items()
        ]
        if owners is not None:
            changes.append({"op": "add", "path": "/metadata/ownerReferences", "value": owners})
        self._cluster.patch("services", record.name, [*tests, *changes])

    def _create(self, app: App, request: KubernetesRequest | None) -> None:
        """Create the Jobs of the current attempt, suspended, and write their uids into the record."""
        assert request is not None
        assert app.record is not None
        if not request.is_whole:
            raise AppUnavailableError(
                f"the Jobs of app {app.app_id!r} were removed, and with them the values that another attempt needs; "
                f"delete the app"
            )
        record = app.record
        uids: dict[str, str] = {}
        owners = [*record.owners]
        for role in request.roles:
            body = job_body(request, _with_image(role, self._catalog.of(app.app_id).pods), record.attempt)
            # `blockOwnerDeletion`: a deleted app stays visible until its pods are gone.
            reference = {**owner("Service", record.name, record.uid), "blockOwnerDeletion": True}
            body["metadata"]["ownerReferences"] = [reference]
            try:
                created = self._cluster.create("jobs", body)
            except TakenError:
                created = self._existing(app, request, body["metadata"]["name"])
            uids[role.slug] = created["metadata"]["uid"]
            # Kubernetes removes the record with the last Job, after its TTL.
            owners.append(owner("Job", created["metadata"]["name"], created["metadata"]["uid"]))
        committed = json.dumps(uids, separators=(",", ":"))
        self._note(record, {f"{Annotation.COMMITTED}{record.attempt}": committed}, owners)

    def _existing(self, app: App, request: KubernetesRequest, name: str) -> dict[str, Any]:
        found = self._cluster.get("jobs", name)
        if found is None:
            raise ConflictError(f"Job {name!r} is gone")
        metadata = found["metadata"]
        mine = (metadata.get("labels") or {}).get(Label.APP_ID) == app.app_id
        if not mine or (metadata.get("annotations") or {}).get(Annotation.SPEC_HASH) != request.spec_hash:
            raise AppConflictError(
                f"namespace {self._cluster.namespace!r} has a Job {name!r} that does not belong to this app "
                f"{app.app_id!r}; remove it, or choose another id"
            )
        if "deletionTimestamp" in metadata:
            raise ConflictError(f"Job {name!r} is being deleted")
        return found

    def _end(self, app: App, jobs: list[tuple[Job, str]], plan: Plan) -> None:
        """End Jobs in a way that keeps the pods and their logs.

        A Job that ends removes its running pods. Therefore end the pods first, one by one, and the Job when none of
        them runs. If no observer polls again, the deadline of the Job ends it: a minute after the grace time, or, for a
        Job with retries, after some seconds. Observers extend the short deadline while no replica has ended, so that
        programs have their grace time.
        """
        pods: list[Pod] = []
        if any(not job.suspended for job, _ in jobs):
            # Without the permission to list pods, end the Jobs at once; then the logs are lost.
            with contextlib.suppress(SchedulerRejectedError):
                items, now = self._cluster.list("pods", selector([app.app_id]))
                pods = [pod for _, pod in pods_in(items)]
                self._catalog.of(app.app_id).pods = pods
        for job, why in jobs:
            mine = [pod for pod in pods if (pod.role, pod.app_attempt) == (job.role, job.attempt)]
            live = [pod for pod in mine if pod.has_started and not pod.over and not pod.deleting]
            if job.suspended:
                if plan.queue:
                    # Without pods the Job is complete and leaves the queue. If we resumed it, Kueue would suspend it.
                    change: dict[str, Any] = {"parallelism": 0, "completions": 0}
                else:
                    # The Job ends at once, without pods.
                    change = {"parallelism": 0, "activeDeadlineSeconds": 1, "suspend": False}
            elif not live or len(live) > _STOPPED_PODS:
                change = {"activeDeadlineSeconds": 1}
            else:
                change = _last_moment(job, mine, plan, now)
            if change or job.ended is None:
                self._cluster.patch("jobs", job.name, _ending(job, why, change, plan))
            if 0 < len(live) <= _STOPPED_PODS:
                lingers_s = 0.0 if job.ended == SIDECARS else _LINGERS_S
                for_each_parallel(self._stop, [pod for pod in mine if _is_to_stop(pod, now, lingers_s)])

    def count_preemptions(self, app: App, count: int) -> None:
        """Write the number of evictions into the held Jobs of an app, and into the ConfigMap that their pods read."""
        for job in app.jobs.values():
            if job.attempt == app.attempt and job.held and job.preemptions < count:
                self._publish_preemptions(app.app_id, count)
                notes = {"annotations": {Annotation.PREEMPTIONS: str(count)}}
                with contextlib.suppress(NotFoundError, ConflictError, SchedulerRejectedError):  # the next poll retries
                    self._cluster.patch("jobs", job.name, {"metadata": {"uid": job.uid, **notes}})

    def _publish_preemptions(self, app_id: str, count: int) -> None:
        """Write the number of evictions into a ConfigMap, because Kueue restores the template of the pods."""
        # The permission is optional, because few programs read the number.
        with contextlib.suppress(NotFoundError, ConflictError, SchedulerRejectedError):
            if (record := self._catalog.record(app_id)) is None or record.deleting:
                return
            body = preemptions_body(app_id, record.uid, count)
            try:
                self._cluster.create("configmaps", body)
            except TakenError:
                self._cluster.patch("configmaps", app_id, {"data": body["data"]})

    def stop_sidecars(self, app: App, plan: Plan, now: float) -> None:
        """Stop pods whose program failed, and Jobs whose programs succeeded, if only sidecars still run in them."""
        pods = self._catalog.of(app.app_id).pods
        for job in jobs_kept(app, plan, pods, now):
            mine = [pod for pod in pods if (pod.role, pod.app_attempt) == (job.role, job.attempt)]
            change = _last_moment(job, mine, plan, now)
            with contextlib.suppress(NotFoundError, ConflictError):  # the next poll continues
                self._cluster.patch("jobs", job.name, _ending(job, SIDECARS, change, plan))
        for pod in pods_kept(app, plan, pods, now):
            notes = {Annotation.OUTLIVED: ",".join(pod.kept_by)}
            change = {"metadata": {"uid": pod.uid, "annotations": notes}, "spec": {"activeDeadlineSeconds": 1}}
            with contextlib.suppress(NotFoundError, ConflictError):
                self._cluster.patch("pods", pod.name, change)

    def _stop(self, pod: Pod) -> None:
        """Stop a pod by its deadline: the node sends TERM, and KILL after the grace."""
        with contextlib.suppress(NotFoundError, ConflictError):  # it was removed meanwhile
            self._cluster.patch("pods", pod.name, {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}})


def _with_image(role: KubernetesRole, pods: Iterable[Pod]) -> KubernetesRole:
    """Return the role with the image digest of its first attempt, if that is known."""
    ran = [pod for pod in pods if pod.role == role.slug and pod.digest]
    if not ran:
        return role
    first = min(ran, key=lambda pod: pod.order)
    return replace(role, container={**role.container, "image": first.digest})


def _last_moment(job: Job, pods: list[Pod], plan: Plan, now: float) -> dict[str, Any]:
    """Return the deadline with which Kubernetes ends a Job if no observer polls again; empty to keep the deadline."""
    started = job.started or now
    if not job.retries:
        return {} if job.ended else {"activeDeadlineSeconds": int(now - started) + plan.grace_s + BACKSTOP_S}
    newest = newest_attempts(pods, job.attempt).values()
    replaced = [
        (pod.finished or pod.created) + _BACKOFF_S * 2 ** (pod.attempt + pod.disruptions)
        for pod in newest
        if pod.phase == "Failed" and pod.replica not in job.failed
    ]
    rest_s = min([now + _BACKOFF_S, *replaced]) - now
    if job.ended and (replaced or started + (job.deadline or 0) - now > _BACKOFF_S / 2):
        return {}
    return {"activeDeadlineSeconds": int(now - started) + max(1, int(rest_s))}


def _is_to_stop(pod: Pod, now: float, lingers_s: float) -> bool:
    """Return whether a pod must be stopped. A pod whose program has just ended by itself is not stopped."""
    if pod.over or pod.deleting or pod.deadline == 1:
        return False
    return pod.exit_code is None or now - (pod.finished or now) >= lingers_s


def _ending(job: Job, why: str, change: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the patch that ends a Job, if it still has the version that was read."""
    if job.ended is not None:
        return {"metadata": {"resourceVersion": job.version}, "spec": change}
    if why == CANCEL and plan.ttl_s is not None:
        change = {**change, "ttlSecondsAfterFinished": plan.ttl_s}  # there may be no later poll
    return {"metadata": {"resourceVersion": job.version, "annotations": {Annotation.ENDED: why}}, "spec": change}


def _pauses() -> Iterator[float]:
    """Yield the pauses in which another, faster observer can finish its step."""
    return backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


def _note_path(name: str) -> str:
    return f"/metadata/annotations/{name.replace('~', '~0').replace('/', '~1')}"
