"""The Docker scheduler: runs apps as containers of one engine.

All state is in the engine, so all processes that reach it see the same apps. This module implements the `Scheduler`
interface; `creation` creates the containers, `catalog` lists apps, and `observer` performs their next step.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from cachetools import LRUCache

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE, BuiltinScheduler
from airflow_provider_launch.schedulers._kit.endings import ending_text
from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers._kit.naming import file_slug
from airflow_provider_launch.schedulers._kit.refusals import deleted_meanwhile, refuse_other_spec
from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.docker.attempts_log import AttemptsLog
from airflow_provider_launch.schedulers.docker.catalog import Catalog
from airflow_provider_launch.schedulers.docker.containers import App, Container, DamagedError, Plan, apps_in, end_of
from airflow_provider_launch.schedulers.docker.creation import Creation, blamed, first_attempts
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.gpu_leases import GpuLeases
from airflow_provider_launch.schedulers.docker.images import Builds
from airflow_provider_launch.schedulers.docker.naming import APP_ID, Label
from airflow_provider_launch.schedulers.docker.observer import Observer
from airflow_provider_launch.schedulers.docker.options import DockerConnection, DockerOpts
from airflow_provider_launch.schedulers.docker.reconcile import CANCEL, assess, is_lasting, to_inspect
from airflow_provider_launch.schedulers.docker.request import (
    ERROR_PATH,
    OVERLAY_KIND,
    RESULT_PATH,
    DockerRequest,
    build_request,
    format_request,
    record_body,
    refuse_broken_overlays,
    request_in,
)
from airflow_provider_launch.schedulers.docker.status import response_from
from airflow_provider_launch.schedulers.docker.wire import BadRequestError
from airflow_provider_launch.schedulers.log_streams import LogStream
from airflow_provider_launch.schedulers.responses import add_error_files
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, XCOM_PATH, parse_result
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.owner import owner_from
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.threads import for_each_parallel
from airflow_provider_launch.workspace.docker_workspace import DockerWorkspaceMixin, ImageBuilds

log = logging.getLogger(__name__)

_START_S, _RIVAL_S = 2.0, 0.5
_REMOVALS = 5
"""Maximum rounds of a deletion, because a submitter may create containers at the same time."""
_KEPT_ERROR_FILES, _KEPT_RESPONSES = 200, 5000
_GRACE_S = 60.0
_LATE_S = 0.05
"""Seconds after its time limit when an app is polled, so that the limit has certainly passed."""
_MAX_ERROR_FILE = 64 * 1024


class DockerScheduler(DockerWorkspaceMixin, BuiltinScheduler[DockerOpts, DockerConnection, DockerRequest]):
    """Runs each attempt of each replica as a separate container, which is kept until the app is deleted."""

    name: ClassVar[str] = "docker"
    opts_type = DockerOpts
    connection_type = DockerConnection
    overlay_kinds: ClassVar[tuple[str, ...]] = (OVERLAY_KIND,)
    app_id_pattern = APP_ID
    app_id_help: ClassVar[str] = "cannot name a container; use 2 to 180 letters, digits, '.', '_' and '-'"
    capabilities: ClassVar[frozenset[Capability]] = EVERYWHERE | {
        Capability.STREAMS,
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.DEVICE_MOUNT,
        Capability.WORKSPACE,
    }
    poll_interval_s: ClassVar[float] = 0.5

    def __init__(self, session_name: str, connection: DockerConnection | None = None) -> None:
        super().__init__(session_name, connection)
        self.engine = Engine(self.connection)
        self._catalog = Catalog(self.engine)
        self._creation = Creation(self.engine)
        self._observer = Observer(self.engine, self._catalog, self._creation)
        self._leases = GpuLeases(self._catalog, self._observer, self.connection.gpus or [])
        self._logs = AttemptsLog(self.engine)
        self._error_files: LRUCache[str, str] = LRUCache(_KEPT_ERROR_FILES)
        self._freed: LRUCache[str, bool] = LRUCache(_KEPT_RESPONSES)
        """Ended apps whose networks were removed."""
        self._responses: LRUCache[str, tuple[App, DockerRequest | None, DescribeAppResponse]] = LRUCache(
            _KEPT_RESPONSES
        )

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _app_slug(self, name: str) -> str:
        return file_slug(name)[:100] or "app"

    def _build_request(self, app: AppDef, opts: DockerOpts, app_id: str) -> DockerRequest:
        app = copy.deepcopy(app) if opts.image_repo else app
        images = self.dryrun_push_images(app, opts) if opts.image_repo else {}
        request = build_request(app, opts, app_id, os.environ, self.connection.gpus or [])
        request.images_to_push = images
        refuse_broken_overlays(request)
        return request

    _format_request = staticmethod(format_request)

    def _image_builds(self, cfg: Mapping[str, Any]) -> ImageBuilds:
        if cfg.get("build_host"):
            return super()._image_builds(cfg)
        return Builds(self.engine.wire, self.engine.images, self.connection)

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - a hook
        if cfg.get("build_host") and not cfg.get("image_repo") and any(role.workspace for role in app.roles):
            raise InvalidAppError(
                "option build_host names another engine than the connection, so images must be pushed to be pulled "
                "there; set image_repo, or leave build_host out"
            )

    def schedule(self, dryrun_info: AppDryRunInfo[DockerRequest]) -> str:
        mine: set[str] = set()
        self.push_images(dryrun_info.request.images_to_push)
        request = self._claim(dryrun_info.request)
        if request is not None:
            try:
                self._creation.prepare(request)
                self._creation.create_all(request, first_attempts(request), mine)
            except LaunchError as error:
                if not isinstance(error, SchedulerUnavailableError):
                    self._creation.undo(request, mine)
                    self._catalog.forget(request.app_id)
                raise
        app_id = dryrun_info.request.app_id
        how: dict[str, Any] = {"submitted": True, "mine": mine, "request": dryrun_info.request}
        found = self._observer.work(app_id, **how)
        while found is not None and any(container.taken for container in found[1].start):
            # Another submitter has taken it over. If that one has died, this loop starts the app.
            time.sleep(_RIVAL_S)
            found = self._observer.work(app_id, **how)
        if found is None or found[0].record is None:
            with contextlib.suppress(LaunchError):  # without a record no process starts them
                for_each_parallel(lambda container: self.engine.remove(container, force=False), mine)
            raise deleted_meanwhile(app_id)
        return app_id

    def _claim(self, request: DockerRequest) -> DockerRequest | None:
        """Create the record of the app and return its request; None if this app already has a record."""
        if any(role.gpu for role in request.roles):
            return self._claim_gpus(request)
        if self._create_record(request) is None:
            return None
        self._catalog.remember(request)
        return request

    def _claim_gpus(self, request: DockerRequest) -> DockerRequest | None:
        """Do the same for an app with GPUs, whose record also stores the GPUs."""
        while True:
            app = self._catalog.poll([request.app_id])[0].get(request.app_id)
            existing = app.record if app else None
            try:
                if existing is None:
                    leased = self._leases.lease(request)
                    record = self._create_record(leased)
                else:
                    document, record = self.engine.inspect(existing.id), existing.id
                    self._refuse_other(request, document["Config"]["Labels"])
                    leased = request_in(document)
            except NotFoundError:
                continue  # it has just been removed
            if app is not None and app.replicas():
                return None
            # Also for an existing record, whose creator may have died before it searched for rivals.
            if record is not None and not self._leases.has_rival(leased, record):
                self._catalog.remember(leased)
                return leased if existing is None else None
            if record is not None:
                self.engine.remove(record)
            self._leases.back_off()

    def _create_record(self, request: DockerRequest) -> str | None:
        """Return the id of the new record; None if this app already has a record."""
        try:
            return self._creation.create(request, request.app_id, record_body(request))
        except BadRequestError as error:
            role = request.roles[0].name
            raise InvalidAppError(f"role {role!r}: the Docker engine refuses {blamed(error)}") from error
        except TakenError as error:
            self._refuse_other(request, error.labels)
            return None

    def _refuse_other(self, request: DockerRequest, labels: Mapping[str, str]) -> None:
        if labels.get(Label.APP_ID) != request.app_id:
            raise AppConflictError(
                f"the engine has a container {request.app_id!r} that does not belong to the launcher; nothing was "
                f"started. Remove it, or choose another id"
            )
        refuse_other_spec(self.backend, request.app_id, request.spec_hash, labels.get(Label.SPEC_HASH))

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        if not ids:
            return {}
        with self._catalog.mutex:
            apps, now = self._catalog.poll(ids)
            # Roles, metadata and old end times need one inspection each, so they are only read for a single app.
            alone = apps.get(ids[0]) if len(ids) == 1 else None
            if alone is not None:
                self._catalog.request(alone)
            self._observer.find_outside_stops((apps[app_id] for app_id in ids if app_id in apps), now)
            if alone is not None:
                self._observer.find_ends(alone)
            return {app_id: self._describe(apps[app_id], now) if app_id in apps else None for app_id in ids}

    def _describe(self, app: App, now: float) -> DescribeAppResponse:
        request = self._catalog.cached_request(app.app_id)
        kept = self._responses.get(app.app_id)
        # Reuse the response if the app has not changed, because few of a thousand apps change between two polls.
        if kept is not None and kept[0] is app and kept[1] is request:
            return kept[2]
        assessment = self._observer.assess(app, now)
        is_quiet = assessment.settled and assessment.state is AppState.RUNNING and is_lasting(app)
        if not assessment.settled:
            app, assessment = self._observer.work(app.app_id) or (app, assessment)
            request = self._catalog.cached_request(app.app_id)
        observer = self._observer
        shown = observer.explained(app)
        response = response_from(shown, assessment, observer.details, self._host(), request, observer.ended_at)
        if is_terminal(response.state) and Plan.of(app).own_network:
            self._free_network(app)
        if response.state is AppState.FAILED:
            add_error_files(response, lambda _, replica: self._error_text(app, replica))
        response.act_in_s = self._act_in_s(app, response.state, now)
        if is_quiet:
            self._responses[app.app_id] = app, request, response
        else:
            self._responses.pop(app.app_id, None)
        return response

    def _act_in_s(self, app: App, state: AppState, now: float) -> float | None:
        """Return the seconds until the next poll must come; None if nothing is due."""
        limit_s = Plan.of(app).time_limit_s
        due = [self._observer.explained_in_s(app, now)]
        if limit_s is not None and state is AppState.RUNNING:
            due.append(max(0.0, app.plan_source.created + limit_s - now) + _LATE_S)
        return min((each for each in due if each is not None), default=None)

    def _free_network(self, app: App) -> None:
        """Remove the network of an ended app, because an engine supports only about 30."""
        if app.app_id in self._freed:
            return
        try:
            self.engine.networks.remove(app.app_id, app.app_id)
            self._freed[app.app_id] = True
        except LaunchError as error:
            log.warning("the network of app %s could not be removed and remains: %s", app.app_id, error)

    def _host(self) -> str:
        return self.engine.wire.hostname or socket.gethostname()

    def _error_text(self, app: App, replica: ReplicaStatus) -> str:
        attempts = app.attempts.get((replica.role, replica.id))
        return self._read_error_file(attempts[-1]) if attempts else ""

    def _read_error_file(self, container: Container) -> str:
        if container.unstarted:
            return ""
        if container.id not in self._error_files:
            try:
                found = self.engine.read_file(container.id, ERROR_PATH, _MAX_ERROR_FILE)
            except (NotFoundError, AppUnavailableError) as error:
                # Optional: the state is reported without it.
                log.warning("the error file of %s cannot be read: %s", container.name, error)
                found = None
            self._error_files[container.id] = found[0].decode("utf-8", "replace") if found else ""
        return self._error_files[container.id]

    def describe_native(self, app_id: str) -> AppDryRunInfo[DockerRequest] | None:
        apps, _ = self._catalog.poll([app_id])
        app = apps.get(app_id)
        request = self._catalog.request(app) if app else None
        return AppDryRunInfo(request, format_request) if request else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one engine
        apps, now = self._catalog.every()
        found = []
        for app_id, app in sorted(apps.items()):
            if not app.replicas() and app.record is None:
                continue
            try:
                state = self._listed_state(app, now)
            except AppUnavailableError as error:
                log.warning("app %s is listed as UNKNOWN: %s", app_id, error)
                found.append(ListAppResponse(app_id, AppState.UNKNOWN))
                continue
            notes = app.record.notes if app.record else {}
            owner = owner_from(notes.get(Label.OWNER))
            name, created = notes.get(Label.APP_NAME, ""), float(app.plan_source.created)
            found.append(ListAppResponse(app_id, state, name=name, owner=owner, created_at=created))
        return found

    def _listed_state(self, app: App, now: float) -> AppState:
        with self._catalog.mutex:
            plan = Plan.of(app)
            observer = self._observer
            # A container that was created some seconds ago and never ran may have failed to start.
            if app.marks or any(
                c.removing or (c.unstarted and now - c.created > _START_S) or observer.may_be_unexplained(c)
                for c in app.replicas()
            ):
                for container in to_inspect(app):
                    with contextlib.suppress(AppUnavailableError):  # the list alone is usually enough
                        observer.inspect(container, now)
            return assess(observer.explained(app), plan, observer.details, now).state

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        app, _ = self._catalog.cached(app_id)
        if not _has_succeeded(app):
            # The cached app has not ended, or may have a newer attempt.
            app, _ = self._catalog.poll_one(app_id)
        first, count = next(iter(Plan.of(app).replicas.items()))
        for k in range(count):
            attempts = app.attempts.get((first, k))
            yield self._result_of(app_id, attempts[-1].id) if attempts else None

    def _result_of(self, app_id: str, container: str) -> JsonValue:
        try:
            found = self.engine.read_file(container, RESULT_PATH, RESULT_LIMIT_BYTES)
            if found is None or not found[1]:
                found = self.engine.read_file(container, XCOM_PATH, RESULT_LIMIT_BYTES)
        except NotFoundError as error:
            self._catalog.poll_one(app_id)
            raise SchedulerRejectedError(
                f"the result of app {app_id!r} can no longer be read, its container was removed: {error}"
            ) from error
        return parse_result(*found) if found else None

    def exists(self, app_id: str) -> bool:
        # Not `describe`, which would perform the next step of an app that is about to be cancelled or deleted.
        return app_id in self._catalog.poll([app_id])[0]

    # ---- end ---------------------------------------------------------------------------------------------------------

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        app, _ = self._catalog.cached(app_id)
        newest = [attempts[-1] for attempts in app.attempts.values()]
        # Only the first one, because the next poll shows the others too. An unstarted one may already have ended.
        waiting = [c for c in newest if c.live] or [c for c in newest if c.unstarted]
        return bool(waiting) and self.engine.wait(waiting[0].id, timeout_s)

    def _cancel_existing(self, app_id: str) -> None:
        with self._catalog.mutex:
            apps, now = self._catalog.poll([app_id])
            app = apps.get(app_id)
            if app is None:
                return
            if is_terminal(self._observer.assess(app, now).state):
                return
            if CANCEL not in app.marks:
                self._observer.set_mark(app, CANCEL)
            self._observer.work(app_id, cancelled=True)

    def _delete_existing(self, app_id: str) -> None:
        request = None
        try:
            self._cancel_existing(app_id)
        except DamagedError as error:
            log.warning("app %s is deleted without being cancelled first: %s", app_id, error)
        with self._catalog.mutex:
            app = self._catalog.poll([app_id])[0].get(app_id)
            with contextlib.suppress(DamagedError):  # a damaged record is deleted too
                request = self._catalog.request(app) if app else None
        if app is None:
            return
        grace_s = max((role.body["StopTimeout"] for role in request.roles), default=0) if request else _GRACE_S
        limit_s = grace_s + self.connection.timeout_s

        def end(container: Container) -> None:
            # A second TERM would interrupt a program that writes a checkpoint.
            if not self._observer.is_stopped(container) or not self.engine.wait(container.id, limit_s):
                self.engine.stop(container.id, wait_s=limit_s)

        # Without the mutex, so that other apps can be polled meanwhile.
        for_each_parallel(end, [container for container in app.all if container.live])
        for _ in range(_REMOVALS):
            containers, _ = self.engine.containers(app_id=app_id)
            left = apps_in(containers).get(app_id)
            if left is None:
                break
            # Includes discarded and duplicate containers. The record is last, so that the deletion can be repeated.
            record = left.record.id if left.record else None
            for_each_parallel(self.engine.remove, [c.id for c in left.all if c.id != record])
            self.engine.networks.remove(app_id, app_id)
            if record:
                self.engine.remove(record)
            # A submitter may have created more meanwhile, but does not start them without a record.
        with self._catalog.mutex:
            self._catalog.forget(app_id)

    def close(self) -> None:
        self._logs.close()
        self.engine.close()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        called_at = time.monotonic()
        state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
        app, seen_at = self._catalog.cached(app_id)
        while True:
            _check(app, role_name, k)
            try:
                chunk, certain = self._logs.read(app, role_name, k, state, streams)
            except (NotFoundError, TakenError):  # 409: it is being removed
                chunk, certain = LogChunk([], state or None), False
            # An empty result is only valid if the list of attempts is not older than this call.
            if chunk.lines or certain or seen_at >= called_at or self._is_over(app):
                return chunk
            state = dict(chunk.cursor) if isinstance(chunk.cursor, dict) else {}
            app, seen_at = self._catalog.poll_one(app_id)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        app, _ = self._catalog.cached(app_id)
        container = _attempt(app, role_name, k, attempt)
        if container is None or container.live:
            # The caller has seen the next attempt, so a newer list shows the end of this one.
            container = _attempt(self._catalog.poll_one(app_id)[0], role_name, k, attempt)
        if container is None:
            return ""
        with self._catalog.mutex:
            self._observer.inspect(container)
        return ending_text(end_of(container, self._observer.details.get(container.id)))

    def _is_over(self, app: App) -> bool:
        """Return whether the app has ended in this list, so that no attempt follows."""
        try:
            seen, _, response = self._responses[app.app_id]
        except KeyError:
            return False  # not described recently, or dropped from the cache
        has_ended = seen is app and is_terminal(response.state)
        return has_ended and not any(container.live for container in app.all)

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        app, _ = self._catalog.cached(app_id)
        _check(app, role_name, k)
        return self._logs.stream(app, role_name, k, cursor if isinstance(cursor, dict) else {}, streams)


create_scheduler = DockerScheduler.create


def _has_succeeded(app: App) -> bool:
    """Return whether the newest attempts of all replicas succeeded, so that no other one follows."""
    replicas = [(role, k) for role, count in Plan.of(app).replicas.items() for k in range(count)]
    newest = [app.attempts[replica][-1] for replica in replicas if replica in app.attempts]
    return len(newest) == len(replicas) and all(container.exit_code == 0 for container in newest)


def _attempt(app: App, role_name: str, k: int, attempt: int) -> Container | None:
    attempts = app.attempts.get((role_name, k), [])
    return attempts[attempt] if attempt < len(attempts) else None


def _check(app: App, role_name: str, k: int) -> None:
    counts = Plan.of(app).replicas
    check_replica([Role(name, "", num_replicas=count) for name, count in counts.items()], role_name, k)
