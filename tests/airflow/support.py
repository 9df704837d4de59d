"""One task through Airflow's real task runner, without a database.

The imports are not public API of Airflow; this is the only place that has them.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import structlog
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, run_task_in_process

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role

START = "2026-01-01T00:00:00Z"
UNSET = ["end_date", "logical_date", "data_interval_start", "data_interval_end", "partition_key"]
RUN = {
    "dag_id": "test_dag",
    "run_id": "test_run",
    "run_type": "manual",
    "state": "running",
    "run_after": START,
    "start_date": START,
    "conf": {},
    "consumed_asset_events": [],
    **dict.fromkeys(UNSET),
}


class FakeExecutionApi:
    """Answers the routes that a task uses, and keeps what it wrote. One object may serve several tries."""

    def __init__(self, retries: int = 0) -> None:
        self.tries = {"max_tries": retries, "should_retry": retries > 0}
        self.clear_number = 0
        self.store: dict[str, Any] = {}
        self.xcoms: dict[Any, Any] = {}
        self.rendered: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.on_call = lambda method, parts, body: None
        """Called before each answer; may raise, as if the worker died there."""

    def client(self) -> Any:
        transport = httpx.MockTransport(self._answer)
        return InProcessTestSupervisor._Client(base_url=None, dry_run=True, token="", transport=transport)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.method, request.url.path))
        body = json.loads(request.content) if request.content else None
        parts = request.url.path.strip("/").split("/")
        self.on_call(request.method, parts, body)
        match request.method, *parts:
            case "PATCH", "task-instances", _, "run":
                run = {**RUN, "clear_number": self.clear_number}
                return httpx.Response(200, json={"dag_run": run, **self.tries})
            case "PUT", "task-instances", _, "rtif":
                self.rendered = body
            case "GET", "store", "ti", _, key if key in self.store:
                return httpx.Response(200, json={"value": self.store[key]})
            case "PUT", "store", "ti", _, key:
                self.store[key] = body["value"]
            case "POST", "xcoms", _, _, task_id, key:
                index = request.url.params.get("map_index")
                self.xcoms[(task_id, key) if index in (None, "-1") else (task_id, key, int(index))] = body
            case "GET", "xcoms", _, _, task_id, key:
                return httpx.Response(200, json={"key": key, "value": self.xcoms.get((task_id, key))})
            case "GET", "store" | "connections" | "variables", *_:
                return httpx.Response(404, json={"detail": {"reason": "not_found", "message": ""}})
        return httpx.Response(200, json={})


class Ran:
    """How one try ended, and what stands in its log."""

    def __init__(self, result: Any, log: list[dict[str, Any]]) -> None:
        self.state = str(result.state.value if hasattr(result.state, "value") else result.state)
        self.msg = result.msg
        self.error = result.error
        self.log = log

    @property
    def lines(self) -> list[str]:
        """The texts of the log, rendered."""
        return [_rendered(entry) for entry in self.log]

    def told(self, part: str) -> bool:
        return any(part in line for line in self.lines)


def _rendered(entry: dict[str, Any]) -> str:
    event = str(entry["event"])
    args = entry.get("positional_args")
    return event % tuple(args) if args else event


def run_task(task: Any, api: FakeExecutionApi, try_number: int = 1, map_index: int = -1) -> Ran:
    """One try on a worker."""
    where = {"dag_id": "test_dag", "run_id": "test_run", "task_id": task.task_id, "map_index": map_index}
    instance = TaskInstance(id=uuid.uuid4(), try_number=try_number, dag_version_id=uuid.uuid4(), **where)
    entries: list[dict[str, Any]] = []

    def keep(_logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        entries.append({**event, "level": method})
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        return Ran(run_task_in_process(instance, task, client=api.client()), entries)
    finally:
        structlog.configure(**before)


def a_dag() -> DAG:
    return DAG("test_dag", schedule=None)


def sh(script: str, *, name: str = "worker", **kwargs: Any) -> Role:
    """A role that runs a shell script."""
    return Role(name=name, image="", entrypoint="sh", args=["-c", script], **kwargs)


def launch(*roles: Role, **kwargs: Any) -> LaunchAppOperator:
    with a_dag():
        return LaunchAppOperator(task_id="t", app=kwargs.pop("app", AppDef("app", list(roles))), **kwargs)
