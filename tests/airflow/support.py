"""One task through Airflow's real task runner, without a database.

The imports are not public API of Airflow; this is the only place that has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import structlog
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import DagRun, TaskInstance
from airflow.sdk.execution_time.comms import DeferTask
from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

from tests.airflow.versions import (
    HAS_ON_KILL,
    USER_ACTION,
    cancel_trigger,
    deserialize,
    event_message,
    events_of,
    import_string,
    run_task_with,
    serialize,
)

if TYPE_CHECKING:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import Role

# Imported where it is used, because a benchmark measures these imports.

START = "2026-01-01T00:00:00Z"
LISTENERS: list[Callable[[str], object]] = []
"""Each gets every line as it is logged, in the thread that logs it."""
_DATES = ("end_date", "logical_date", "data_interval_start", "data_interval_end", "partition_key")
UNSET = [name for name in _DATES if name in DagRun.model_fields]
# Not a dict, because modules of tests name it, and texts in dicts of modules are those of authors.
RUN: UserDict[str, Any] = UserDict(
    {
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
)


class FakeExecutionApi:
    """Answers the routes that a task uses, and keeps what it wrote. One object may serve several tries."""

    def __init__(self, retries: int = 0) -> None:
        self.tries = {"max_tries": retries, "should_retry": retries > 0}
        self.clear_number = 0
        self.resume: dict[str, Any] = {}
        self.store: dict[str, Any] = {}
        self.expires: dict[str, str | None] = {}
        self.xcoms: dict[Any, Any] = {}
        self.rendered: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.on_call = lambda method, parts, body: None
        """Called before each answer; may raise, as if the worker died there."""

    def clear(self, *, another: bool = False, running: bool = False) -> None:
        """As Airflow notes a clear: for the run, and for a task that does not run."""
        self.clear_number += 1
        if not another and not running:
            self.tries["max_tries"] += 1

    def client(self) -> Any:
        transport = httpx.MockTransport(self._answer)
        return InProcessTestSupervisor._Client(base_url=None, dry_run=True, token="", transport=transport)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.method, request.url.path))
        body = json.loads(request.content) if request.content else None
        refuse_unstorable(body)
        parts = request.url.path.strip("/").split("/")
        self.on_call(request.method, parts, body)
        match request.method, *parts:
            case "PATCH", "task-instances", _, "run":
                run = {**RUN, "clear_number": self.clear_number}
                return httpx.Response(200, json={"dag_run": run, **self.tries, **self.resume})
            case "PUT", "task-instances", _, "rtif":
                self.rendered = body
            case "GET", "store", "ti", _, key if key in self.store:
                return httpx.Response(200, json={"value": self.store[key]})
            case "PUT", "store", "ti", _, key:
                self.store[key] = body["value"]
                self.expires[key] = body["expires_at"]
            case "POST", "xcoms", _, _, task_id, key:
                index = request.url.params.get("map_index")
                self.xcoms[(task_id, key) if index in (None, "-1") else (task_id, key, int(index))] = body
            case "DELETE", "xcoms", _, _, task_id, key:
                del self.xcoms[task_id, key]
            case "GET", "xcoms", _, _, task_id, key:
                return httpx.Response(200, json={"key": key, "value": self.xcoms.get((task_id, key))})
            case "GET", "store" | "connections" | "variables", *_:
                return httpx.Response(404, json={"detail": {"reason": "not_found", "message": ""}})
        return httpx.Response(200, json={})


def refuse_unstorable(value: Any) -> None:
    """As PostgreSQL refuses it in JSON, and the messages between Airflow's processes refuse large integers.

    Not a usual exception, because tasks often ignore errors, and here an error is a fault.
    """
    if isinstance(value, dict):
        refuse_unstorable([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            refuse_unstorable(each)
    elif isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise SystemExit(f"PostgreSQL cannot store {value!r}")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise SystemExit(f"no message holds {value!r}")


def send_event(event: Any) -> None:
    """As the runner of triggers sends an event to its supervisor, and that stores it."""
    from airflow.sdk.execution_time.comms import _RequestFrame

    _RequestFrame(id=1, body=event_message(event).model_dump()).as_bytes()
    refuse_unstorable(event.payload)


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
        return [rendered(entry) for entry in self.log]

    def logged(self, part: str) -> bool:
        return any(part in line for line in self.lines)


def rendered(entry: dict[str, Any]) -> str:
    event = str(entry["event"])
    args = entry.get("positional_args")
    return event % tuple(args) if args else event


def run_task(task: Any, api: FakeExecutionApi, try_number: int = 1, map_index: int = -1) -> Ran:
    """One try on a worker."""
    where = {"dag_id": "test_dag", "run_id": "test_run", "task_id": task.task_id, "map_index": map_index}
    instance = TaskInstance(id=uuid.uuid4(), try_number=try_number, dag_version_id=uuid.uuid4(), **where)
    with logged() as entries:
        return Ran(run_task_with(api.client(), instance, task), entries)


def run_to_end(task: Any, api: FakeExecutionApi, **where: Any) -> tuple[Ran, list[dict[str, Any]]]:
    """All phases of one try: a deferral is rebuilt from its message, run to its event in Airflow's own runner of
    triggers, and resumed. Returns how it ended, with the log of all phases, and the events."""
    api.resume = {}
    log: list[dict[str, Any]] = []
    events = []
    while isinstance((ran := run_task(task, api, **where)).msg, DeferTask):
        log += ran.log
        refuse_unstorable(ran.msg.trigger_kwargs)
        trigger = import_string(ran.msg.classpath)(**deserialize(ran.msg.trigger_kwargs))
        with logged() as entries:
            (event,) = run_trigger(trigger)
        log += entries
        send_event(event)
        events.append(event.payload)
        next_kwargs = {**deserialize(ran.msg.next_kwargs), "event": json.loads(json.dumps(event.payload))}
        api.resume = {"next_method": ran.msg.next_method, "next_kwargs": serialize(next_kwargs)}
    ran.log = log + ran.log
    return ran, events


def run_trigger(
    trigger: Any,
    cancel_after: float | None = None,
    message: str | None = None,
    timeout_after: Any = None,
    map_index: int = -1,
) -> list[Any]:
    """Run a trigger and return its events. `message=USER_ACTION` is a user's kill, None a triggerer that stops."""
    ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
    trigger.trigger_id = 1
    if cancel_after is not None:
        trigger.task_instance = TaskInstance(**ids, try_number=1, map_index=map_index)

    # Here, because it loads half of Airflow, and the benchmarks use this module too.
    from airflow.jobs.triggerer_job_runner import TriggerRunner

    if HAS_ON_KILL:
        from airflow.jobs.triggerer_job_runner import _USER_ACTION_CANCEL_MSG

        assert USER_ACTION == _USER_ACTION_CANCEL_MSG

    async def drive() -> list[Any]:
        runner = TriggerRunner()
        task = asyncio.create_task(runner.run_trigger(1, trigger, timeout_after))
        runner.triggers[1] = {"task": task, "is_watcher": False, "name": "test", "events": 0}
        if cancel_after is not None:
            await asyncio.sleep(cancel_after)
            await cancel_trigger(task, message)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return events_of(runner)

    return asyncio.run(drive())


