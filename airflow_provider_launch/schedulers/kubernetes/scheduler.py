"""The Kubernetes scheduler: apps as Indexed Jobs of one namespace.

All truth is in the cluster, so any process that reaches it sees the same apps. What Kubernetes does not do by itself,
the end of the others after a failure and retries of the whole app, is done by whoever describes an app; `reconcile`
says how they keep out of each other's way.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    Scheduler,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.kubernetes.bodies import (
    BACKSTOP_S,
    anchor_body,
    format_request,
    job_body,
    owner,
    plan_text,
    pod_body,
)
from airflow_provider_launch.schedulers.kubernetes.client import (
    Cluster,
    ConflictError,
    NotFoundError,
    TakenError,
)
from airflow_provider_launch.schedulers.kubernetes.log_reader import LogReader
from airflow_provider_launch.schedulers.kubernetes.naming import APP_ID, Note, Tag, app_slug
from airflow_provider_launch.schedulers.kubernetes.objects import Anchor, App, Job, Plan, Pod, apps_in, plan_in, pod_of
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection, KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.reconcile import Verdict, judge
from airflow_provider_launch.schedulers.kubernetes.refusals import is_passing
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest, build_request, unpacked
from airflow_provider_launch.schedulers.kubernetes.status import newest_attempts, response_from
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal

__all__ = ["VERBS", "KubernetesScheduler", "create_scheduler"]

VERBS: Mapping[str, tuple[str, ...]] = {
    "services": ("create", "get", "list", "patch", "delete"),
    "jobs.batch": ("create", "get", "list", "patch"),
    "pods": ("create", "list", "patch"),
    "pods/log": ("get",),
    "events": ("list",),
}
"""What we do to what; the connection test asks for each of them, and the Role of the docs grants them."""
_PARALLEL = 8
_ROUNDS = 8
"""Steps of one look at an app; what is left is for the next look."""
_NAMED_APPS = 40
"""Apps that are asked for by name; of more of them everything is listed."""
_STOPPED_PODS = 100
"""Replicas that are ended one by one, so that their logs stay; more of them are ended by their Job."""
_FEW_ANCHORS = 2
_UNSTEADY_APPS = 3
_UNSTEADY_S = 10.0
"""How often the pods of an app are looked at that waits, if there are many such apps."""
_SILENT_S = 5.0
"""How often the events are asked why a Job has no pods."""
_DELETION_S, _PAUSE_S = 30.0, 0.2
_KEPT_APPS = 5000

T = TypeVar("T")


@dataclass
class _Known:
    """What is remembered of an app, all of it can be read again."""

    anchor_uid: str | None = None
    request: KubernetesRequest | None = None
    plan: Plan | None = None
    pods: builtins.list[Pod] = field(default_factory=list)
    pods_of: tuple[str, ...] | None = None
    """Versions of the Jobs for which the pods were read."""
    pods_at: float = float("-inf")
    began: bool = False
    silence: str = ""
    silence_at: float = float("-inf")
    final: DescribeAppResponse | None = None
    final_of: frozenset[str] = frozenset()
    """Uids of the Jobs of the answer."""


class KubernetesScheduler(Scheduler[KubernetesOpts]):
    """Runs each attempt of each replica as a pod of its own, which stays until app or TTL end."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.REPLICA_RETRY,
            Capability.APPLICATION_RETRY,
            Capability.ADOPT,
            Capability.TIME_FILTER,
            Capability.RANK0,
            Capability.PORTS,
            Capability.GPU,
            Capability.BIND_MOUNT,
            Capability.VOLUME_MOUNT,
            Capability.RESULT,
        }
    )
    poll_interval_s: ClassVar[float] = 2.0

    def __init__(self, session_name: str, connection: KubernetesConnection | None = None) -> None:
        super().__init__("kubernetes", session_name)
        self.connection = connection or KubernetesConnection()
        self.cluster = Cluster(self.connection)
        self._logs = LogReader(self.cluster)
        # Describe is called from the threads of several followers; two of them need not do the same work.
        self._mutex = threading.RLock()
        self._known: dict[str, _Known] = {}

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        return KubernetesOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: KubernetesOpts) -> None:
        """Accept roles without a resource: the namespace may have defaults."""

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[KubernetesRequest]:
        opts = resolve_options(KubernetesOpts, cfg, strict=False)
        chosen = app_id or make_unique(app_slug(app.name))
        if not APP_ID.fullmatch(chosen):
            raise InvalidAppError(
                f"app id {chosen!r} cannot name a Service of 'kubernetes'; use up to 63 lower-case letters, digits and "
                f"'-', beginning with a letter and not ending in '-'"
            )
        return AppDryRunInfo(build_request(app, opts, chosen, os.environ), format_request)

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesRequest]) -> str:
        request = dryrun_info.request
        claimed = self._claim(request)
        try:
            found = self._work(request.app_id, submitted=True, request=request)
        except LaunchError as error:
            if claimed and not isinstance(error, SchedulerUnavailableError):
                self._take_back(request)
            raise
        if found is None:
            raise SchedulerRejectedError(
                f"app {request.app_id!r} was deleted while it was submitted; nothing of it was started"
            )
        return request.app_id

    def _claim(self, request: KubernetesRequest) -> bool:
        """Create the anchor of the app; False: it exists, and is of the same app."""
        deadline = time.monotonic() + _DELETION_S
        while True:
            refusal = self._refusal(request)
            existing = None
            if refusal is None:
                try:
                    self.cluster.create("services", anchor_body(request))
                except TakenError:
                    pass
                except NotFoundError as error:
                    raise self._no_namespace(error) from error
                else:
                    return True
            # What is refused now may be running already: a repeated submission meets its own quota.
            existing = self.cluster.get("services", request.app_id)
            if existing is None:
                if refusal is not None:
                    raise refusal
                continue
            anchor = Anchor.of(existing)
            if anchor is not None and anchor.deleting and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                continue
            self._refuse_other(request, anchor)
            return False

    def _refusal(self, request: KubernetesRequest) -> LaunchError | None:
        """Return what the server would say to the pods and Jobs of the app; None: it would take them."""
        for role in request.roles:
            job = job_body(request, role, 0)
            for kind, body in (("pods", pod_body(job)), ("jobs", job)):
                try:
                    self.cluster.create(kind, body, dry_run=True)
                except TakenError:
                    continue
                except NotFoundError as error:
                    return self._no_namespace(error)
                except SchedulerRejectedError as error:
                    if is_passing(str(error)):
                        continue
                    return SchedulerRejectedError(f"role {role.name!r}: {error}")
        return None

    def _no_namespace(self, error: NotFoundError) -> SchedulerRejectedError:
        return SchedulerRejectedError(
            f"the cluster at {self.cluster.url} has no namespace {self.cluster.namespace!r} ({error}); "
            f"whoever runs it must create it, or name another one in the connection"
        )

    def _refuse_other(self, request: KubernetesRequest, anchor: Anchor | None) -> None:
        if anchor is None:
            raise AppConflictError(
                f"namespace {self.cluster.namespace!r} has a Service {request.app_id!r} that is no app of the "
                f"launcher; nothing was started. Remove it, or choose another id"
            )
        if anchor.annotations.get(Note.SPEC_HASH) != request.spec_hash:
            raise AppConflictError(
                f"{self.backend!r} has an app {request.app_id!r} with another definition; nothing was started. "
                f"Choose another id, or delete that app first"
            )
        if anchor.deleting:
            raise SchedulerUnavailableError(
                f"the app {request.app_id!r} of before is still being deleted; the same call may succeed later"
            )

    def _take_back(self, request: KubernetesRequest) -> None:
        """Remove what a refused submission has made; best effort, the refusal is what counts."""
        try:
            if (anchor := self._anchor(request.app_id)) is not None:
                self.cluster.delete("services", anchor.name, anchor.uid)
        except LaunchError:
            pass
        self._known.pop(request.app_id, None)

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = builtins.list(app_ids)
        with self._mutex:
            valid = [app_id for app_id in dict.fromkeys(ids) if APP_ID.fullmatch(app_id)]
            apps, now = self._jobs(valid) if valid else ({}, 0.0)
            open_apps = [apps.get(app_id) or App(app_id) for app_id in valid]
            open_apps = [app for app in open_apps if self._final(app) is None]
            anchors = self._anchors(open_apps, now)
            looked = {app.app_id: self._looked(app, now, anchors, alone=len(ids) == 1) for app in open_apps}
            self._read_pods([(app, verdict) for app, _, verdict in filter(None, looked.values())])
            return {app_id: self._described(apps.get(app_id), looked.get(app_id)) for app_id in ids}

    def _jobs(self, ids: builtins.list[str]) -> tuple[dict[str, App], float]:
        """List the Jobs of these apps."""
        items, now = self.cluster.list("jobs", _selector(ids))
        if len(self._known) > _KEPT_APPS:
            # A triggerer lives for months, and all of this can be read again.
            self._known.clear()
        return apps_in(items), now

    def _final(self, app: App) -> DescribeAppResponse | None:
        known = self._known.get(app.app_id)
        if known is None or known.final is None or not app.jobs:
            return None
        same = known.final_of == {job.uid for job in app.jobs.values()}
        return known.final if same else None

    def _described(self, app: App | None, looked: tuple[App, Plan, Verdict] | None) -> DescribeAppResponse | None:
        if looked is None:
            return self._final(app) if app else None
        app, plan, verdict = looked
        known = self._of(app.app_id)
        response = response_from(app, plan, verdict, known.pods, known.request)
        if response.state is AppState.PENDING:
            if known.began:
                response.state = AppState.RUNNING
            elif response.msg == NONE:
                response.msg = self._silence(app) or NONE
        known.began = known.began or response.state is AppState.RUNNING
        if is_terminal(response.state) and known.request is not None and app.jobs:
            known.final, known.final_of = response, frozenset(job.uid for job in app.jobs.values())
        return response

    def _of(self, app_id: str) -> _Known:
        return self._known.setdefault(app_id, _Known())

    def _anchors(self, apps: builtins.list[App], now: float) -> dict[str, Anchor] | None:
        """Return the anchors, by one list, if many apps cannot be judged without; None: they are asked for one by one.

        The list is read after the Jobs, so it is not older than they are.
        """
        plans = [(app, app.plan()) for app in apps]
        unclear = [app.app_id for app, plan in plans if plan is None or judge(app, plan, now).unclear]
        if len(unclear) <= _FEW_ANCHORS:
            return None
        found, _ = self.cluster.list("services", _selector(unclear))
        anchors = filter(None, map(Anchor.of, found))
        return {anchor.name: anchor for anchor in anchors}

    def _looked(
        self, app: App, now: float, anchors: Mapping[str, Anchor] | None, *, alone: bool
    ) -> tuple[App, Plan, Verdict] | None:
        """Judge an app and do what it needs; None: there is none."""
        known = self._of(app.app_id)
        plan = app.plan()
        verdict = judge(app, plan, now) if plan is not None else None
        if verdict is None or verdict.unclear or (alone and known.request is None):
            app.anchor = self._anchor(app.app_id) if anchors is None else self._met(anchors.get(app.app_id))
            if app.anchor is None:
                # Its Jobs, if there are any left, go with it.
                self._known.pop(app.app_id, None)
                return None
            plan = plan or self._plan(app.app_id)
            verdict = judge(app, plan, now)
        assert plan is not None
        if app.anchor is not None and app.anchor.deleting:
            state = known.final.state if known.final else verdict.state
            return app, plan, Verdict(state, "being deleted", verdict.phases)
        if verdict.settled:
            return app, plan, verdict
        return self._work(app.app_id)

    def _anchor(self, app_id: str) -> Anchor | None:
        document = self.cluster.get("services", app_id)
        return self._met(Anchor.of(document) if document else None)

    def _met(self, anchor: Anchor | None) -> Anchor | None:
        """Remember what an anchor says."""
        if anchor is not None and self._of(anchor.name).anchor_uid != anchor.uid:
            # New here, or another app that was given the id of a deleted one.
            request = unpacked(anchor.annotations[Note.REQUEST])
            self._known[anchor.name] = _Known(anchor.uid, request, plan_in(plan_text(request)))
        return anchor

    def _plan(self, app_id: str) -> Plan:
        plan = self._of(app_id).plan
        assert plan is not None, "the anchor was read"
        return plan

    def _read_pods(self, apps: builtins.list[tuple[App, Verdict]]) -> None:
        """Read the pods of the apps whose Jobs have changed, or that wait for something: with one request."""
        moment = time.monotonic()
        wanted = []
        many = len(apps) > _UNSTEADY_APPS
        for app, verdict in apps:
            known = self._of(app.app_id)
            # Before its release an app has no pods.
            if verdict.state in {AppState.SUBMITTED, AppState.UNKNOWN} or not app.jobs:
                continue
            jobs = [job for (_, attempt), job in app.jobs.items() if attempt == app.attempt]
            steady = is_terminal(verdict.state) or all(job.steady for job in jobs)
            due = not steady and moment - known.pods_at > (_UNSTEADY_S if many else 0.0)
            if known.pods_of != app.versions or due:
                wanted.append(app)
        if not wanted:
            return
        items, _ = self.cluster.list("pods", _selector([app.app_id for app in wanted]))
        pods: dict[str, builtins.list[Pod]] = {}
        for item in items:
            pods.setdefault(item["metadata"]["labels"].get(Tag.APP_ID, ""), []).append(pod_of(item))
        for app in wanted:
            known = self._of(app.app_id)
            known.pods, known.pods_of, known.pods_at = pods.get(app.app_id, []), app.versions, moment

    def _silence(self, app: App) -> str:
        """Return why a Job has no pods, which only the events tell."""
        known = self._of(app.app_id)
        for job in app.jobs.values():
            if job.suspended:
                return "suspended: a queue, or a person, holds it back"
            if job.active or job.attempt != app.attempt or job.started is None:
                continue
            if time.monotonic() - known.silence_at > _SILENT_S:
                fields = f"involvedObject.name={job.name},reason=FailedCreate"
                events, _ = self.cluster.list("events", "", fields=fields)
                known.silence = f"FailedCreate: {events[-1].get('message', '')}"[:500] if events else ""
                known.silence_at = time.monotonic()
            return known.silence
        return ""

    # ---- what an observer does ---------------------------------------------------------------------------------------

    def _work(
        self, app_id: str, *, submitted: bool = False, request: KubernetesRequest | None = None
    ) -> tuple[App, Plan, Verdict] | None:
        """Do what the app needs, step by step, each after another look; return how it is then, None: it is gone.

        Args:
            app_id: the app.
            submitted: the caller is at work on the submission.
            request: of the submission.
        """
        found: tuple[App, Plan, Verdict] | None = None
        for _ in range(_ROUNDS):
            apps, now = self._jobs([app_id])
            app = apps.get(app_id) or App(app_id)
            # After the Jobs: what it says of them is then not older than they are.
            app.anchor = self._anchor(app_id)
            if app.anchor is None or (submitted and app.anchor.deleting):
                return None
            plan = self._plan(app_id)
            verdict = judge(app, plan, now, submitted=submitted)
            found = app, plan, verdict
            try:
                if verdict.settled or not self._act(app, plan, verdict, request):
                    break
            except (ConflictError, NotFoundError):
                continue  # somebody else was faster: look again
        return found

    def _act(self, app: App, plan: Plan, verdict: Verdict, request: KubernetesRequest | None) -> bool:
        """Do one step; True: look again at once."""
        anchor = app.anchor
        assert anchor is not None
        if verdict.end:
            self._end(app, verdict.end, plan)
            return False
        if verdict.restart is not None:
            cause = response_from(app, plan, Verdict(AppState.FAILED), self._of(app.app_id).pods, None).msg
            notes = {Note.ATTEMPT: str(anchor.attempt + 1), f"{Note.CAUSE}{anchor.attempt}": cause[:500]}
            self._note(anchor, notes)
        elif verdict.settle_failure:
            self._note(anchor, {Note.RESULT: "FAILED"})
        elif verdict.create:
            self._create(app, request or self._of(app.app_id).request)
        elif verdict.release is not None:
            for job in verdict.release:
                change = {"metadata": {"resourceVersion": job.version}, "spec": {"suspend": False}}
                self.cluster.patch("jobs", job.name, change)
            self._note(anchor, {Note.RELEASED: str(anchor.attempt)})
        return True

    def _note(
        self, anchor: Anchor, notes: Mapping[str, str], owners: builtins.list[dict[str, Any]] | None = None
    ) -> None:
        """Write into the anchor, if it is still what it was.

        Raises:
            ConflictError: somebody else was faster.
        """
        unless = (Note.CANCELLED, Note.RESULT, *notes) if Note.RESULT not in notes else (Note.RESULT,)
        tests: builtins.list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": anchor.uid}]
        # None: it must be absent.
        tests += [
            {"op": "test", "path": _note_path(name), "value": anchor.annotations.get(name)}
            for name in dict.fromkeys([Note.ATTEMPT, *unless])
        ]
        changes: builtins.list[dict[str, Any]] = [
            {"op": "add", "path": _note_path(name), "value": text} for name, text in notes.items()
        ]
        if owners is not None:
            changes.append({"op": "add", "path": "/metadata/ownerReferences", "value": owners})
        self.cluster.patch("services", anchor.name, [*tests, *changes])

    def _create(self, app: App, request: KubernetesRequest | None) -> None:
        """Create the Jobs of the present attempt, suspended, and commit to them."""
        assert request is not None
        assert app.anchor is not None
        anchor = app.anchor
        uids: dict[str, str] = {}
        owners = [*anchor.owners]
        for role in request.roles:
            body = job_body(request, role, anchor.attempt)
            # `blockOwnerDeletion`: whoever deletes the app sees it until its pods have gone.
            reference = {**owner("Service", anchor.name, anchor.uid), "blockOwnerDeletion": True}
            body["metadata"]["ownerReferences"] = [reference]
            try:
                created = self.cluster.create("jobs", body)
            except TakenError:
                created = self._existing(app, request, body["metadata"]["name"])
            uids[role.slug] = created["metadata"]["uid"]
            # When the TTL of the last Job is over, the anchor goes with it.
            owners.append(owner("Job", created["metadata"]["name"], created["metadata"]["uid"]))
        self._note(anchor, {f"{Note.COMMITTED}{anchor.attempt}": _compact(uids)}, owners)

    def _existing(self, app: App, request: KubernetesRequest, name: str) -> dict[str, Any]:
        found = self.cluster.get("jobs", name)
        if found is None:
            raise ConflictError(f"Job {name!r} is gone")
        metadata = found["metadata"]
        mine = (metadata.get("labels") or {}).get(Tag.APP_ID) == app.app_id
        if not mine or (metadata.get("annotations") or {}).get(Note.SPEC_HASH) != request.spec_hash:
            raise AppConflictError(
                f"namespace {self.cluster.namespace!r} has a Job {name!r} that does not belong to this app "
                f"{app.app_id!r}; remove it, or choose another id"
            )
        if "deletionTimestamp" in metadata:
            raise ConflictError(f"Job {name!r} is being deleted")
        return found

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _end(self, app: App, jobs: builtins.list[tuple[Job, str]], plan: Plan) -> None:
        """End Jobs so that the pods stay with their logs.

        A Job that ends removes its pods. So the pods are ended first, one by one, and the Job when none of them runs;
        should nobody come back for that, Kubernetes does it a minute after their grace.
        """
        pods: builtins.list[Pod] = []
        if any(not job.suspended for job, _ in jobs):
            items, now = self.cluster.list("pods", _selector([app.app_id]))
            pods = [pod_of(item) for item in items]
            self._of(app.app_id).pods = pods
        for job, why in jobs:
            mine = [pod for pod in pods if (pod.role, pod.app_attempt) == (job.role, job.attempt)]
            live = [pod for pod in mine if pod.began and not pod.over and not pod.deleting]
            if job.suspended:
                change: dict[str, Any] = {"parallelism": 0, "activeDeadlineSeconds": 1}
                if not plan.queue:
                    # It ends at once, without a pod; a queue would suspend it again.
                    change["suspend"] = False
            elif not live or len(live) > _STOPPED_PODS:
                change = {"activeDeadlineSeconds": 1}
            elif job.ended is None:
                change = {"activeDeadlineSeconds": int(now - (job.started or now)) + plan.grace_s + BACKSTOP_S}
            else:
                change = {}
            if change or job.ended is None:
                document: dict[str, Any] = {"metadata": {"resourceVersion": job.version}, "spec": change}
                if job.ended is None:
                    document["metadata"]["annotations"] = {Note.ENDED: why}
                self.cluster.patch("jobs", job.name, document)
            if 0 < len(live) <= _STOPPED_PODS:
                # What has just ended by itself keeps its own end.
                _each(self._stop, [pod for pod in live if pod.running and pod.deadline != 1])

    def _stop(self, pod: Pod) -> None:
        """Let the node end a pod: TERM, and KILL after its grace."""
        with contextlib.suppress(NotFoundError, ConflictError):  # it has gone meanwhile
            self.cluster.patch("pods", pod.name, {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}})

    def _cancel_existing(self, app_id: str) -> None:
        with self._mutex:
            for _ in range(_ROUNDS):
                found = self._looked_alone(app_id)
                if found is None or is_terminal(found[2].state):
                    return
                anchor = found[0].anchor
                if anchor is None or anchor.deleting:
                    return
                if anchor.cancelled:
                    break
                try:
                    self._note(anchor, {Note.CANCELLED: "true"})
                    break
                except ConflictError:
                    continue
            self._work(app_id)

    def _looked_alone(self, app_id: str) -> tuple[App, Plan, Verdict] | None:
        """Judge an app with its anchor, and do nothing."""
        apps, now = self._jobs([app_id])
        app = apps.get(app_id) or App(app_id)
        app.anchor = self._anchor(app_id)
        if app.anchor is None:
            return None
        plan = self._plan(app_id)
        return app, plan, judge(app, plan, now)

    def exists(self, app_id: str) -> bool:
        """Tell whether the scheduler knows the app; its state is not looked at, since cancel and delete do that."""
        return bool(APP_ID.fullmatch(app_id)) and self._anchor(app_id) is not None

    def _delete_existing(self, app_id: str) -> None:
        with self._mutex:
            anchor = self._anchor(app_id)
            if anchor is None:
                return
            if anchor.owners and not anchor.deleting:
                # Owned by what it owns, it would wait for itself.
                test = {"op": "test", "path": "/metadata/uid", "value": anchor.uid}
                with contextlib.suppress(NotFoundError, ConflictError):  # gone, or somebody else deletes it
                    change = {"op": "remove", "path": "/metadata/ownerReferences"}
                    self.cluster.patch("services", app_id, [test, change])
            self.cluster.delete("services", app_id, anchor.uid)

    def missing_rights(self) -> builtins.list[str]:
        """Return what the cluster would not let us do, as `create pods`; nothing is created."""
        asked = [(verb, resource) for resource, verbs in VERBS.items() for verb in verbs]
        return [f"{verb} {resource}" for verb, resource in asked if not self.cluster.may(verb, resource)]

    def close(self) -> None:
        self._logs.close()
        self.cluster.close()

    # ---- records -----------------------------------------------------------------------------------------------------

    def describe_native(self, app_id: str) -> AppDryRunInfo[KubernetesRequest] | None:
        if not APP_ID.fullmatch(app_id) or self._anchor(app_id) is None:
            return None
        request = self._of(app_id).request
        return AppDryRunInfo(request, format_request) if request else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one namespace
        items, now = self.cluster.list("jobs", _selector([]))
        apps = apps_in(items)
        anchors, _ = self.cluster.list("services", _selector([]))
        judged: builtins.list[tuple[App, Plan, Verdict, str]] = []
        with self._mutex:
            for document in anchors:
                anchor = Anchor.of(document)
                if anchor is None:
                    continue
                app = apps.get(anchor.name) or App(anchor.name)
                app.anchor = anchor
                plan = app.plan() or self._plan_of(anchor)
                judged.append((app, plan, judge(app, plan, now), anchor.annotations.get(Note.APP_NAME, "")))
            self._read_pods([(app, verdict) for app, _, verdict, _ in judged if verdict.state is AppState.PENDING])
            found = []
            for app, plan, verdict, name in judged:
                state = response_from(app, plan, verdict, self._of(app.app_id).pods, None).state
                found.append(ListAppResponse(app.app_id, state, name=name))
        return sorted(found, key=lambda row: row.app_id)

    def _plan_of(self, anchor: Anchor) -> Plan:
        return plan_in(plan_text(unpacked(anchor.annotations[Note.REQUEST])))

    def result(self, app_id: str) -> JsonValue:
        with self._mutex:
            if not APP_ID.fullmatch(app_id) or (anchor := self._anchor(app_id)) is None:
                raise UnknownAppException(app_id)
            first = self._plan(app_id).roles[0].slug
            items, _ = self.cluster.list("pods", f"{_selector([app_id])},{Tag.ROLE}={first},{Tag.INDEX}=0")
        pod = newest_attempts(map(pod_of, items), anchor.attempt).get((first, 0))
        if pod is None or pod.exit_code != 0 or not pod.said:
            return None
        data = pod.said.encode()
        # Of a larger document Kubernetes keeps as much as is allowed.
        return parse_result(data, len(data) + (len(data) >= RESULT_LIMIT_BYTES))

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        if streams not in {None, Stream.COMBINED}:
            raise ValueError(f"'kubernetes' does not keep {streams.value} apart from the rest; ask for combined")
        plan = self._plan_for(app_id)
        roles = [Role(role.name, "", num_replicas=role.num_replicas) for role in plan.roles]
        check_replica(roles, role_name, k)
        slug = next(role.slug for role in plan.roles if role.name == role_name)
        state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
        pods, fresh = self._pods_known(app_id, slug, k), False
        while True:
            if not pods and not fresh:
                pods, fresh = self._pods_now(app_id, slug, k), True
            try:
                chunk, certain = self._read_attempts(pods, state), False
            except NotFoundError:
                # The pod was removed, and its log with it.
                chunk, certain = LogChunk([], state or None), False
            if chunk.lines or fresh or certain:
                return chunk
            # Nothing new is only nothing new if the list of attempts is not older than the question.
            state = dict(chunk.cursor) if isinstance(chunk.cursor, dict) else {}
            pods, fresh = self._pods_now(app_id, slug, k), True

    def _plan_for(self, app_id: str) -> Plan:
        known = self._known.get(app_id)
        if known is not None and known.plan is not None:
            return known.plan
        if not APP_ID.fullmatch(app_id) or self._anchor(app_id) is None:
            raise UnknownAppException(app_id)
        return self._plan(app_id)

    def _pods_known(self, app_id: str, slug: str, k: int) -> builtins.list[Pod]:
        known = self._known.get(app_id)
        pods = known.pods if known else []
        return sorted((p for p in pods if (p.role, p.replica) == (slug, k)), key=lambda pod: pod.order)

    def _pods_now(self, app_id: str, slug: str, k: int) -> builtins.list[Pod]:
        items, _ = self.cluster.list("pods", f"{_selector([app_id])},{Tag.ROLE}={slug},{Tag.INDEX}={k}")
        if not items and self._anchor(app_id) is None:
            raise UnknownAppException(app_id)
        return sorted(map(pod_of, items), key=lambda pod: pod.order)

    def _read_attempts(self, pods: builtins.list[Pod], state: dict[str, Any]) -> LogChunk:
        """Return the next lines of a replica, from the attempt on that the state names."""
        lines: builtins.list[Any] = []
        for pod in pods:
            at = [pod.app_attempt, pod.attempt, pod.disruptions]
            if state.get("at") and at < builtins.list(state["at"]):
                continue
            if state.get("at") != at or state.get("uid") != pod.uid:
                if not pod.began:
                    break
                state = {"at": at, "uid": pod.uid}
            if state.get("done"):
                continue
            ended = pod.over or pod.exit_code is not None
            chunk = self._logs.read(pod.name, pod.uid, state, complete=ended)
            state = {"at": at, "uid": pod.uid, **chunk.cursor}
            attempt = pod.app_attempt + pod.attempt
            lines = [line._replace(attempt=attempt) for line in chunk.lines] if attempt else chunk.lines
            if lines or not ended:
                break
        return LogChunk(lines, state or None)


