"""The Docker scheduler: apps as containers of one engine.

All truth is in the engine, so any process that reaches it sees the same apps. What is here answers the `Scheduler`
interface; a submission is made by `creation`, apps are read by `catalog`, and `observer` brings an app on.
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

from airflow_provider_launch.schedulers._kit.base import BuiltinScheduler
from airflow_provider_launch.schedulers._kit.claim import deleted_meanwhile, refuse_other_spec
from airflow_provider_launch.schedulers._kit.endings import ending_text
from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers._kit.naming import file_slug
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
from airflow_provider_launch.schedulers.docker.builds import Builds
from airflow_provider_launch.schedulers.docker.catalog import Catalog
from airflow_provider_launch.schedulers.docker.containers import (
    App,
    Container,
    DamagedError,
    Plan,
    apps_in,
    end_of,
)
from airflow_provider_launch.schedulers.docker.creation import Creation, blamed, first_attempts
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.gpu_leases import GpuLeases
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
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
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
"""Rounds of a deletion, as long as a submitter creates containers at the same time."""
_KEPT_ERROR_FILES, _KEPT_RESPONSES = 200, 5000
_GRACE_S = 60.0
_LATE_S = 0.05
"""How long after its time limit an app is asked for: not a moment before it is over."""
_MAX_ERROR_FILE = 64 * 1024


class DockerScheduler(DockerWorkspaceMixin, BuiltinScheduler[DockerOpts, DockerConnection, DockerRequest]):
    """Runs each attempt of each replica as a container of its own, which stays until the app is deleted."""

    name: ClassVar[str] = "docker"
    opts_type = DockerOpts
    connection_type = DockerConnection
    overlay_kinds: ClassVar[tuple[str, ...]] = (OVERLAY_KIND,)
    app_id_pattern = APP_ID
    app_id_help: ClassVar[str] = "cannot name a container; use 2 to 180 letters, digits, '.', '_' and '-'"
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
            Capability.WORKSPACE,
        }
    )
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
        """Apps that have ended, and whose networks were removed."""
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

    def _format_request(self, request: DockerRequest) -> str:
        return format_request(request)

    def _image_builds(self, cfg: Mapping[str, Any]) -> ImageBuilds:
        if cfg.get("build_host"):
            return super()._image_builds(cfg)
        return Builds(self.engine.wire, self.engine.images, self.connection)

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - a hook
        if cfg.get("build_host") and not cfg.get("image_repo") and any(role.workspace for role in app.roles):
            raise InvalidAppError(
                "option build_host names another engine than that of the connection, which must pull what is built "
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
                    self._creation.take_back(request, mine)
                    self._catalog.forget(request.app_id)
                raise
        app_id = dryrun_info.request.app_id
        how: dict[str, Any] = {"submitted": True, "mine": mine, "request": dryrun_info.request}
        found = self._observer.work(app_id, **how)
        while found is not None and any(container.taken for container in found[1].start):
            # Another submitter has taken it over. If it has died since, the app is started in its place.
            time.sleep(_RIVAL_S)
            found = self._observer.work(app_id, **how)
        if found is None or found[0].record is None:
            with contextlib.suppress(LaunchError):  # nothing starts them without a record
                for_each_parallel(lambda container: self.engine.remove(container, force=False), mine)
            raise deleted_meanwhile(app_id)
        return app_id

    def _claim(self, request: DockerRequest) -> DockerRequest | None:
        """Create the record of the app and return the request in it; None: it exists, and is of the same app."""
        if any(role.gpu for role in request.roles):
            return self._claim_gpus(request)
        if self._create_record(request) is None:
            return None
        self._catalog.remember(request)
        return request

    def _claim_gpus(self, request: DockerRequest) -> DockerRequest | None:
        """Do the same for an app with GPUs; the record keeps which."""
        while True:
            app = self._catalog.poll([request.app_id])[0].get(request.app_id)
            known = app.record if app else None
            try:
                if known is None:
                    leased = self._leases.lease(request)
                    record = self._create_record(leased)
                else:
                    document, record = self.engine.inspect(known.id), known.id
                    self._refuse_other(request, document["Config"]["Labels"])
                    leased = request_in(document)
            except NotFoundError:
                continue  # removed in this moment
            if app is not None and app.replicas():
                return None
            # Also of a record that was there: its creator may have died before searching for rivals.
            if record is not None and not self._leases.has_rival(leased, record):
                self._catalog.remember(leased)
                return leased if known is None else None
            if record is not None:
                self.engine.remove(record)
            self._leases.step_back()

    def _create_record(self, request: DockerRequest) -> str | None:
        """Return the id of the new record; None: it exists, and is of the same app."""
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
                f"the engine has a container {request.app_id!r} that is no app of the launcher; nothing was "
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
            # Roles, metadata and old ends cost an inspection, once; the states of many are reported without them.
            alone = apps.get(ids[0]) if len(ids) == 1 else None
            if alone is not None:
                self._catalog.request(alone)
            self._observer.learn_of_stops((apps[app_id] for app_id in ids if app_id in apps), now)
            if alone is not None:
                self._observer.learn_ends(alone)
            return {app_id: self._describe(apps[app_id], now) if app_id in apps else None for app_id in ids}

    def _describe(self, app: App, now: float) -> DescribeAppResponse:
        request = self._catalog.known_request(app.app_id)
        kept = self._responses.get(app.app_id)
        # Of a thousand apps a few change between two polls: the response of the others is not built again.
        if kept is not None and kept[0] is app and kept[1] is request:
            return kept[2]
        assessment = self._observer.assess(app, now)
        is_quiet = assessment.settled and assessment.state is AppState.RUNNING and is_lasting(app)
        if not assessment.settled:
            app, assessment = self._observer.work(app.app_id) or (app, assessment)
            request = self._catalog.known_request(app.app_id)
        known = self._observer
        response = response_from(app, assessment, known.details, self._host(), request, known.ended_at)
        if is_terminal(response.state) and Plan.of(app).own_network:
            self._free_network(app)
        if response.state is AppState.FAILED:
            add_error_files(response, lambda _, replica: self._error_text(app, replica))
        limit_s = Plan.of(app).time_limit_s
        if limit_s is not None and response.state is AppState.RUNNING:
            response.act_in_s = max(0.0, app.plan_source.created + limit_s - now) + _LATE_S
        if is_quiet:
            self._responses[app.app_id] = app, request, response
        else:
            self._responses.pop(app.app_id, None)
        return response

    def _free_network(self, app: App) -> None:
        """Remove the network of an app that has ended: an engine has room for about 30."""
        if app.app_id in self._freed:
            return
        try:
            self.engine.networks.remove(app.app_id, app.app_id)
            self._freed[app.app_id] = True
        except LaunchError as error:
            log.warning("the network of app %s is left, since it could not be removed: %s", app.app_id, error)

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
                # An extra, for which nobody must wait: how the app has ended is known.
                log.warning("what %s wrote of its failure cannot be read: %s", container.name, error)
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
            # One that was created some seconds ago and never ran may have failed to start.
            if app.marks or any(c.removing or (c.unstarted and now - c.created > _START_S) for c in app.replicas()):
                for container in to_inspect(app):
                    with contextlib.suppress(AppUnavailableError):  # the list itself reports enough of most
                        self._observer.inspect(container)
            return assess(app, plan, self._observer.details, now).state

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        app, _ = self._catalog.known(app_id)
        if not _has_succeeded(app):
            # Seen before its end; or another attempt may have come since.
            app, _ = self._catalog.poll_one(app_id)
        first, count = next(iter(Plan.of(app).replicas.items()))
        for k in range(count):
            attempts = app.attempts.get((first, k))
            yield self._result_of(app_id, attempts[-1].id) if attempts else None

    def _result_of(self, app_id: str, container: str) -> JsonValue:
        try:
            found = self.engine.read_file(container, RESULT_PATH, RESULT_LIMIT_BYTES)
        except NotFoundError as error:
            self._catalog.poll_one(app_id)
            raise SchedulerRejectedError(
                f"the result of app {app_id!r} cannot be read any more: {error}; it was removed"
            ) from error
        return parse_result(*found) if found else None

    def exists(self, app_id: str) -> bool:
        # Who cancels or deletes an app does not want it to be brought on before.
        return app_id in self._catalog.poll([app_id])[0]

    # ---- end ---------------------------------------------------------------------------------------------------------

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        app, _ = self._catalog.known(app_id)
        newest = [attempts[-1] for attempts in app.attempts.values()]
        # Of several the first one: the poll that follows shows the others too. What is not seen as started yet may
        # have ended already.
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
            with contextlib.suppress(DamagedError):  # it goes, too
                request = self._catalog.request(app) if app else None
        if app is None:
            return
        grace_s = max((role.body["StopTimeout"] for role in request.roles), default=0) if request else _GRACE_S
        limit_s = grace_s + self.connection.timeout_s
        # Not under the lock: other apps are polled meanwhile.
        for_each_parallel(
            lambda container: self.engine.stop(container.id, wait_s=limit_s), [c for c in app.all if c.live]
        )
        for _ in range(_REMOVALS):
            containers, _ = self.engine.containers(app_id=app_id)
            left = apps_in(containers).get(app_id)
            if left is None:
                break
            # Discarded and second containers too; the record last, so that an interrupted deletion can be repeated.
            record = left.record.id if left.record else None
            for_each_parallel(self.engine.remove, [c.id for c in left.all if c.id != record])
            self.engine.networks.remove(app_id, app_id)
            if record:
                self.engine.remove(record)
            # A submitter may have created more meanwhile. Without a record it starts none of them.
        with self._catalog.mutex:
            self._catalog.forget(app_id)

    def close(self) -> None:
        self._logs.close()
        self.engine.close()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        began = time.monotonic()
        state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
        app, seen_at = self._catalog.known(app_id)
        while True:
            _check(app, role_name, k)
            try:
                chunk, certain = self._logs.read(app, role_name, k, state, streams)
            except (NotFoundError, TakenError):  # 409: it is being removed
                chunk, certain = LogChunk([], state or None), False
            # Nothing new is only nothing new if the list of attempts is not older than the question.
            if chunk.lines or certain or seen_at >= began or self._is_over(app):
                return chunk
            state = dict(chunk.cursor) if isinstance(chunk.cursor, dict) else {}
            app, seen_at = self._catalog.poll_one(app_id)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        app, _ = self._catalog.known(app_id)
        container = _attempt(app, role_name, k, attempt)
        if container is None or container.live:
            # The next attempt was seen, so a newer list shows the end of this one.
            container = _attempt(self._catalog.poll_one(app_id)[0], role_name, k, attempt)
        if container is None:
            return ""
        with self._catalog.mutex:
            self._observer.inspect(container)
        return ending_text(end_of(container, self._observer.details.get(container.id)))

    def _is_over(self, app: App) -> bool:
        """Return whether an app was seen to have ended, in this list: no attempt follows."""
        try:
            seen, _, response = self._responses[app.app_id]
        except KeyError:
            return False  # not asked for lately; or another thread has just put others in its place
        has_ended = seen is app and is_terminal(response.state)
        return has_ended and not any(container.live for container in app.all)

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        app, _ = self._catalog.known(app_id)
        _check(app, role_name, k)
        return self._logs.stream(app, role_name, k, cursor if isinstance(cursor, dict) else {}, streams)


create_scheduler = DockerScheduler.create


def _has_succeeded(app: App) -> bool:
    """Return whether the newest attempts of all replicas have; then no other one follows."""
    replicas = [(role, k) for role, count in Plan.of(app).replicas.items() for k in range(count)]
    newest = [app.attempts[replica][-1] for replica in replicas if replica in app.attempts]
    return len(newest) == len(replicas) and all(container.exit_code == 0 for container in newest)


def _attempt(app: App, role_name: str, k: int, attempt: int) -> Container | None:
    attempts = app.attempts.get((role_name, k), [])
    return attempts[attempt] if attempt < len(attempts) else None


def _check(app: App, role_name: str, k: int) -> None:
    counts = Plan.of(app).replicas
    check_replica([Role(name, "", num_replicas=count) for name, count in counts.items()], role_name, k)
