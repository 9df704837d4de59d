"""The Kubernetes scheduler: apps as Indexed Jobs of one namespace. `several` is that of several namespaces.

All state is in the cluster, so every process that reaches it sees the same apps. This module implements the `Scheduler`
interface; `claims` claims names, `catalog` reads apps, and `observer` does what Kubernetes does not do by itself: it
stops the other roles after a failure, and retries the whole app.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE, BuiltinScheduler
from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text, failure_message
from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers._kit.refusals import deleted_meanwhile, refuse_separate_streams
from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.kubernetes.attempts_log import AttemptsLog
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog, readable, selector
from airflow_provider_launch.schedulers.kubernetes.claims import Claims
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, ConflictError
from airflow_provider_launch.schedulers.kubernetes.manifests import (
    format_request,
    plan_text,
    refuse_broken_overlays,
    refuse_too_large,
    result_warnings,
)
from airflow_provider_launch.schedulers.kubernetes.naming import APP_ID, Annotation, Label, app_slug
from airflow_provider_launch.schedulers.kubernetes.objects import (
    App,
    Pod,
    apps_in,
    is_result_awaited,
    newest_attempts,
    pods_in,
    result_container_of,
    result_from,
    result_in,
)
from airflow_provider_launch.schedulers.kubernetes.observer import Observer
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection, KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.pod_events import GATED, HELD, PodEvents, queue_state
from airflow_provider_launch.schedulers.kubernetes.reconcile import (
    Assessment,
    assess,
    first_killed,
    succeeded_without_pod,
)
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE, AppRecord, DamagedError, Plan, plan_in
from airflow_provider_launch.schedulers.kubernetes.request import (
    OVERLAY_KINDS,
    KubernetesRequest,
    build_request,
    unpacked,
)
from airflow_provider_launch.schedulers.kubernetes.result_container import (
    LIMIT_BYTES,
    LOG_BYTES,
    LOG_LINES,
    NAME,
    result_bytes,
    size_of,
)
from airflow_provider_launch.schedulers.kubernetes.several import SeveralNamespaces, connection_to, place_of, places_of
from airflow_provider_launch.schedulers.kubernetes.status import (
    ending_of,
    is_missing_source,
    killed_pod,
    pending_part,
    response_from,
    waits_for,
)
from airflow_provider_launch.schedulers.log_streams import LogStream
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.specs.owner import owner_from
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.backoff import backoff
from airflow_provider_launch.workspace.docker_workspace import DockerWorkspaceMixin, refuse_no_repository

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

VERBS: Mapping[str, tuple[str, ...]] = {
    "services": ("create", "get", "list", "patch", "delete"),
    "jobs.batch": ("create", "get", "list", "patch"),
    "pods": ("create", "list", "patch"),
    "pods/log": ("get",),
    "events": ("list",),
}
"""Resource to the verbs that the launcher uses: the connection test checks them, the Role of the docs grants them."""
_NO_PLAN = Plan((), None, 0, queue=False)
_LIVE = frozenset({AppState.SUBMITTED, AppState.PENDING, AppState.RUNNING})
_FEW_RECORDS = 2
_SILENT_S = 5.0
"""Seconds that a retry may wait without a reason before its events are read."""
_SECOND_S = 1.0
"""The server's times are whole seconds."""
_REMOVALS_S = 10.0
"""Interval for checking whether pods of a running app were removed from outside."""
_MARKS_S = 60.0
"""Interval for reading the records of all apps, even if their Jobs show enough."""
_RESULT_S, _FIRST_RESULT_S = 10.0, 0.3
"""Seconds to wait for the container that returns a result, and the pause between two polls."""
_QUEUED_S = 5.0
"""Interval for reading why a queue holds an app back."""