def create_scheduler(session_name: str, **kwargs: Any) -> KubernetesScheduler:
    """Return the Kubernetes scheduler; the cluster is first asked when it is needed.

    Args:
        session_name: part of every handle; the connection id in Airflow.
        **kwargs: fields of `KubernetesConnection`; others are ignored, since all factories get the same.
    """
    names = {item.name for item in dataclasses.fields(KubernetesConnection)}
    given = {name: value for name, value in kwargs.items() if name in names}
    return KubernetesScheduler(session_name, resolve_options(KubernetesConnection, given, strict=True))


def _selector(ids: builtins.list[str]) -> str:
    if not ids or len(ids) > _NAMED_APPS:
        return f"{Tag.MANAGED}=true"
    return f"{Tag.APP_ID}={ids[0]}" if len(ids) == 1 else f"{Tag.APP_ID} in ({','.join(sorted(ids))})"


def _note_path(name: str) -> str:
    return f"/metadata/annotations/{name.replace('~', '~0').replace('/', '~1')}"


def _compact(document: Mapping[str, str]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _each(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for each item, several at once; the first error is raised when all have been tried."""
    todo = builtins.list(items)
    if len(todo) < 2:  # noqa: PLR2004 - one needs no thread
        for item in todo:
            call(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL, len(todo)), thread_name_prefix="launch-kubernetes") as pool:
        for future in [pool.submit(call, item) for item in todo]:
            future.result()
