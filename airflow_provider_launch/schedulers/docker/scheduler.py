"""The Docker scheduler: apps as containers of one engine.

All truth is in the engine, so any process that reaches it sees the same apps. Retries are made by whoever describes an
app; `status.judge` says how they keep out of each other's way.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from airflow_provider_launch.schedulers.docker.containers import (
    TAKEN,
    App,
    Container,
    Detail,
    Plan,
    apps_in,
    epoch_ns,
    void_name,
)
from airflow_provider_launch.schedulers.docker.engine import Engine, NotFoundError, TakenError
from airflow_provider_launch.schedulers.docker.log_reader import Chunk, LogReader
from airflow_provider_launch.schedulers.docker.naming import APP_ID, Kind, Label, container_name, mark_name, slug
from airflow_provider_launch.schedulers.docker.options import DockerConnection, DockerOpts
from airflow_provider_launch.schedulers.docker.request import (
    ERROR_PATH,
    NAMELESS,
    RESULT_PATH,
    DockerRequest,
    build_request,
    container_body,
    format_request,
    mark_body,
    record_body,
    request_in,
)
from airflow_provider_launch.schedulers.docker.status import (
    CANCEL,
    Attempt,
    EndMark,
    Verdict,
    judge,
    response_from,
    to_inspect,
)
from airflow_provider_launch.schedulers.ids import make_unique
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

__all__ = ["DockerScheduler", "create_scheduler"]

_PARALLEL = 4
_ROUNDS = 6
"""Steps of one look at an app; what is left is for the next look."""
_TAKEOVER_S = 10.0
"""How long another observer's container may stay unstarted until its creator is held for dead."""
_IN_FLIGHT_S = 1.0
"""How long a start may be under way in the engine before it shows: from then on a new name does not stop it."""
_LOOK_AGAIN_S = 1.0
_START_S = 2.0
_SIGKILL_CODE, _CAUSE_S = 137, 0.2
_RIVAL_PAUSE_S, _RIVALS_S = 0.3, 5.0
_KEPT_APPS, _KEPT_REPLIES = 5000, 200
_CLOCK_S = 60
_GRACE_S = 60.0
_LONGEST_REPLY = 64 * 1024
_KILLED = {137, 143, 255}
"""Exit codes of what an engine kills when it ends or starts, or finds dead after a crash of its host."""
_DOWN_NS = 900 * 1_000_000_000
"""How long an engine may have been down until its start is not held for the reason of an end any more."""

T = TypeVar("T")


