"""What every observer of an app does: it reads, assesses, and does the next step that is due.

`reconcile.assess` explains how observers keep out of each other's way: each change names the state that it changes.
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
from airflow_provider_launch.schedulers._kit.reconcile import reconcile
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog, selector
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, ConflictError
from airflow_provider_launch.schedulers.kubernetes.manifests import BACKSTOP_S, job_body, owner, preemptions_body
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod, newest_attempts, pods_in
from airflow_provider_launch.schedulers.kubernetes.reconcile import CANCEL, SIDECARS, Assessment, assess
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord, Plan
from airflow_provider_launch.schedulers.kubernetes.removals import jobs_kept, pods_kept
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest, KubernetesRole
from airflow_provider_launch.schedulers.kubernetes.status import response_from
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
"""Steps of one poll of an app; what is left is for the next poll."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_CHANGED = "the server rejected our request due to an error in our request"
"""All that the server answers when a test of a JSON Patch has failed."""
_REFUSED_S = 5.0
"""How long a step that was refused is not tried again."""
_STOPPED_PODS = 100
"""Replicas that are ended one by one, so that their logs stay; more of them are ended by their Job."""
_BACKOFF_S = 8
"""Kubernetes replaces a replica that has retries ten seconds after its first end, twenty after the second, and so on:
its Job has to be over before that."""
_LINGERS_S = 10.0
"""How long a pod may need to end after its program has; then something else runs in it."""


