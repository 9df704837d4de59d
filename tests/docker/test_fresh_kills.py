"""Programs that were killed just now: their cause may come later, and no other app waits for it."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.containers import Container, container_in
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.specs import AppState

GiB = 1024**3
KILLED_AT = 1_000_000_100.9
"""Shortly before a full second, because the engine's time has whole seconds."""


def stamp(at: float) -> str:
    """Return a time as the engine writes it."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")


def described(scheduler: DockerScheduler, app_id: str) -> DescribeAppResponse:
    """Return the response of an app that is polled together with others."""
    found = scheduler.describe_many([app_id, "none"])[app_id]
    assert found is not None
    return found


class Engine:
    """An engine with a clock of its own: replica 0 of each app but `other` is killed, replica 1 runs."""

    def __init__(self) -> None:
        self.clock = KILLED_AT
        self.memory = GiB
        self.out_of_memory = False
        self.inspected = 0
        self.rows: list[dict[str, Any]] = []

    def launch(self, app_id: str, *codes: int | None) -> None:
        plan = json.dumps({"roles": [["r", len(codes), "REPLICA", 0]], "time_limit_s": None})
        self.add(app_id, app_id, Kind.APP, "created", plan)
        for k, code in enumerate(codes):
            state = "running" if code is None else "exited"
            labels = {Label.ROLE: "r", Label.REPLICA: str(k), Label.APP_ATTEMPT: "0", Label.ATTEMPT: "0"}
            self.add(app_id, f"{app_id}-r-{k}", Kind.REPLICA, state, plan, code, **labels)

    def add(
        self, app_id: str, name: str, kind: str, state: str, plan: str = "", code: int | None = None, **labels: str
    ) -> None:
        status = {"exited": f"Exited ({code}) Less than a second ago", "created": "Created"}.get(state, "Up 2 seconds")
        labels |= {Label.APP_ID: app_id, Label.NAME: name, Label.KIND: kind, Label.PLAN: plan}
        self.rows.append(
            {
                "Id": f"id-{name}",
                "Names": [f"/{name}"],
                "ImageID": "image",
                "State": state,
                "Status": status,
                "Created": int(KILLED_AT) - 60 if kind != Kind.MARK else int(self.clock),
                "Labels": labels,
            }
        )

    def containers(self, *, app_id: str | None = None, **_: Any) -> tuple[list[Container], float]:
        rows = [row for row in self.rows if app_id in {None, row["Labels"][Label.APP_ID]}]
        return [container_in(row, {}) for row in rows], float(int(self.clock))

    def inspect(self, container: str) -> dict[str, Any]:
        self.inspected += 1
        row = next(row for row in self.rows if row["Id"] == container)
        ended = row["State"] == "exited"
        state = {
            "Status": row["State"],
            "StartedAt": stamp(KILLED_AT - 60),
            "FinishedAt": stamp(KILLED_AT) if ended else "0001-01-01T00:00:00Z",
            "ExitCode": 137 if ended else 0,
            "OOMKilled": ended and self.out_of_memory,
        }
        return {"Created": stamp(row["Created"] + 0.95), "HostConfig": {"Memory": self.memory}, "State": state}

    def create(self, name: str, body: Any, platform: str | None = None) -> str:
        labels = body["Labels"]
        self.add(labels[Label.APP_ID], name, Kind.MARK, "created", **labels)
        return f"id-{name}"

    def scheduler(self, monkeypatch: pytest.MonkeyPatch) -> DockerScheduler:
        scheduler = DockerScheduler("tests", DockerConnection(host="unix:///none"))
        for name in ("containers", "inspect", "create"):
            monkeypatch.setattr(scheduler.engine, name, getattr(self, name))
        for name, found in {"stops": {}, "started_at": None, "stop": None, "read_file": None}.items():
            monkeypatch.setattr(scheduler.engine, name, lambda *_, found=found, **__: found)
        return scheduler


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the scheduler sleeps."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize("memory", [0, GiB], ids=["no limit", "memory limit"])
def test_kills_in_many_apps_delay_no_other_app(
    engine: Engine, slept: list[float], monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """A program that kills itself, or exits with 137, needs no rights; twenty took 35 s at each poll."""
    engine.memory = memory
    ids = [f"killed-{n}" for n in range(20)]
    for app_id in ids:
        engine.launch(app_id, 137, None)
    engine.launch("other", None)
    scheduler = engine.scheduler(monkeypatch)

    found = scheduler.describe_many([*ids, "other"])
    scheduler.list()
    engine.clock += 2.5
    scheduler.describe_many([*ids, "other"])

    assert slept == []
    assert engine.inspected <= 5 * len(ids)
    assert {found[app_id].state for app_id in ids} == {AppState.RUNNING}
    assert found["other"].act_in_s is None
    assert all(0 < found[app_id].act_in_s <= 3 for app_id in ids)


@pytest.mark.parametrize("late", [False, True], ids=["killed", "out of memory"])
def test_an_app_has_ended_when_the_cause_can_be_reported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    engine.launch("app", 137)
    scheduler = engine.scheduler(monkeypatch)
    first = described(scheduler, "app")
    replica = first.roles_statuses[0].replicas[0]
    assert (first.state, replica.state, replica.exit_code, replica.end_time) == (AppState.RUNNING,) * 2 + (None,) * 2
    assert [app.state for app in scheduler.list()] == [AppState.RUNNING]

    engine.out_of_memory = late
    engine.clock += first.act_in_s
    found = described(scheduler, "app")

    assert (found.state, found.act_in_s) == (AppState.FAILED, None)
    replica = found.roles_statuses[0].replicas[0]
    assert (replica.exit_code, replica.reason) == (137, "out of memory" if late else "SIGKILL")
    assert [app.state for app in scheduler.list()] == [AppState.FAILED]


def test_an_end_is_the_same_for_each_process(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that polls an app for the first time must not show it running after another has shown its end."""
    engine.launch("app", 137)
    for _ in range(40):
        first, second = engine.scheduler(monkeypatch), engine.scheduler(monkeypatch)
        states = [described(first, "app").state, *(app.state for app in second.list()), described(second, "app").state]
        assert len({*states}) == 1
        engine.clock += 0.1
    assert states[0] is AppState.FAILED


def test_a_clock_that_was_set_back_delays_no_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.launch("app", 137)
    engine.clock -= 3600

    assert described(engine.scheduler(monkeypatch), "app").state is AppState.FAILED


def test_a_failure_before_a_cancel_keeps_its_reason(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.launch("app", 137)
    scheduler = engine.scheduler(monkeypatch)
    scheduler.cancel("app")
    assert described(scheduler, "app").state is AppState.RUNNING
    engine.clock += 3

    assert described(scheduler, "app").state is AppState.FAILED
