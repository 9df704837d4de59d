"""A scheduler in memory, with an engine that the test controls."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    ListAppResponse,
    LogChunk,
    LogLine,
    Scheduler,
    Stream,
    spec_hash,
    split_lines,
)
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import AppConflictError, SchedulerUnavailableError, UnknownAppException
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus


def an_app(name: str = "app", replicas: int = 1, roles: Iterable[str] = ("worker",)) -> AppDef:
    """Return a small valid app."""
    return AppDef(
        name=name,
        roles=[Role(name=role, image="", entrypoint="true", num_replicas=replicas) for role in roles],
    )


@dataclass
class FakeRequest:
    app_id: str
    app: AppDef
    cfg: Mapping[str, Any]
    digest: str


def _shown(request: FakeRequest) -> str:
    return json.dumps({"app_id": request.app_id, "cfg": dict(request.cfg)})


@dataclass
class _App:
    request: FakeRequest
    state: AppState = AppState.PENDING
    msg: str = ""
    num_restarts: int = 0
    exit_codes: dict[tuple[str, int], int] = field(default_factory=dict)
    lines: dict[tuple[str, int], list[LogLine]] = field(default_factory=dict)
    result: Any = None
    ui_url: str | None = None
    pages: dict[str, str] = field(default_factory=dict)
    created_at: float = field(default_factory=time.time)


class FakeEngine:
    """The engine: it outlives schedulers, and several schedulers may share it."""

    def __init__(self) -> None:
        self.apps: dict[str, _App] = {}
        self.lock = threading.RLock()
        self.started = 0
        self.cancelled: list[str] = []
        self.describe_calls: list[list[str]] = []
        self.log_calls = 0
        self.chunk_lines = 100
        self.on_describe: Callable[[list[str]], None] = lambda app_ids: None
        """Called without the lock; may raise or hang."""
        self.on_read: Callable[[str, str, int], None] = lambda app_id, role, k: None
        self.on_schedule: Callable[[str], None] = lambda app_id: None
        """Called before the app is created; may refuse it."""
        self.on_scheduled: Callable[[str], None] = lambda app_id: None
        """Called after the app is created."""

    def state(
        self,
        app_id: str,
        state: AppState,
        msg: str = "",
        *,
        exit_codes: Mapping[tuple[str, int], int] | None = None,
        num_restarts: int | None = None,
    ) -> None:
        """Set the state of the app."""
        with self.lock:
            app = self.apps[app_id]
            app.state, app.msg = state, msg
            app.exit_codes.update(exit_codes or {})
            if num_restarts is not None:
                app.num_restarts = num_restarts

    def write(
        self,
        app_id: str,
        role: str,
        k: int,
        text: str,
        *,
        stream: Stream = Stream.STDOUT,
        attempt: int = 0,
        time: float | None = None,
    ) -> None:
        """Add complete lines to the log of a replica."""
        with self.lock:
            lines = self.apps[app_id].lines.setdefault((role, k), [])
            lines.extend(LogLine(line, stream, time, attempt) for line in split_lines(text))

    def result(self, app_id: str, document: Any) -> None:
        """Set the result of the app."""
        self.apps[app_id].result = document

    def forget(self, app_id: str) -> None:
        """Remove the record of the app."""
        with self.lock:
            del self.apps[app_id]

    def cut(self, message: str = "connection refused") -> None:
        """Make the engine unreachable for states and logs."""

        def refuse(*_: object) -> None:
            raise SchedulerUnavailableError(message)

        self.on_describe = self.on_read = refuse

    def heal(self) -> None:
        """Make the engine reachable again."""
        self.on_describe = self.on_read = lambda *_: None


class FakeScheduler(Scheduler[Mapping[str, Any]]):
    capabilities = frozenset({Capability.ADOPT, Capability.STREAMS, Capability.RESULT})
    poll_interval_s = 0.02

    def __init__(self, session_name: str = "", engine: FakeEngine | None = None, backend: str = "fake") -> None:
        super().__init__(backend, session_name)
        self.engine = engine or FakeEngine()
        self.closed = 0

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("queue", type_=str, help="where to run", default="default")
        options.add("tags", type_=list[str], help="labels", default=[])
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:
        """Accept roles without a resource, like the local scheduler."""

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[FakeRequest]:
        request = FakeRequest(app_id or make_unique(app.name), copy.deepcopy(app), dict(cfg), spec_hash(app, cfg))
        return AppDryRunInfo(request, _shown)

    def schedule(self, dryrun_info: AppDryRunInfo[FakeRequest]) -> str:
        request = dryrun_info.request
        self.engine.on_schedule(request.app_id)
        with self.engine.lock:
            there = self.engine.apps.get(request.app_id)
            if there is None:
                self.engine.apps[request.app_id] = _App(request)
                self.engine.started += 1
            elif there.request.digest != request.digest:
                raise AppConflictError(f"{request.app_id} is another app")
        self.engine.on_scheduled(request.app_id)
        return request.app_id

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        self.engine.describe_calls.append(ids)
        self.engine.on_describe(ids)
        with self.engine.lock:
            return {app_id: self._described(app_id) for app_id in ids}

    def _described(self, app_id: str) -> DescribeAppResponse | None:
        app = self.engine.apps.get(app_id)
        if app is None:
            return None

        def replica(role: str, k: int) -> ReplicaStatus:
            code, state = app.exit_codes.get((role, k)), app.state
            if code is not None and not is_terminal(state):
                state = AppState.FAILED if code else AppState.SUCCEEDED
            return ReplicaStatus(k, state, role, "host", exit_code=code)

        statuses = [
            RoleStatus(role.name, [replica(role.name, k) for k in range(role.num_replicas)])
            for role in app.request.app.roles
        ]
        return DescribeAppResponse(
            app_id=app_id,
            state=app.state,
            num_restarts=app.num_restarts,
            msg=app.msg,
            ui_url=app.ui_url,
            pages=app.pages,
            roles_statuses=statuses,
            metadata=copy.deepcopy(app.request.app.metadata),
            roles=copy.deepcopy(app.request.app.roles),
        )

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: Any = None, *, streams: Stream | None = None
    ) -> LogChunk:
        self.engine.log_calls += 1
        self.engine.on_read(app_id, role_name, k)
        with self.engine.lock:
            app = self.engine.apps.get(app_id)
            if app is None:
                raise UnknownAppException(app_id)
            sizes = {role.name: role.num_replicas for role in app.request.app.roles}
            if not 0 <= k < sizes.get(role_name, 0):
                raise ValueError(f"no replica {role_name}/{k}; there are {sizes}")
            at = cursor or 0
            written = app.lines.get((role_name, k), [])
            lines: list[LogLine] = []
            while at < len(written) and len(lines) < self.engine.chunk_lines:
                if streams in (None, Stream.COMBINED, written[at].stream):
                    lines.append(written[at])
                at += 1
        return LogChunk(lines, at)

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        with self.engine.lock:
            return [
                ListAppResponse(
                    app_id,
                    app.state,
                    name=app.request.app.name,
                    owner=owner_of(app.request.app.metadata),
                    created_at=app.created_at,
                )
                for app_id, app in self.engine.apps.items()
            ]

    def _cancel_existing(self, app_id: str) -> None:
        with self.engine.lock:
            app = self.engine.apps[app_id]
            if not is_terminal(app.state):
                app.state = AppState.CANCELLED
                self.engine.cancelled.append(app_id)

    def _delete_existing(self, app_id: str) -> None:
        with self.engine.lock:
            self._cancel_existing(app_id)
            del self.engine.apps[app_id]

    def result(self, app_id: str) -> Any:
        return self.engine.apps[app_id].result

    def describe_native(self, app_id: str) -> AppDryRunInfo[FakeRequest] | None:
        app = self.engine.apps.get(app_id)
        return AppDryRunInfo(app.request, _shown) if app else None

    def close(self) -> None:
        self.closed += 1