class Observer:
    """Brings the apps of one namespace on."""

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
        """Do what the app needs, step by step, reading it before each; return how it is then, None: it is gone.

        Args:
            app_id: the app.
            submitted: the caller is at work on the submission.
            request: of the submission.
            report_refusals: put a refused step into the message of the assessment instead of raising; the next poll
                retries it.

        Raises:
            SchedulerRejectedError: the step is refused each time.
            SchedulerUnavailableError: somebody else was faster each time, and the app has not begun.
        """
        late: LaunchError | None = None
        refused: tuple[App, Plan, Assessment] | None = None
        pauses = _pauses()
        now = 0.0

        def read() -> tuple[App, Plan, Assessment] | None:
            nonlocal late, now
            if late is not None:
                time.sleep(next(pauses))  # the other observer finishes its step meanwhile
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
        """Return or raise what follows when another observer was faster in every round."""
        unwritten = self._unwritten(found[0].app_id, late)
        if report_refusals:
            return self._refused(found, unwritten)
        begun = found[0].record is not None and found[0].record.released
        if isinstance(unwritten, SchedulerRejectedError) or (submitted and not begun):
            raise unwritten from late
        return found  # the next poll goes on with it

    def _unwritten(self, app_id: str, error: LaunchError) -> LaunchError:
        """Return what to raise when all rounds were in vain."""
        text = f"the next step of app {app_id!r} could not be written in namespace {self._cluster.namespace!r}: {error}"
        # A changed state is reported in the words of the server alone; a policy, or a webhook, has its own.
        if isinstance(error.__cause__, SchedulerRejectedError) and _CHANGED not in str(error):
            return SchedulerRejectedError(f"{text}; ask the administrator of the cluster to allow it")
        return SchedulerUnavailableError(f"{text}; the same call may succeed later")

    def _refused(self, found: tuple[App, Plan, Assessment], error: LaunchError) -> tuple[App, Plan, Assessment]:
        """Remember why the cluster refused the step that is due, and return the assessment with it."""
        known = self._catalog.of(found[0].app_id)
        if known.refusal != str(error):
            # Who follows a running app is shown its states, and this is none.
            log.warning("app %s: its next step is tried again and again: %s", found[0].app_id, error)
        known.refusal, known.refused_at = str(error), time.monotonic()
        return self.with_recent_refusal(found) or found

    def with_recent_refusal(self, found: tuple[App, Plan, Assessment]) -> tuple[App, Plan, Assessment] | None:
        """Return the assessment with the refusal of a moment ago of the step that is due; None: there was none."""
        app, plan, assessment = found
        known = self._catalog.of(app.app_id)
        if time.monotonic() - known.refused_at > _REFUSED_S:
            return None
        return app, plan, assessment if is_terminal(assessment.state) else replace(assessment, msg=known.refusal)

    def cancel(self, app_id: str) -> None:
        """End an app at the request of its user; no-op for one that has ended.

        Raises:
            SchedulerRejectedError: the cluster does not let us write the request, or end a Job.
            SchedulerUnavailableError: the request could not be written.
        """
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
        """Return an app with its record and what it needs, None if there is none, and the server's time."""
        missed: Mapping[str, str] | None = None
        while True:
            apps, now = self._catalog.jobs([app_id])
            app = apps.get(app_id) or App(app_id)
            # After the Jobs: what it states of them is then not older than they are.
            app.record = self._catalog.record(app_id)
            if app.record is None or (submitted and app.record.deleting):
                return None, now
            plan = self._catalog.plan(app_id)
            assessment = assess(app, plan, now, submitted=submitted)
            # Another observer may have begun an attempt between the two requests. A loss is a Job that was not there
            # when it had been named before.
            if assessment.state is not AppState.UNKNOWN or app.record.committed == missed:
                return (app, plan, assessment), now
            missed = app.record.committed

    def _act(self, app: App, plan: Plan, assessment: Assessment, request: KubernetesRequest | None, now: float) -> bool:
        """Do one step; True: poll again at once."""
        record = app.record
        assert record is not None
        if assessment.end:
            self._end(app, assessment.end, plan)
            self._expire(plan, assessment.expire, now)
            return False
        if assessment.settle_end or assessment.expire:
            # The app has ended, whatever the cluster answers to this.
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
        """Return why an attempt failed, for the record."""
        cause = response_from(app, plan, assessment, self._catalog.of(app.app_id).pods, None).msg
        return {f"{Annotation.CAUSE}{app.attempt}": cause[:500]}

    def _note_result(self, app: App, plan: Plan, assessment: Assessment) -> None:
        """Write down how the app has ended: soon its Jobs may no longer show it."""
        assert app.record is not None
        notes = {Annotation.RESULT: assessment.state.name}
        if assessment.state is AppState.FAILED:
            # The answer that follows needs the same pods.
            self._catalog.read_pods([(app, assessment)])
            notes |= self._cause(app, plan, assessment)
        self._note(app.record, notes)

    def note_failure(self, record: AppRecord, cause: str) -> None:
        """Write down that an app has failed, and why; no-op if somebody else has settled its end."""
        notes = {Annotation.RESULT: AppState.FAILED.name, f"{Annotation.CAUSE}{record.attempt}": cause[:500]}
        with contextlib.suppress(ConflictError, NotFoundError):
            self._note(record, notes)

    def _expire(self, plan: Plan, jobs: list[Job], now: float) -> None:
        """Let the TTL of Jobs that have ended begin, so that none goes long before the others."""
        for job in jobs:
            # Kubernetes counts from the end of the Job.
            ttl_s = (plan.ttl_s or 0) + max(0, int(now - (job.finished_at or now)))
            with contextlib.suppress(NotFoundError, ConflictError):  # it has gone meanwhile
                change = {"metadata": {"uid": job.uid}, "spec": {"ttlSecondsAfterFinished": ttl_s}}
                self._cluster.patch("jobs", job.name, change)

    def _note(self, record: AppRecord, notes: Mapping[str, str], owners: list[dict[str, Any]] | None = None) -> None:
        """Write into the record, if it is still what it was.

        Raises:
            ConflictError: somebody else was faster.
        """
        unless = (
            (Annotation.CANCELLED, Annotation.RESULT, *notes)
            if Annotation.RESULT not in notes
            else (Annotation.RESULT,)
        )
        tests: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": record.uid}]
        # None: it must be absent.
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
        """Create the Jobs of the present attempt, suspended, and commit to them."""
        assert request is not None
        assert app.record is not None
        if not request.is_whole:
            raise AppUnavailableError(
                f"the Jobs of app {app.app_id!r} are gone, and with them the values that another attempt needs; "
                f"delete the app"
            )
        record = app.record
        uids: dict[str, str] = {}
        owners = [*record.owners]
        for role in request.roles:
            body = job_body(request, _with_image(role, self._catalog.of(app.app_id).pods), record.attempt)
            # `blockOwnerDeletion`: a deleted app is seen until its pods have gone.
            reference = {**owner("Service", record.name, record.uid), "blockOwnerDeletion": True}
            body["metadata"]["ownerReferences"] = [reference]
            try:
                created = self._cluster.create("jobs", body)
            except TakenError:
                created = self._existing(app, request, body["metadata"]["name"])
            uids[role.slug] = created["metadata"]["uid"]
            # When the TTL of the last Job is over, the record goes with it.
            owners.append(owner("Job", created["metadata"]["name"], created["metadata"]["uid"]))
        self._note(record, {f"{Annotation.COMMITTED}{record.attempt}": _compact(uids)}, owners)

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
        """End Jobs so that the pods stay with their logs.

        A Job that ends removes its pods. So the pods are ended first, one by one, and the Job when none of them runs;
        should nobody come back for that, Kubernetes does it a minute after their grace. Where replicas have retries it
        does it in some seconds, which observers put off while no replica has ended: the program still has its grace.
        """
        pods: list[Pod] = []
        if any(not job.suspended for job, _ in jobs):
            # Who may not list pods can end their Jobs all the same; logs then go with the pods.
            with contextlib.suppress(SchedulerRejectedError):
                items, now = self._cluster.list("pods", selector([app.app_id]))
                pods = [pod for _, pod in pods_in(items)]
                self._catalog.of(app.app_id).pods = pods
        for job, why in jobs:
            mine = [pod for pod in pods if (pod.role, pod.app_attempt) == (job.role, job.attempt)]
            live = [pod for pod in mine if pod.began and not pod.over and not pod.deleting]
            if job.suspended:
                if plan.queue:
                    # It is complete at once, and leaves the queue in whatever state that is; let go, it would be
                    # suspended again.
                    change: dict[str, Any] = {"parallelism": 0, "completions": 0}
                else:
                    # It ends at once, without a pod.
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
        """Write into a Job that its queue holds back, and for its next pods, how often it has taken its place away."""
        for job in app.jobs.values():
            if job.attempt == app.attempt and job.held and job.preemptions < count:
                self._publish_preemptions(app.app_id, count)
                notes = {"annotations": {Annotation.PREEMPTIONS: str(count)}}
                with contextlib.suppress(NotFoundError, ConflictError, SchedulerRejectedError):  # the next poll does it
                    self._cluster.patch("jobs", job.name, {"metadata": {"uid": job.uid, **notes}})

    def _publish_preemptions(self, app_id: str, count: int) -> None:
        """Write the count into a ConfigMap: Kueue puts the template of the pods back to what it was."""
        # Programs that do not ask for it need no right for it.
        with contextlib.suppress(NotFoundError, ConflictError, SchedulerRejectedError):
            if (record := self._catalog.record(app_id)) is None or record.deleting:
                return
            body = preemptions_body(app_id, record.uid, count)
            try:
                self._cluster.create("configmaps", body)
            except TakenError:
                self._cluster.patch("configmaps", app_id, {"data": body["data"]})

    def stop_sidecars(self, app: App, plan: Plan, now: float) -> None:
        """Stop what only sidecars keep: pods of programs that have failed, Jobs all of whose programs ended well."""
        pods = self._catalog.of(app.app_id).pods
        for job in jobs_kept(app, plan, pods, now):
            mine = [pod for pod in pods if (pod.role, pod.app_attempt) == (job.role, job.attempt)]
            change = _last_moment(job, mine, plan, now)
            with contextlib.suppress(NotFoundError, ConflictError):  # the next poll goes on with it
                self._cluster.patch("jobs", job.name, _ending(job, SIDECARS, change, plan))
        for pod in pods_kept(app, plan, pods, now):
            notes = {Annotation.OUTLIVED: ",".join(pod.kept_by)}
            change = {"metadata": {"uid": pod.uid, "annotations": notes}, "spec": {"activeDeadlineSeconds": 1}}
            with contextlib.suppress(NotFoundError, ConflictError):
                self._cluster.patch("pods", pod.name, change)

    def _stop(self, pod: Pod) -> None:
        """Let the node end a pod: TERM, and KILL after its grace."""
        with contextlib.suppress(NotFoundError, ConflictError):  # it has gone meanwhile
            self._cluster.patch("pods", pod.name, {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}})