class KubernetesScheduler(
    DockerWorkspaceMixin, BuiltinScheduler[KubernetesOpts, KubernetesConnection, KubernetesRequest]
):
    """Runs each attempt of each replica in its own pod, which stays until the app is deleted or its TTL ends."""

    name: ClassVar[str] = "kubernetes"
    opts_type = KubernetesOpts
    connection_type = KubernetesConnection
    overlay_kinds: ClassVar[tuple[str, ...]] = OVERLAY_KINDS
    has_pod_fields: ClassVar[bool] = True
    app_id_pattern = APP_ID
    app_id_help: ClassVar[str] = (
        "cannot name a Service of 'kubernetes'; use up to 63 lower-case letters, digits and '-', starting with a "
        "letter and not ending in '-'"
    )
    needs_image: ClassVar[bool] = False  # a pod template may have one; `build_request` checks it
    refusal_cures: ClassVar[Mapping[Capability, str]] = {
        Capability.DEVICE_MOUNT: (
            "name the resource of a device plugin in resource.devices, such as 'vpc.amazonaws.com/efa'"
        )
    }
    capabilities: ClassVar[frozenset[Capability]] = EVERYWHERE | {
        Capability.DISRUPTION_RETRY,
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.WORKSPACE,
    }
    poll_interval_s: ClassVar[float] = 2.0

    def __init__(
        self,
        session_name: str,
        connection: KubernetesConnection | None = None,
        check_claim: Callable[[str], None] | None = None,
    ) -> None:
        """Args: `check_claim` may refuse an app that is claimed and not started yet, because of other namespaces."""
        super().__init__(session_name, connection)
        self._check_claim = check_claim
        self.cluster = Cluster(self.connection)
        self._catalog = Catalog(self.cluster)
        self._claims = Claims(self.cluster, self._catalog)
        self._observer = Observer(self.cluster, self._catalog)
        self._events = PodEvents(self.cluster)
        self._logs = AttemptsLog(self.cluster)
        self._records_at = time.monotonic()

    @classmethod
    def create(cls, session_name: str, **kwargs: Any) -> Self:
        made = super().create(session_name, **kwargs)
        if made.connection.namespaces or made.connection.contexts:
            return cast("Self", SeveralNamespacesScheduler(session_name, made.connection))
        return made

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _app_slug(self, name: str) -> str:
        return app_slug(name)

    def _build_request(self, app: AppDef, opts: KubernetesOpts, app_id: str) -> KubernetesRequest:
        app = copy.deepcopy(app) if any(role.workspace for role in app.roles) else app
        place_of(self.connection, opts.context, opts.namespace)
        images = self.dryrun_push_images(app, opts)
        request = build_request(app, opts, app_id, os.environ)
        request.images_to_push = images
        refuse_broken_overlays(request)
        refuse_too_large(request)
        return request

    def _submit_dryrun(
        self, app: AppDef, cfg: KubernetesOpts | Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[KubernetesRequest]:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.warnings += result_warnings(info.request)
        return info

    _format_request = staticmethod(format_request)

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - a hook
        refuse_no_repository(app, cfg)
        if cfg.get("pull") == "never" and any(role.workspace for role in app.roles):
            raise InvalidAppError(
                "option pull is 'never', and nodes cannot have the image of a workspace before they pull it; "
                "use pull='missing'"
            )

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesRequest]) -> str:
        self.push_images(dryrun_info.request.images_to_push)
        claimed, request = self._claims.claim(dryrun_info.request)
        try:
            if self._check_claim is not None:
                self._check_claim(request.app_id)
            found = self._observer.work(request.app_id, submitted=True, request=request)
        except LaunchError as error:
            if claimed and not isinstance(error, SchedulerUnavailableError):
                self._claims.take_back(request)
            raise
        if found is None:
            raise deleted_meanwhile(request.app_id)
        return request.app_id

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = builtins.list(app_ids)
        with self._catalog.mutex:
            valid = [app_id for app_id in dict.fromkeys(ids) if APP_ID.fullmatch(app_id)]
            apps, now = self._catalog.jobs(valid) if valid else ({}, 0.0)
            open_apps = [apps.get(app_id) or App(app_id) for app_id in valid]
            open_apps = [app for app in open_apps if self._final(app) is None]
            records = self._records(open_apps, now)
            assessed = {
                app.app_id: (app, _NO_PLAN, Assessment(AppState.UNKNOWN, app.damage))
                if app.damage
                else self._assessed(app, now, records, alone=len(ids) == 1)
                for app in open_apps
            }
            self._catalog.read_pods([(app, assessment) for app, _, assessment in filter(None, assessed.values())])
            killed = functools.cache(self._events.killed)  # one list of events for all apps
            for app_id, found in assessed.items():
                assessed[app_id] = self._past_queue(self._stopped_outside(found, now, killed)) if found else None
            for app, plan, assessment in filter(None, assessed.values()):
                if assessment.state in {AppState.PENDING, AppState.RUNNING} and not assessment.end:
                    self._observer.stop_sidecars(app, plan, now)
            return {app_id: self._readable(apps.get(app_id), assessed.get(app_id), now) for app_id in ids}

    def _stopped_outside(
        self, found: tuple[App, Plan, Assessment], now: float, list_killed: Callable[[], Iterable[Mapping[str, Any]]]
    ) -> tuple[App, Plan, Assessment]:
        """Fail an app if a pod was removed from outside and its program then ended with 0.

        Kubernetes counts that as success. The first observer that sees it records it, because events last an hour.
        """
        app, plan, assessment = found
        if plan.accepts_stop or assessment.end or assessment.state not in {AppState.RUNNING, AppState.SUCCEEDED}:
            return found
        cached = self._catalog.of(app.app_id)
        missing = succeeded_without_pod(app, plan, cached.pods)
        if not missing or (app.record is not None and app.record.deleting):
            return found
        if assessment.state is AppState.RUNNING and time.monotonic() - cached.removals_at < _REMOVALS_S:
            return found
        cached.removals_at = time.monotonic()
        record = self._catalog.record(app.app_id)
        if record is not None and record.result is None and (killed := first_killed(missing, cached.pods, list_killed)):
            role, k = killed
            text = ending_text(ReplicaEnd(0, outside="its pod was deleted"))
            self._observer.note_failure(record, failure_message(role.name, k, text, record.attempt))
            record = self._catalog.record(app.app_id)
        if record is None or record.result is not AppState.FAILED:
            return found
        app.record = record
        return app, plan, assess(app, plan, now)

    def _past_queue(self, found: tuple[App, Plan, Assessment]) -> tuple[App, Plan, Assessment]:
        """Fail an app if no queue holds back its pods, although Kueue did so with the pod of the dry run.

        Versions of Kueue before 0.15 may ignore pods that belong to a Job, whatever their labels.
        """
        app, plan, assessment = found
        pods = [pod for pod in self._catalog.of(app.app_id).pods if pod.app_attempt == app.attempt]
        if plan.group is None or is_terminal(assessment.state) or all(pod.in_queue for pod in pods):
            return found
        record = self._catalog.record(app.app_id)
        if record is None or record.deleting or record.result is not None:
            return found
        self._observer.note_failure(
            record,
            f"option queue: Kueue of this cluster does not hold back the pods of Jobs of namespace "
            f"{self.cluster.namespace!r}, so no queue has admitted the app as one; ask the administrator of the "
            f"cluster for Kueue 0.15 or newer, or use one role without APPLICATION retries",
        )
        return self._observer.work(app.app_id, report_refusals=True) or found

    def _final(self, app: App) -> DescribeAppResponse | None:
        cached = self._catalog.of(app.app_id)
        if cached.final is None or not app.jobs:
            return None
        same = cached.final_of == {job.uid for job in app.jobs.values() if not job.deleting}
        return cached.final if same else None

    def _readable(
        self, app: App | None, assessed: tuple[App, Plan, Assessment] | None, now: float
    ) -> DescribeAppResponse | None:
        """Return the response for an app; UNKNOWN if it is malformed, so that other apps are not affected."""
        try:
            return self._described(app, assessed, now)
        except UNREADABLE as error:
            found = assessed[0] if assessed else app
            assert found is not None
            log.warning("app %s cannot be read", found.app_id, exc_info=True)
            damage = f"its Jobs, pods or record cannot be read ({type(error).__name__}); restore them, or delete it"
            return response_from(found, _NO_PLAN, Assessment(AppState.UNKNOWN, damage), (), None)

    def _described(
        self, app: App | None, assessed: tuple[App, Plan, Assessment] | None, now: float
    ) -> DescribeAppResponse | None:
        if assessed is None:
            return self._final(app) if app else None
        app, plan, assessment = assessed
        cached = self._catalog.of(app.app_id)
        if cached.final is not None and app.record is not None and not app.record.deleting:
            return cached.final  # keep the end while the TTL removes the Jobs
        response = self._with_wait(app, plan, assessment, now)
        if kept := [pod.finished or now for pod in cached.pods if pod.kept_by]:
            response.act_in_s = max(0.0, min(kept) + plan.sidecar_grace_s - now) + _SECOND_S
        if response.state is AppState.FAILED and (killed := killed_pod(app, cached.pods)):
            cause = self._events.cause_of_kill(killed)
            response.msg += f"; {cause}" if cause else ""
        if response.state is AppState.RUNNING:
            cached.running_attempt, cached.queued = app.attempt, ""
        if is_terminal(response.state) and cached.request is not None and app.jobs:
            cached.final, cached.final_of = response, frozenset(job.uid for job in app.jobs.values())
        return response

    def _with_wait(self, app: App, plan: Plan, assessment: Assessment, now: float) -> DescribeAppResponse:
        """Return the response for an app, with the reason if it waits."""
        cached = self._catalog.of(app.app_id)
        response = response_from(app, plan, assessment, cached.pods, cached.request)
        if response.state is AppState.PENDING:
            # An app that ran is RUNNING, because counters of Jobs lag behind; unless its queue has evicted it.
            held = self._is_held(app, plan, response.msg)
            if cached.running_attempt is not None and not held:
                running = dataclasses.replace(assessment, state=AppState.RUNNING)
                response = response_from(app, plan, running, cached.pods, cached.request)
            elif held:
                response.msg = self._queued(app, plan) or NONE
            elif response.msg == NONE:
                response.msg = self._events.reason_to_wait(app, cached, now) or NONE
                response.is_stuck |= is_missing_source(response.msg)
        if response.state is AppState.RUNNING and assessment.settled:
            self._add_wait(app, plan, response, now)
        return response

    def _add_wait(self, app: App, plan: Plan, response: DescribeAppResponse, now: float) -> None:
        """Add to a running app why a part of it waits: a retry, or one of several replicas."""
        cached = self._catalog.of(app.app_id)
        found = pending_part(app, plan, cached.pods)
        if found is None:
            return
        role_name, k, waiting, since = found
        reason = waits_for([waiting]) if isinstance(waiting, Pod) else ""
        if not reason and now - since > _SILENT_S:
            reason = self._events.reason_of(cached, waiting, since)
            response.is_stuck |= is_missing_source(reason)
        if reason:
            text = f"{role_name if k is None else f'{role_name}/{k}'} waits to start: {reason}"
            response.msg = text if response.msg == NONE else f"{response.msg}; {text}"
            for role in response.roles_statuses:
                for replica in role.replicas:
                    if (role.role, replica.id) == (role_name, k):
                        replica.state, replica.reason = AppState.PENDING, reason

    def _records(self, apps: builtins.list[App], now: float) -> dict[str, AppRecord] | None:
        """List the records if many apps need them; None if they are few, which are read one by one.

        Once a minute the records of all apps are read, because an interrupted cancel has left its mark only there.
        The list is read after the Jobs, so it is not older than they are.
        """
        plans = [(app, app.plan()) for app in apps if not app.damage]
        wanted = [app.app_id for app, plan in plans if plan is None or assess(app, plan, now).unclear]
        if apps and time.monotonic() - self._records_at > _MARKS_S:
            self._records_at = time.monotonic()
            wanted = [app.app_id for app in apps]
        elif len(wanted) <= _FEW_RECORDS:
            return None
        found, _ = self.cluster.list("services", selector(wanted))
        records = filter(None, map(AppRecord.of, found))
        return {record.name: record for record in records}

    def _assessed(
        self, app: App, now: float, records: Mapping[str, AppRecord] | None, *, alone: bool
    ) -> tuple[App, Plan, Assessment] | None:
        """Assess an app and do its next steps; None if it does not exist."""
        cached = self._catalog.of(app.app_id)
        plan = app.plan()
        assessment = assess(app, plan, now) if plan is not None else None
        is_listed = records is not None and app.app_id in records
        if assessment is None or assessment.unclear or is_listed or (alone and cached.request is None):
            try:
                app.record = (
                    self._catalog.record(app.app_id)
                    if records is None
                    else self._catalog.checked(records.get(app.app_id))
                )
            except DamagedError as error:
                # One damaged record must not fail the responses for the others.
                assessment = assessment or Assessment(AppState.UNKNOWN)
                return app, plan or _NO_PLAN, dataclasses.replace(assessment, msg=str(error))
            if app.record is None:
                # Kubernetes removes its remaining Jobs.
                self._catalog.forget(app.app_id)
                return None
            plan = plan or self._catalog.plan(app.app_id)
            self._catalog.complete(app)
            assessment = assess(app, plan, now)
        assert plan is not None
        if app.record is not None and app.record.deleting:
            if cached.final is not None or assessment.state not in _LIVE:
                # The rest is removed within seconds, or when a finalizer allows it.
                self._catalog.forget(app.app_id)
                return None
            return app, plan, Assessment(assessment.state, "being deleted", assessment.phases)
        # The record may name Jobs that were created after the list, so only a second read shows a loss.
        is_sure = assessment.state is not AppState.UNKNOWN
        if assessment.settled and is_sure:
            return app, plan, assessment
        refused = self._observer.with_recent_refusal((app, plan, assessment)) if is_sure else None
        return refused or self._observer.work(app.app_id, report_refusals=True)

    def _is_held(self, app: App, plan: Plan, msg: str) -> bool:
        """Return whether an app waits for its queue, or for a user who has suspended it."""
        if plan.queue:
            return any(job.held for (_, attempt), job in app.jobs.items() if attempt == app.attempt)
        cached = self._catalog.of(app.app_id)
        # Each attempt of a group is queued again, and its pods may not exist yet.
        waits = cached.running_attempt != app.attempt and not any(pod.app_attempt == app.attempt for pod in cached.pods)
        return plan.group is not None and (waits or msg.startswith(GATED))

    def _queued(self, app: App, plan: Plan) -> str:
        """Return why a queue or a user holds an app back."""
        cached = self._catalog.of(app.app_id)
        if cached.queued_attempt != app.attempt:
            cached.queued, cached.queued_at, cached.queued_attempt = "", float("-inf"), app.attempt
        if time.monotonic() - cached.queued_at > _QUEUED_S:
            cached.queued_at = time.monotonic()
            found = queue_state(self.cluster, app, plan)
            # If the queue cannot be read now, keep the last reason.
            if found is not None or not cached.queued:
                cached.queued = self._after_attempts(app, (found.reason if found else "") or HELD)
            if found is not None and plan.queue:
                self._observer.count_preemptions(app, found.evictions)
                if not found.reason and cached.running_attempt is not None:
                    cached.queued_at = float("-inf")  # just suspended: the reason and the count follow soon
        return cached.queued

    def _after_attempts(self, app: App, reason: str) -> str:
        """Return the reason with the cause that ended the previous attempt."""
        if not app.attempt or (record := app.record or self._catalog.unchecked_record(app.app_id)) is None:
            return reason
        before = record.annotations.get(f"{Annotation.CAUSE}{app.attempt - 1}", NONE)
        return f"{reason}; attempt {app.attempt} ended: {before}"

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        with self._catalog.mutex:
            self._observer.cancel(app_id)

    def exists(self, app_id: str) -> bool:
        """Return whether the app exists; its state is not read, because cancel and delete do that."""
        return bool(APP_ID.fullmatch(app_id)) and self._catalog.unchecked_record(app_id) is not None

    def _delete_existing(self, app_id: str) -> None:
        with self._catalog.mutex:
            record = self._catalog.unchecked_record(app_id)
            if record is None:
                return
            if record.owners and not record.deleting:
                # Remove the owner references first: record and Jobs own each other, so the deletion would never end.
                test = {"op": "test", "path": "/metadata/uid", "value": record.uid}
                with contextlib.suppress(NotFoundError, ConflictError):  # gone, or another process deletes it
                    change = {"op": "remove", "path": "/metadata/ownerReferences"}
                    self.cluster.patch("services", app_id, [test, change])
            self.cluster.delete("services", app_id, record.uid)
            self._catalog.forget(app_id)

    def missing_rights(self) -> builtins.list[str]:
        """Return the missing permissions, such as `create pods`; nothing is created."""
        asked = [(verb, resource) for resource, verbs in VERBS.items() for verb in verbs]
        return [f"{verb} {resource}" for verb, resource in asked if not self.cluster.may(verb, resource)]

    def close(self) -> None:
        self._logs.close()
        self.cluster.close()

    # ---- records -----------------------------------------------------------------------------------------------------

    def describe_native(self, app_id: str) -> AppDryRunInfo[KubernetesRequest] | None:
        if not APP_ID.fullmatch(app_id) or (record := self._catalog.record(app_id)) is None:
            return None
        with self._catalog.mutex:
            request = self._catalog.whole_request(app_id) or unpacked(record.annotations[Annotation.REQUEST])
        return AppDryRunInfo(request, format_request)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one namespace
        items, now = self.cluster.list("jobs", selector([]))
        apps = apps_in(items)
        records, _ = self.cluster.list("services", selector([]))
        assessed: builtins.list[tuple[App, Plan, Assessment, AppRecord]] = []
        with self._catalog.mutex:
            for document in records:
                if (record := AppRecord.of(document)) is None:
                    continue
                app, plan, assessment = self._listed(apps.get(record.name) or App(record.name), record, now)
                if not record.deleting or assessment.state in _LIVE:
                    assessed.append((app, plan, assessment, record))
            waiting = [(app, assessment) for app, _, assessment, _ in assessed if assessment.state is AppState.PENDING]
            self._catalog.read_pods(waiting)
            found = []
            for app, plan, assessment, record in assessed:
                notes = record.annotations
                try:
                    state = response_from(app, plan, assessment, self._catalog.of(app.app_id).pods, None).state
                except UNREADABLE:
                    log.warning("app %s is listed as UNKNOWN", app.app_id, exc_info=True)
                    state = AppState.UNKNOWN
                name, owner = notes.get(Annotation.APP_NAME, ""), owner_from(notes.get(Annotation.OWNER))
                # A sweep skips apps without an age; it could not delete a damaged one.
                created = None if plan is _NO_PLAN else record.created
                found.append(ListAppResponse(app.app_id, state, name=name, owner=owner, created_at=created))
        return sorted(found, key=lambda row: row.app_id)

    def _listed(self, app: App, record: AppRecord, now: float) -> tuple[App, Plan, Assessment]:
        try:
            with readable(record):
                record.check()
                plan = app.plan() or plan_in(plan_text(unpacked(record.annotations[Annotation.REQUEST])))
                app.record = record
                return app, plan, assess(app, plan, now)
        except DamagedError as error:
            return app, _NO_PLAN, Assessment(AppState.UNKNOWN, str(error))

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        with self._catalog.mutex:
            if not APP_ID.fullmatch(app_id) or self._catalog.record(app_id) is None:
                raise UnknownAppException(app_id)
            first = self._catalog.plan(app_id).roles[0]
        # Most apps write a result in replica 0 or none at all, so list the pods of the others only if needed.
        numbers = range(first.num_replicas)
        for some, where in ((numbers[:1], f",{Label.INDEX}=0"), (numbers[1:], "")):
            pods, deadline = self._pods_of_results(app_id, first.slug, some, where), time.monotonic() + _RESULT_S
            while any(map(is_result_awaited, pods.values())) and time.monotonic() < deadline:
                time.sleep(_FIRST_RESULT_S)
                pods = self._pods_of_results(app_id, first.slug, some, where)
            yield from (self._result_of(app_id, f"{first.name}/{k}", pods.get(k)) for k in some)

    def _result_of(self, app_id: str, replica: str, pod: Pod | None) -> JsonValue:
        container = result_container_of(pod)
        if pod is None or container is None:
            return result_in(pod)
        if is_result_awaited(pod):
            raise AppUnavailableError(
                f"app {app_id!r}: container {container.name!r} of {replica} has not ended yet, and so not returned its "
                f"result; the same call may succeed later"
            )
        size = size_of(container, replica)
        if size is None:
            return None
        data = self._result_bytes(pod, size) if size <= LIMIT_BYTES else b""
        if data is None:
            raise InvalidAppError(
                f"the result of {replica} is lost: the node has not kept the whole log of container "
                f"{container.name!r}; run the app again, or write the result to a volume or an object store"
            )
        return result_from(pod, data, size)

    def _result_bytes(self, pod: Pod, size: int) -> bytes | None:
        """Return the result; None if its node has lost a part of it."""
        deadline = time.monotonic() + _RESULT_S
        for pause_s in backoff(_FIRST_RESULT_S, _SECOND_S):
            with contextlib.suppress(NotFoundError):
                data = result_bytes(self.cluster.log_end(pod.name, NAME, LOG_LINES, LOG_BYTES), size)
                if data is not None:
                    return data
            # The node may copy the last lines after it reports the end.
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
        return None

    def _pods_of_results(self, app_id: str, role: str, numbers: range, where: str) -> dict[int, Pod]:
        if not numbers:
            return {}
        with self._catalog.mutex:
            if (record := self._catalog.record(app_id)) is None:
                raise UnknownAppException(app_id)
            items, _ = self.cluster.list("pods", f"{selector([app_id])},{Label.ROLE}={role}{where}")
            newest = newest_attempts((pod for _, pod in pods_in(items)), record.attempt)
            found = {k: newest[role, k] for k in numbers if (role, k) in newest}
            missing = {*numbers} - {*found}
            if missing and missing & self._completed(app_id, role, record.attempt):
                # Most apps write no result, so this must not fail them.
                log.warning(
                    "app %s: the pod that may have written a result was removed, and the result with it", app_id
                )
        return found

    def _completed(self, app_id: str, role: str, attempt: int) -> frozenset[int]:
        apps, _ = self._catalog.jobs([app_id])
        job = apps[app_id].jobs.get((role, attempt)) if app_id in apps else None
        return job.completed if job is not None else frozenset()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        refuse_separate_streams(self.backend, role_name, streams)
        plan = self._catalog.plan_for(app_id)
        roles = [Role(role.name, "", num_replicas=role.num_replicas) for role in plan.roles]
        check_replica(roles, role_name, k)
        slug = plan.slug_of(role_name)
        state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
        pods, fresh = self._catalog.cached_pods(app_id, slug, k), self._catalog.is_over(app_id)
        while True:
            if not pods and not fresh:
                pods, fresh = self._catalog.current_pods(app_id, slug, k), True
            try:
                chunk = self._logs.read(pods, state, time.time() + self.cluster.ahead_s, plan.container_logs)
            except NotFoundError:
                # The pod was removed, and its log with it.
                chunk = LogChunk([], state or None)
            if chunk.lines or fresh:
                return chunk
            # No new lines from a cached list of attempts: list the pods again, there may be a new attempt.
            state = dict(chunk.cursor) if isinstance(chunk.cursor, dict) else {}
            pods, fresh = self._catalog.current_pods(app_id, slug, k), True

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        if streams not in {None, Stream.COMBINED}:
            return None
        plan = self._catalog.plan_for(app_id)
        slug = plan.slug_of(role_name)
        state = cursor if isinstance(cursor, dict) else {}
        return self._logs.stream(self._catalog.cached_pods(app_id, slug, k), state, plan.container_logs)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        slug = self._catalog.plan_for(app_id).slug_of(role_name)
        for list_pods in (self._catalog.cached_pods, self._catalog.current_pods):
            every = list_pods(app_id, slug, k)
            pods = [pod for pod in every if pod.number == attempt]
            if pods and (pods[-1].over or pods[-1].exit_code is not None):
                return ending_of(pods[-1])
            if not pods and any(pod.number > attempt for pod in every):
                return "its pod was removed, and its log with it"
        return ""


class SeveralNamespacesScheduler(SeveralNamespaces, KubernetesScheduler):
    """The scheduler of a connection with several namespaces or clusters, each of which has a scheduler of its own."""

    def __init__(self, session_name: str, connection: KubernetesConnection | None = None) -> None:
        super().__init__(session_name, connection)
        self.use(
            {
                place: KubernetesScheduler(session_name, connection_to(self.connection, place), self.checker_of(place))
                for place in places_of(self.connection)
            }
        )

    def close(self) -> None:
        SeveralNamespaces.close(self)
        KubernetesScheduler.close(self)


create_scheduler = KubernetesScheduler.create