def run_triggers(*triggers: Any, during: Callable[[Callable[[int, str | None], None]], object]) -> list[list[Any]]:
    """Run triggers together in one triggerer, and return the events of each.

    Meanwhile `during(cancel)` runs in another thread; `cancel(index, message)` ends one as `run_trigger` does.
    """
    from airflow.jobs.triggerer_job_runner import TriggerRunner

    async def drive() -> list[list[Any]]:
        runner, loop = TriggerRunner(), asyncio.get_running_loop()
        tasks = []
        for number, trigger in enumerate(triggers):
            trigger.trigger_id = number
            tasks.append(asyncio.create_task(runner.run_trigger(number, trigger, None)))
            runner.triggers[number] = {"task": tasks[-1], "is_watcher": False, "name": str(number), "events": 0}

        def cancel(index: int, message: str | None) -> None:
            asyncio.run_coroutine_threadsafe(cancel_trigger(tasks[index], message), loop)

        meanwhile = asyncio.create_task(asyncio.to_thread(during, cancel))
        # A test that has failed is not to wait for triggers which then never end.
        meanwhile.add_done_callback(lambda done: [task.cancel() for task in tasks] if done.exception() else None)
        await asyncio.gather(*tasks, return_exceptions=True)
        await meanwhile
        return [events_of(runner, number) for number in range(len(tasks))]

    return asyncio.run(drive())


@contextlib.contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """Collect what is logged meanwhile."""
    entries: list[dict[str, Any]] = []

    def keep(_logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        entries.append({**event, "level": method})
        for listener in LISTENERS:
            listener(rendered(entries[-1]))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        yield entries
    finally:
        structlog.configure(**before)


def a_dag() -> DAG:
    return DAG("test_dag", schedule=None)


def sh(script: str, *, name: str = "worker", **kwargs: Any) -> Role:
    """A role that runs a shell script."""
    from airflow_provider_launch.specs import Role

    return Role(name=name, image="", entrypoint="sh", args=["-c", script], **kwargs)


def launch(*roles: Role, **kwargs: Any) -> LaunchAppOperator:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef

    with a_dag():
        return LaunchAppOperator(task_id="t", app=kwargs.pop("app", AppDef("app", list(roles))), **kwargs)