def _with_image(role: KubernetesRole, pods: Iterable[Pod]) -> KubernetesRole:
    """Return the role with the very image that its first attempt ran, as far as that is known by its digest."""
    ran = [pod for pod in pods if pod.role == role.slug and pod.digest]
    if not ran:
        return role
    first = min(ran, key=lambda pod: pod.order)
    return replace(role, container={**role.container, "image": first.digest})


def _last_moment(job: Job, pods: list[Pod], plan: Plan, now: float) -> dict[str, Any]:
    """Return the change by which Kubernetes ends a Job that nobody comes back for; empty: it is to stay as it is."""
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
    """Return whether a pod may run on, or still begin; what has just ended by itself keeps its own end."""
    if pod.over or pod.deleting or pod.deadline == 1:
        return False
    return pod.exit_code is None or now - (pod.finished or now) >= lingers_s


def _ending(job: Job, why: str, change: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the patch that ends a Job in the version that was seen."""
    if job.ended is not None:
        return {"metadata": {"resourceVersion": job.version}, "spec": change}
    if why == CANCEL and plan.ttl_s is not None:
        change = {**change, "ttlSecondsAfterFinished": plan.ttl_s}  # nobody may poll again
    return {"metadata": {"resourceVersion": job.version, "annotations": {Annotation.ENDED: why}}, "spec": change}


def _pauses() -> Iterator[float]:
    """Yield how long another observer, which was faster, is given to finish its step."""
    return backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


def _note_path(name: str) -> str:
    return f"/metadata/annotations/{name.replace('~', '~0').replace('/', '~1')}"


def _compact(document: Mapping[str, str]) -> str:
    return json.dumps(document, separators=(",", ":"))