class DockerScheduler(Scheduler[DockerOpts]):
    """Runs each attempt of each replica as a container of its own, which stays until the app is deleted."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.REPLICA_RETRY,
            Capability.APPLICATION_RETRY,
            Capability.ADOPT,
            Capability.STREAMS,
            Capability.TIME_FILTER,
            Capability.RANK0,
            Capability.PORTS,
            Capability.GPU,
            Capability.BIND_MOUNT,
            Capability.VOLUME_MOUNT,
            Capability.DEVICE_MOUNT,
            Capability.RESULT,
        }
    )
    poll_interval_s: ClassVar[float] = 0.5

    def __init__(self, session_name: str, connection: DockerConnection | None = None) -> None:
        super().__init__("docker", session_name)
        self.connection = connection or DockerConnection()
        self.engine = Engine(self.connection)
        self._logs = LogReader(self.engine)
        # Describe is called from the threads of several followers; two of them need not do the same work.
        self._mutex = threading.RLock()
        self._details: dict[str, Detail] = {}
        self._looked: dict[str, float] = {}
        self._unstarted_since: dict[str, float] = {}
        self._stopped_at: dict[str, float] = {}
        self._requests: dict[str, DockerRequest] = {}
        self._apps: dict[str, tuple[App, float]] = {}
        self._boundaries: dict[str, int] = {}
        self._listed_at = 0.0
        self._replies: dict[str, str] = {}

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        return DockerOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: DockerOpts) -> None:
        """Accept roles without a resource: containers share the host."""

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[DockerRequest]:
        opts = resolve_options(DockerOpts, cfg, strict=False)
        chosen = app_id or make_unique(slug(app.name)[:100] or "app")
        if not APP_ID.fullmatch(chosen):
            raise InvalidAppError(
                f"app id {chosen!r} cannot name a container; use 2 to 180 letters, digits, '.', '_' and '-'"
            )
        request = build_request(app, opts, chosen, os.environ, self.connection.gpus or [])
        return AppDryRunInfo(request, format_request)

    def schedule(self, dryrun_info: AppDryRunInfo[DockerRequest]) -> str:
        mine: set[str] = set()
        request = self._claim(dryrun_info.request)
        if request is not None:
            try:
                self._prepare(request)
                self._create_all(request, self._first_attempts(request), mine)
            except LaunchError as error:
                if not isinstance(error, SchedulerUnavailableError):
                    self._take_back(request, mine)
                raise
        app_id = dryrun_info.request.app_id
        found = self._work(app_id, submitted=True, mine=mine, request=dryrun_info.request)
        if found is None or found[0].record is None:
            raise SchedulerRejectedError(
                f"app {app_id!r} was deleted while it was submitted; nothing of it was started"
            )
        return app_id

    def _claim(self, request: DockerRequest) -> DockerRequest | None:
        """Create the record of the app and return the request in it; None: it exists, and is of the same app."""
        wants_gpus = any(role.gpu for role in request.roles)
        while True:
            try:
                if wants_gpus and not self._look([request.app_id])[0]:
                    request = self._lease_gpus(request)
                record = self._create(request, request.app_id, record_body(request))
            except TakenError as error:
                self._refuse_other(request, error.labels)
                return None
            if wants_gpus and self._has_rival(request, record):
                self.engine.remove(record)
                time.sleep(random.uniform(0, _RIVAL_PAUSE_S))  # noqa: S311 - no secret
                continue
            self._remember(request)
            return request

    def _has_rival(self, request: DockerRequest, record: str) -> bool:
        """Tell whether another app leased the same GPU in the same moment.

        Nobody can tell which of them the engine showed first, so each that sees another steps back and tries again.
        """
        mine = {device for devices in request.gpus.values() for device in devices}
        rows, now = self.engine.containers()
        leases = self._leases(apps_in(rows).values(), now)
        return any(devices & mine and not (app.record and app.record.id == record) for app, devices in leases)

    def _leases(self, apps: Iterable[App], now: float) -> builtins.list[tuple[App, set[str]]]:
        """Return the apps that hold GPUs, and which."""
        given = [(app, app.record.labels.get(Label.GPUS) if app.record else None) for app in apps]
        with self._mutex:
            return [(app, set(gpus.split(","))) for app, gpus in given if gpus and not self._has_ended(app, now)]

    def _has_ended(self, app: App, now: float) -> bool:
        return is_terminal(self._judge(app, now).state)

    def _refuse_other(self, request: DockerRequest, labels: Mapping[str, str]) -> None:
        if labels.get(Label.APP_ID) != request.app_id:
            raise AppConflictError(
                f"the engine has a container {request.app_id!r} that is no app of the launcher; nothing was "
                f"started. Remove it, or choose another id"
            )
        if labels.get(Label.SPEC_HASH) != request.spec_hash:
            raise AppConflictError(
                f"{self.backend!r} has an app {request.app_id!r} with another definition; nothing was started. "
                f"Choose another id, or delete that app first"
            )

    def _prepare(self, request: DockerRequest) -> None:
        """See that images and the network are there."""
        if request.pull == "always":
            for image in {role.body["Image"] for role in request.roles}:
                self.engine.pull(image, request.platform)
        if request.network in NAMELESS:
            return
        if request.own_network:
            labels = {Label.MANAGED: "true"}
            if request.network == request.app_id:
                labels[Label.APP_ID] = request.app_id
            self.engine.ensure_network(request.network, labels)
        elif not self.engine.has_network(request.network):
            raise SchedulerRejectedError(
                f"the Docker engine has no network {request.network!r}; create it, or use 'launch' or 'app'"
            )

    def _first_attempts(self, request: DockerRequest) -> builtins.list[Attempt]:
        return [(role.name, k, 0, 0) for role in request.roles for k in range(role.num_replicas)]

    def _create_all(self, request: DockerRequest, attempts: Iterable[Attempt], mine: set[str]) -> None:
        """Create one container for each attempt; the ids of those that did not exist go into `mine`."""

        def create(attempt: Attempt) -> None:
            name, k, app_attempt, number = attempt
            role = request.role(name)
            container = container_name(request.app_id, role.slug, k, app_attempt, number)
            try:
                mine.add(self._create(request, container, container_body(request, role, k, app_attempt, number)))
            except TakenError as error:
                owner = (error.labels.get(Label.APP_ID), error.labels.get(Label.SPEC_HASH))
                if owner != (request.app_id, request.spec_hash):
                    raise AppConflictError(
                        f"the engine has a container {container!r} that does not belong to this app "
                        f"{request.app_id!r}; remove it, or choose another app id"
                    ) from error

        _each(create, attempts)

    def _create(self, request: DockerRequest, name: str, body: Mapping[str, Any]) -> str:
        try:
            return self.engine.create(name, body, request.platform)
        except NotFoundError as error:
            image = body["Image"]
            if "image" not in str(error).lower():
                raise SchedulerRejectedError(f"the Docker engine refuses container {name!r}: {error}") from error
            if request.pull == "never":
                raise SchedulerRejectedError(
                    f"the Docker engine has no image {image!r}, and option pull is 'never' ({error}); "
                    f"bring it there, or use pull='missing'"
                ) from error
        self.engine.pull(image, request.platform)
        try:
            return self.engine.create(name, body, request.platform)
        except NotFoundError as error:
            raise SchedulerRejectedError(f"the Docker engine refuses container {name!r}: {error}") from error

    def _take_back(self, request: DockerRequest, mine: set[str]) -> None:
        """Remove what a refused submission has made; best effort, the refusal is what counts."""
        try:
            _each(lambda container: self.engine.remove(container, force=False), mine)
            self.engine.remove(request.app_id)
            self.engine.remove_network(request.network, request.app_id)
        except LaunchError:
            pass
        self._forget(request.app_id)

    def _lease_gpus(self, request: DockerRequest) -> DockerRequest:
        """Choose free GPUs for each replica; wait a little for apps that have not yet kept theirs."""
        wanted = [
            f"{role.name}/{k}" for role in request.roles for k in range(role.num_replicas) for _ in range(role.gpu)
        ]
        every = self.connection.gpus or []
        deadline = time.monotonic() + _RIVALS_S
        while True:
            rows, now = self.engine.containers()
            leases = self._leases((app for app in apps_in(rows).values() if app.app_id != request.app_id), now)
            free = [device for device in every if not any(device in devices for _, devices in leases)]
            if len(wanted) <= len(free):
                break
            undecided = any(not app.replicas() for app, _ in leases)
            if not undecided or time.monotonic() > deadline:
                raise SchedulerRejectedError(
                    f"app {request.app_id!r} wants {len(wanted)} GPUs, {len(free)} of {len(every)} are free on the "
                    f"Docker engine; wait for the others"
                )
            time.sleep(_RIVAL_PAUSE_S)
        gpus: dict[str, builtins.list[str]] = {}
        for replica, device in zip(wanted, free, strict=False):
            gpus.setdefault(replica, []).append(device)
        return dataclasses.replace(request, gpus=gpus)

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        if not ids:
            return {}
        with self._mutex:
            apps, now = self._look(ids)
            if len(ids) == 1 and ids[0] in apps:
                # Roles and metadata cost an inspection, once; the states of many are told without them.
                self._request(apps[ids[0]])
            return {app_id: self._describe(apps[app_id], now) if app_id in apps else None for app_id in ids}

    def _look(self, ids: builtins.list[str]) -> tuple[dict[str, App], float]:
        """List the containers of these apps with one request."""
        with self._mutex:
            began = self._listed_at = time.monotonic()
            if len(ids) == 1:
                rows, now = self.engine.containers(app_id=ids[0])
            else:
                rows, now = self._list_since(self._boundary(ids))
            apps = {app_id: app for app_id, app in apps_in(rows).items() if app.replicas() or app.record}
            self._evict()
            for app_id in ids:
                if app_id in apps:
                    self._apps[app_id] = (apps[app_id], began)
                else:
                    self._apps.pop(app_id, None)
            return apps, now

    def _evict(self) -> None:
        """Forget what can be learnt again, now and then: a triggerer lives for months."""
        if len(self._apps) > _KEPT_APPS:
            self._apps.clear()
        if len(self._details) > 10 * _KEPT_APPS:
            for kept in (self._details, self._looked, self._unstarted_since, self._stopped_at):
                kept.clear()
        if len(self._replies) > _KEPT_REPLIES:
            self._replies.clear()

    def _list_since(self, boundary: str | None) -> tuple[builtins.list[dict[str, Any]], float]:
        try:
            rows, now = self.engine.containers(since=boundary)
        except NotFoundError:
            rows, now = self.engine.containers()
            boundary = None
        kept = {boundary: self._boundaries[boundary]} if boundary else {}
        self._boundaries = kept | {
            row["Id"]: row["Created"] for row in rows if row["Labels"].get(Label.KIND) == Kind.APP
        }
        return rows, now

    def _boundary(self, ids: Iterable[str]) -> str | None:
        """Return a record older than all these apps: what ended before need not be listed each time. None: list all."""
        known = [self._apps.get(app_id) for app_id in ids]
        created = [found[0].record.created for found in known if found and found[0].record]
        if len(created) < len(known):
            return None
        # Lists are ordered by the engine's clock, which may be set back a little.
        oldest = min(created) - _CLOCK_S
        return max(((at, record) for record, at in self._boundaries.items() if at < oldest), default=(0, None))[1]

    def _describe(self, app: App, now: float) -> DescribeAppResponse:
        verdict = self._judge(app, now)
        if not verdict.settled:
            app, verdict = self._work(app.app_id) or (app, verdict)
        request = self._requests.get(app.app_id)
        response = response_from(app, verdict, self._details, self._host(), request)
        if response.state is AppState.FAILED:
            self._add_replies(app, response)
        return response

    def _judge(self, app: App, now: float, *, submitted: bool = False, made: Collection[str] = ()) -> Verdict:
        for container in to_inspect(app):
            # What was made in this moment has nothing to tell.
            if container.id not in made:
                self._inspect(container)
        return judge(app, Plan.of(app), self._details, now, submitted=submitted)

    def _inspect(self, container: Container) -> None:
        """Learn the detail of a container; again while it was never started, which may change."""
        known = self._details.get(container.id)
        moment = time.monotonic()
        if known is not None:
            final = known.finished or known.error or container.labels.get(Label.KIND) == Kind.MARK
            if final or (container.unstarted and moment - self._looked[container.id] < _LOOK_AGAIN_S):
                return
        if container.exit_code == _SIGKILL_CODE:
            # The engine learns of the end and of its cause by two messages.
            time.sleep(max(0.0, self._listed_at + _CAUSE_S - moment))
        try:
            detail = Detail.of(self.engine.inspect(container.id))
        except NotFoundError:
            return
        self._details[container.id] = self._noted(detail)
        self._looked[container.id] = moment

    def _noted(self, detail: Detail) -> Detail:
        """Add that the engine was restarted, if it was: only the time of the end tells it."""
        if detail.exit_code not in _KILLED or detail.out_of_memory or not detail.finished:
            return detail
        restarted = self.engine.started_at()
        if restarted is None or not 0 < epoch_ns(restarted) - detail.finished < _DOWN_NS:
            return detail
        return dataclasses.replace(detail, note=f"the engine was restarted at {restarted}")

    # ---- what an observer does ---------------------------------------------------------------------------------------

    def _work(
        self,
        app_id: str,
        *,
        submitted: bool = False,
        mine: set[str] | None = None,
        request: DockerRequest | None = None,
    ) -> tuple[App, Verdict] | None:
        """Do what the app needs, step by step, each after another look; return how it is then, None: it is gone.

        Args:
            app_id: the app.
            submitted: the caller is at work on the submission.
            mine: containers that the caller has just created.
            request: of the submission.
        """
        created = set() if mine is None else mine
        found: tuple[App, Verdict] | None = None
        with self._mutex:
            for _ in range(_ROUNDS):
                apps, now = self._look([app_id])
                app = apps.get(app_id)
                if app is None:
                    self._give_back(created, None, keep=())
                    return None
                verdict = self._judge(app, now, submitted=submitted, made=created)
                found = app, verdict
                # While others are still to be created, what exists waits for them.
                wanted = app.replicas() if verdict.create else verdict.start
                self._give_back(created, app, keep=[c.id for c in wanted])
                if verdict.create and submitted and request is not None:
                    self._prepare(request)
                if verdict.settled or not self._act(app, verdict, created, submitted=submitted):
                    break
        return found

    def _act(self, app: App, verdict: Verdict, mine: set[str], *, submitted: bool) -> bool:
        """Do one step; True: look again at once."""
        if verdict.mark is not None:
            self._set_mark(app, verdict.mark.name, verdict.mark)
            return True
        if verdict.void:
            _each(self._void, verdict.void)
            return True
        if verdict.stop:
            self._stop(verdict.stop)
            return False
        if verdict.create:
            request = self._request(app)
            if request is not None:
                self._create_all(request, verdict.create, mine)
            return request is not None
        startable = [c for c in verdict.start if c.id in mine]
        _each(self._start, startable)
        mine -= {c.id for c in startable}
        # Of two submitters one takes over: each would only undo what the other has begun.
        others = [
            c for c in verdict.start if c not in startable and ((submitted and TAKEN not in c.name) or self._overdue(c))
        ]
        self._take_over(others)
        return bool(others)

    def _give_back(self, mine: set[str], app: App | None, keep: Iterable[str]) -> None:
        """Remove containers that this call made and that shall not start after all; what somebody has started stays."""
        listed = {container.id: container for container in app.all} if app else {}
        for container_id in mine - set(keep):
            mine.discard(container_id)
            container = listed.get(container_id)
            # The new name comes first: whoever is about to start it under the old one is too late then.
            if app is None or (container is not None and container.unstarted and self._void(container)):
                self.engine.remove(container_id, force=False)

    def _start(self, container: Container) -> None:
        try:
            # By name: whoever takes the container over renames it first.
            self.engine.start(container.name)
        except (NotFoundError, TakenError):
            return  # taken over, or being removed
        except SchedulerRejectedError:
            # Its inspection says why, to everyone.
            self._looked.pop(container.id, None)
            self._details.pop(container.id, None)

    def _take_over(self, containers: builtins.list[Container]) -> None:
        """Start what others have created; their own start, if it still comes, then fails."""
        taken: builtins.list[Container] = []

        def rename(container: Container) -> None:
            name = f"{container.name.partition(TAKEN)[0]}{TAKEN}{uuid.uuid4().hex[:8]}"
            with contextlib.suppress(NotFoundError, TakenError):  # somebody else was faster
                self.engine.rename(container.name, name)
                taken.append(dataclasses.replace(container, name=name))

        def start(container: Container) -> None:
            with contextlib.suppress(NotFoundError):
                state = self.engine.inspect(container.id)["State"]
                if state["Status"] == "created" and not state.get("Error"):
                    self._start(container)

        _each(rename, containers)
        if taken:
            time.sleep(_IN_FLIGHT_S)
        _each(start, taken)

    def _overdue(self, container: Container) -> bool:
        moment = time.monotonic()
        # A name that changes means that somebody is at work.
        since = self._unstarted_since.setdefault(container.name, moment)
        return moment - since > _TAKEOVER_S

    def _void(self, container: Container) -> bool:
        """See that nobody starts the container any more; False: somebody else was faster."""
        try:
            self.engine.rename(container.name, void_name(container.name, uuid.uuid4().hex[:8]))
        except (NotFoundError, TakenError):
            return False
        return True

    def _stop(self, containers: builtins.list[Container]) -> None:
        moment = time.monotonic()
        grace_s = 60.0
        due = [c for c in containers if moment - self._stopped_at.get(c.id, -grace_s) >= grace_s]

        def stop(container: Container) -> None:
            self.engine.stop(container.id)
            self._stopped_at[container.id] = moment

        _each(stop, due)

    def _set_mark(self, app: App, mark: str, end: EndMark | None = None) -> None:
        labels = {Label.DECISION: end.decision, Label.CAUSE: end.cause} if end else {}
        try:
            self.engine.create(mark_name(app.app_id, mark), mark_body(app.bearer.image_id, app.app_id, mark, **labels))
        except (TakenError, NotFoundError):
            return  # somebody else decided first, or removes the app

    # ---- records -----------------------------------------------------------------------------------------------------

    def _request(self, app: App) -> DockerRequest | None:
        """Return what the app was made from; None: its record was removed."""
        known = self._requests.get(app.app_id)
        if known is None and app.record is not None:
            try:
                known = request_in(self.engine.inspect(app.record.id))
            except NotFoundError:
                return None
            self._remember(known)
        return known

    def _remember(self, request: DockerRequest) -> None:
        if len(self._requests) > _KEPT_APPS:
            self._requests.clear()
        self._requests[request.app_id] = request

    def _forget(self, app_id: str) -> None:
        self._requests.pop(app_id, None)
        self._apps.pop(app_id, None)

    def _host(self) -> str:
        return self.engine.hostname or socket.gethostname()

    def _add_replies(self, app: App, response: DescribeAppResponse) -> None:
        """Add what failed replicas wrote to `TORCHELASTIC_ERROR_FILE`, the known place for the text of an exception."""
        for role in response.roles_statuses:
            for replica in role.replicas:
                if replica.state is AppState.FAILED and (attempts := app.attempts.get((role.role, replica.id))):
                    reply = self._reply(attempts[-1])
                    if reply:
                        replica.structured_error_msg = reply
                        if response.structured_error_msg == NONE:
                            response.structured_error_msg = reply

    def _reply(self, container: Container) -> str:
        if container.unstarted:
            return ""
        if container.id not in self._replies:
            found = self.engine.read_file(container.id, ERROR_PATH, _LONGEST_REPLY)
            self._replies[container.id] = found[0].decode("utf-8", "replace") if found else ""
        return self._replies[container.id]

    def describe_native(self, app_id: str) -> AppDryRunInfo[DockerRequest] | None:
        apps, _ = self._look([app_id])
        app = apps.get(app_id)
        request = self._request(app) if app else None
        return AppDryRunInfo(request, format_request) if request else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one engine
        rows, now = self.engine.containers()
        found = []
        for app_id, app in sorted(apps_in(rows).items()):
            if not app.replicas() and app.record is None:
                continue
            with self._mutex:
                # One that was created some seconds ago and never ran may have failed to start.
                if app.marks or any(c.unstarted and now - c.created > _START_S for c in app.replicas()):
                    for container in to_inspect(app):
                        self._inspect(container)
                verdict = judge(app, Plan.of(app), self._details, now)
            name = app.record.labels.get(Label.APP_NAME, "") if app.record else ""
            found.append(ListAppResponse(app_id, verdict.state, name=name))
        return found

    def result(self, app_id: str) -> JsonValue:
        app, _ = self._apps.get(app_id) or self._look_once(app_id)
        first = (next(iter(Plan.of(app).replicas)), 0)
        attempts = app.attempts.get(first)
        if attempts and not all(container.exit_code is not None for container in attempts):
            # Seen before its end; another attempt may have come since.
            attempts = self._look_once(app_id)[0].attempts.get(first)
        if not attempts:
            return None
        found = self.engine.read_file(attempts[-1].id, RESULT_PATH, RESULT_LIMIT_BYTES)
        return parse_result(*found) if found else None

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        with self._mutex:
            apps, now = self._look([app_id])
            app = apps.get(app_id)
            if app is None:
                return
            if is_terminal(self._judge(app, now).state):
                return
            if CANCEL not in app.marks:
                self._set_mark(app, CANCEL)
            self._work(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        with self._mutex:
            app = self._look([app_id])[0].get(app_id)
            request = self._request(app) if app else None
        if app is None:
            return
        grace_s = max((role.body["StopTimeout"] for role in request.roles), default=0) if request else _GRACE_S
        limit_s = grace_s + self.connection.timeout_s
        # Not under the lock: other apps are looked at meanwhile.
        _each(lambda container: self.engine.stop(container.id, wait_s=limit_s), [c for c in app.all if c.live])
        rows, _ = self.engine.containers(app_id=app_id)
        left = apps_in(rows).get(app_id)
        if left is not None:
            # Void and second containers too; the record last, so that an interrupted deletion can be repeated.
            record = left.record.id if left.record else None
            _each(self.engine.remove, [c.id for c in left.all if c.id != record])
            self.engine.remove_network(app_id, app_id)
            if record:
                self.engine.remove(record)
        with self._mutex:
            self._forget(app_id)

    def close(self) -> None:
        self._logs.close()
        self.engine.close()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        began = time.monotonic()
        state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
        app, seen_at = self._apps.get(app_id) or self._look_once(app_id)
        while True:
            _check(app, role_name, k)
            try:
                chunk, certain = self._read_attempts(app, role_name, k, state, streams)
            except NotFoundError:
                chunk, certain = LogChunk([], state or None), False
            # Nothing new is only nothing new if the list of attempts is not older than the question.
            if chunk.lines or certain or seen_at >= began:
                return chunk
            state = dict(chunk.cursor) if isinstance(chunk.cursor, dict) else {}
            app, seen_at = self._look_once(app_id)

    def _look_once(self, app_id: str) -> tuple[App, float]:
        began = time.monotonic()
        apps, _ = self._look([app_id])
        if app_id not in apps:
            raise UnknownAppException(app_id)
        return apps[app_id], began

    def _read_attempts(
        self, app: App, role_name: str, k: int, state: dict[str, Any], streams: Stream | None
    ) -> tuple[LogChunk, bool]:
        """Return the next lines, and whether a newer list of containers could not bring more."""
        attempts = app.attempts.get((role_name, k), [])
        lines: builtins.list[Any] = []
        certain = False
        for number, container in enumerate(attempts):
            at = [container.app_attempt, container.attempt]
            if state.get("at") and at < list(state["at"]):
                continue
            if state.get("at") != at:
                state = {"at": at}
            if container.unstarted:
                break
            if state.get("done"):
                certain = _is_only(app, role_name)
                continue
            chunk = self._read_some(container, state, streams)
            state = {"at": at, **chunk.cursor}
            lines = chunk.lines
            if number:
                lines = [line._replace(attempt=number) for line in lines]
            certain = not chunk.partial and _is_only(app, role_name)
            if lines or container.live:
                break
        return LogChunk(lines, state or None), certain

    def _read_some(self, container: Container, state: Mapping[str, Any], streams: Stream | None) -> Chunk:
        """Return lines of the wanted stream; none only where there are none."""
        while True:
            chunk = self._logs.read(container.id, state, complete=not container.live)
            if streams not in {None, Stream.COMBINED}:
                chunk.lines = [line for line in chunk.lines if line.stream is streams]
            # Megabytes of the other stream may stand before the next line.
            if chunk.lines or chunk.at_end:
                return chunk
            state = chunk.cursor


def create_scheduler(session_name: str, **kwargs: Any) -> DockerScheduler:
    """Return the Docker scheduler; the engine is first asked when it is needed.

    Args:
        session_name: part of every handle; the connection id in Airflow.
        **kwargs: fields of `DockerConnection`; others are ignored, since all factories get the same.
    """
    names = {field.name for field in dataclasses.fields(DockerConnection)}
    given = {name: value for name, value in kwargs.items() if name in names}
    return DockerScheduler(session_name, resolve_options(DockerConnection, given, strict=True))


def _check(app: App, role_name: str, k: int) -> None:
    counts = Plan.of(app).replicas
    check_replica([Role(name, "", num_replicas=count) for name, count in counts.items()], role_name, k)


def _is_only(app: App, role_name: str) -> bool:
    """Tell whether a replica of this role has one attempt, whatever happens."""
    policies = Plan.of(app).policies
    restarts = any(policy.policy == "APPLICATION" and policy.max_retries for policy in policies.values())
    return not restarts and not policies[role_name].max_retries


def _each(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for each item, several at once; the first error is raised when all have been tried."""
    todo = list(items)
    if len(todo) < 2:  # noqa: PLR2004 - one needs no thread
        for item in todo:
            call(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL, len(todo)), thread_name_prefix="launch-docker") as pool:
        for future in [pool.submit(call, item) for item in todo]:
            future.result()
