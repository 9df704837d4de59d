"""Many deferred tasks are ended at once: Airflow cancels their triggers again each second, and each app is ended."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers import kills as kills_module
from airflow_provider_launch.triggers._run import TriggerRun
from airflow_provider_launch.triggers.connections import Connections
from airflow_provider_launch.triggers.helpers import Helpers
from airflow_provider_launch.triggers.hub import hub
from airflow_provider_launch.triggers.kills import Kills
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from airflow_provider_launch.triggers.task_states import TaskStates
from tests.airflow.support import USER_ACTION, logged
from tests.airflow.test_reconciler import NOT_FOUND, deny, refusal
from tests.support.apps import until
from tests.support.fake_scheduler import FakeScheduler, an_app

COUNT = 200
ANSWER_S, CANCEL_S = 0.02, 0.05
AGAIN_S = 0.2
LOG = logging.getLogger(__name__)


class States:
    """Airflow's answers about tasks: one after the other, as its supervisor gives them, and each takes a while."""

    def __init__(self) -> None:
        self.states: dict[str, str | None] = {}
        self.failures = 0
        self.requests = 0
        self._alone = threading.Lock()

    def get(self, *, map_index: int | None = None, **_: Any) -> dict[str, dict[str, str | None]]:
        with self._alone:
            self.requests += 1
            time.sleep(ANSWER_S)
            if self.requests <= self.failures:
                raise RuntimeError("API_SERVER_ERROR")
            key = f"t_{map_index}"
            return {"r": self.states if map_index is None else {key: self.states[key]} if key in self.states else {}}


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> States:
    states = States()
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states.get))
    # The run was deleted, so a task without a state is gone.
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(deny(refusal(404, NOT_FOUND))))
    # The new tries of cleared tasks have started: they replace the apps.
    monkeypatch.setattr(BaseXCom, "get_one", staticmethod(lambda **_: None))
    return states


@pytest.fixture
def app_ids(engine: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Running apps, whose cancel takes a while."""
    scheduler = FakeScheduler("tests", engine)
    ids = [scheduler.submit(an_app(f"app{k}"), {}) for k in range(COUNT)]
    for app_id in ids:
        engine.state(app_id, AppState.RUNNING)
    cancel = FakeScheduler.cancel

    def slowly(self: FakeScheduler, app_id: str) -> None:
        time.sleep(CANCEL_S)
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "cancel", slowly)
    return ids


def trigger_of(app_id: str, k: int) -> AppStatusTrigger:
    trigger = AppStatusTrigger(f"fake://cluster/{app_id}", scheduled=True, log_roles=[])
    ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
    trigger.trigger_id, trigger.task_instance = k, TaskInstance(**ids, try_number=1, map_index=k)
    return trigger


def end_all(
    app_ids: list[str],
    before: Callable[[], object],
    *,
    ready: Callable[[], bool] = lambda: True,
    stop_after_s: float | None = None,
) -> None:
    """Run a trigger for each app in Airflow's runner, and cancel them as it does until all are gone.

    Args:
        app_ids: whose.
        before: called when all of them know their app, and `ready`.
        ready: a further condition to wait for.
        stop_after_s: seconds after which the triggerer is stopped, which cancels each once more, without a message.
    """

    async def drive() -> None:
        runner = TriggerRunner()
        triggers = [trigger_of(app_id, k) for k, app_id in enumerate(app_ids)]
        tasks = []
        for k, trigger in enumerate(triggers):
            tasks.append(asyncio.create_task(runner.run_trigger(k, trigger, None)))
            runner.triggers[k] = {"task": tasks[-1], "is_watcher": False, "name": str(k), "events": 0}
        while not (all(trigger._resolved for trigger in triggers) and ready()):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.05)
        before()
        began = time.monotonic()
        while not all(task.done() for task in tasks):
            assert time.monotonic() < began + 120
            if stop_after_s is not None and time.monotonic() > began + stop_after_s:
                # The end of the event loop cancels whatever tasks there are.
                return
            for task in tasks:
                task.cancel(USER_ACTION)
            await asyncio.sleep(AGAIN_S)

    asyncio.run(drive())


def alive(engine: Any, app_ids: list[str]) -> set[int]:
    return {k for k, app_id in enumerate(app_ids) if engine.apps[app_id].state is AppState.RUNNING}


@pytest.mark.parametrize("state", ["failed", None], ids=["failed", "deleted"])
def test_all_apps_of_ended_tasks_are_cancelled_before_their_triggers_have_gone(
    engine: Any, app_ids: list[str], states: States, state: str | None
) -> None:
    """Some of the triggers only move to another triggerer, and some tasks were cleared: their apps live."""
    spared = {k: ("deferred", None, "queued")[k % 3] for k in range(0, COUNT, 10)}

    def before() -> None:
        states.states |= {f"t_{k}": state for k in range(COUNT) if state is not None}
        states.states |= {f"t_{k}": other for k, other in spared.items()}

    with logged() as entries:
        end_all(app_ids, before)

    assert alive(engine, app_ids) == set(spared)
    assert len(engine.cancelled) == COUNT - len(spared)
    assert sum("is cancelled" in str(entry["event"]) for entry in entries) == COUNT - len(spared)
    # A request for each task would keep Airflow's supervisor from all else.
    assert states.requests <= COUNT / 10


def test_no_cancel_waits_for_the_log(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's supervisor reads what triggers write only between its own requests, and a full pipe blocks."""
    left: list[int] = []
    alone = threading.Lock()

    class Log:
        def warning(self, text: str, *_: object) -> None:
            if "is cancelled" in text:
                with alone:
                    time.sleep(0.02)
                    left.append(len(alive(engine, app_ids)))

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *_, **__: None

    def before() -> None:
        states.states |= {f"t_{k}": "failed" for k in range(COUNT)}
        monkeypatch.setattr(AppStatusTrigger, "log", Log())

    end_all(app_ids, before)

    assert len(left) == COUNT
    assert left[COUNT // 2] == 0, "as many apps are cancelled as lines are written"


def test_apps_are_cancelled_before_their_triggers_stop_to_follow(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand that stop at once share a few threads."""
    begun: list[TriggerRun] = []
    seen: list[bool] = []
    begin, abandon = TriggerRun.start, TriggerRun.abandon

    def counted(self: TriggerRun) -> None:
        begin(self)
        begun.append(self)

    async def slowly(self: TriggerRun, error: asyncio.CancelledError) -> None:
        for _ in range(100):
            if engine.cancelled:
                break
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        seen.append(bool(engine.cancelled))
        await abandon(self, error)

    def before() -> None:
        states.states |= {f"t_{k}": "failed" for k in range(COUNT)}

    monkeypatch.setattr(TriggerRun, "start", counted)
    monkeypatch.setattr(TriggerRun, "abandon", slowly)
    end_all(app_ids, before, ready=lambda: len(begun) == COUNT)

    assert seen == [True] * COUNT
    assert alive(engine, app_ids) == set()


def test_a_triggerer_that_is_stopped_meanwhile_finishes_its_cancels(
    engine: Any, app_ids: list[str], states: States
) -> None:
    def before() -> None:
        states.states |= {f"t_{k}": "failed" for k in range(COUNT)}

    end_all(app_ids, before, stop_after_s=AGAIN_S)

    assert alive(engine, app_ids) == set()


def test_airflow_that_does_not_answer_for_a_while_is_asked_again(
    engine: Any, app_ids: list[str], states: States
) -> None:
    def before() -> None:
        states.failures = states.requests + 3
        states.states |= {f"t_{k}": "failed" for k in range(COUNT)}

    end_all(app_ids, before)

    assert alive(engine, app_ids) == set()


def test_a_trigger_whose_app_is_left_alone_asks_nothing(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sensors that end do not cause a thousand requests."""

    async def fail(_self: AppStatusTrigger) -> str:
        raise AssertionError("the handle was looked up")

    monkeypatch.setattr(AppStatusTrigger, "_handle", fail)
    trigger = AppStatusTrigger(["t", "return_value"], kill_policy="leave")

    asyncio.run(trigger.on_kill())

    assert states.requests == 0
    assert engine.cancelled == []


def test_a_connection_that_hangs_does_not_delay_cancels_at_others() -> None:
    """Each of its cancels holds a thread until its engine answers."""
    hangs, ran = threading.Event(), threading.Event()
    helpers = Helpers("launch-kills", 2)
    try:
        for _ in range(50):
            helpers.submit(hangs.wait, "hanging")
        helpers.submit(ran.set, "other")

        assert ran.wait(30)
        assert sum(thread.name == "launch-kills" for thread in threading.enumerate()) <= 3
    finally:
        hangs.set()
    until(lambda: not (helpers._calls or helpers._running), 30, 0.01)


def test_apps_of_another_connection_are_cancelled_while_one_hangs(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen cancels that hung kept those of all other connections waiting."""
    cancel, over = FakeScheduler.cancel, threading.Event()

    def hang(self: FakeScheduler, app_id: str) -> None:
        if self.session_name == "hanging":
            over.wait(60)
            raise SchedulerUnavailableError("no answer")
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "cancel", hang)
    monkeypatch.setattr("airflow_provider_launch.triggers.kills.KILL_S", 1.0)
    monkeypatch.setenv("AIRFLOW_CONN_HANGING", os.environ["AIRFLOW_CONN_CLUSTER"])
    kills = hub().kills
    where = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1}
    task: dict[str, Any] = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), **where}
    try:
        for k in range(40):
            states.states[f"t_{k}"] = "failed"
        ends = [
            kills.end(f"fake://hanging/{app_id}", app_id, "hanging", TaskInstance(**task, map_index=k), LOG)
            for k, app_id in enumerate(app_ids[:39])
        ]
        last = TaskInstance(**task, map_index=39)
        kills.end(f"fake://cluster/{app_ids[39]}", app_ids[39], "cluster", last, LOG).result(30)

        assert engine.cancelled == [app_ids[39]]
    finally:
        over.set()
    for end in ends:
        end.result(60)


def test_an_app_that_could_not_be_ended_is_logged(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise SchedulerUnavailableError("no route to the cluster")

    def before() -> None:
        states.states |= {f"t_{k}": "failed" for k in range(COUNT)}

    monkeypatch.setattr(FakeScheduler, "cancel", refuse)
    monkeypatch.setattr("airflow_provider_launch.triggers.kills.KILL_S", 1.5)
    with logged() as entries:
        end_all(app_ids[:40], before)

    errors = [
        entry for entry in entries if entry["level"] == "error" and "could not be cancelled" in str(entry["event"])
    ]
    texts = [str(entry["event"]) for entry in errors]
    assert all(any(app_id in text and "no route" in text for text in texts) for app_id in app_ids[:40])
    assert len(texts) == 40


def test_an_app_is_named_in_the_log_if_airflow_does_not_return_the_state_of_its_task(
    engine: Any, app_ids: list[str], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.failures = 1000
    monkeypatch.setattr("airflow_provider_launch.triggers.kills.KILL_S", 1.0)
    with logged() as entries:
        end_all(app_ids[:1], lambda: None)

    (error,) = [str(entry["event"]) for entry in entries if entry["level"] == "error"]
    assert "could not be cancelled: Airflow did not return the state of the task" in error
    assert states.requests > 1
    assert alive(engine, app_ids[:1]) == {0}


def test_a_trigger_that_is_ended_before_it_starts_cancels_its_app(
    engine: Any, app_ids: list[str], states: States
) -> None:
    states.states["t_0"] = "failed"

    asyncio.run(trigger_of(app_ids[0], 0).on_kill())

    assert engine.cancelled == app_ids[:1]


class Clock:
    """Time that passes only in a sleep."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Now:
    """Helpers that run each call at once."""

    def submit(self, call: Callable[[], object], _key: str = "") -> None:
        call()


class Writes:
    """Keeps the texts of a log."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def error(self, text: str, *args: object) -> None:
        self.texts.append(text % args)

    warning = error


def one_kill(log: Any, shared: Any = None) -> Any:
    return kills_module._Kill("fake://c/a", "a", "c", None, log, contextvars.copy_context(), 10.0, shared)


def test_a_cancel_is_repeated_up_to_the_last_pause_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), []

    def refuse(app_id: str) -> None:
        asked.append(clock.now)
        assert len(asked) < 100
        raise SchedulerUnavailableError("no route to the cluster")

    monkeypatch.setattr(kills_module, "time", clock)
    shared = SimpleNamespace(for_kills=lambda: SimpleNamespace(cancel=refuse))
    why_not = Kills(Connections(), None, None, None)._cancel(one_kill(Writes(), shared))  # type: ignore[arg-type]

    assert why_not == "no route to the cluster"
    assert asked == [k / 2 for k in range(20)]


@pytest.mark.parametrize(("now", "is_asked_again"), [(9.4, True), (9.5, False)])
def test_airflow_is_asked_again_if_a_pause_is_left(
    monkeypatch: pytest.MonkeyPatch, now: float, is_asked_again: bool
) -> None:
    monkeypatch.setattr(kills_module, "time", Clock(now))
    pauses: list[float] = []

    def ask(_ti: object, after_s: float) -> Future[str | None]:
        pauses.append(after_s)
        return Future()

    found: Future[str | None] = Future()
    found.set_exception(LookupError("API_SERVER_ERROR"))
    log = Writes()
    kills = Kills(Connections(), SimpleNamespace(ask=ask), Now(), Now())  # type: ignore[arg-type]
    kills._continue(one_kill(log), found)

    assert pauses == ([0.5] if is_asked_again else [])
    assert bool(log.texts) is not is_asked_again


def test_a_kill_is_complete_though_its_log_and_its_connection_fail() -> None:
    """The trigger waits for it, and later kills of the connection need its threads."""
    left = []

    def leave(_shared: object) -> None:
        left.append("the connection")
        raise OSError("no socket")

    def ended(_ti: object, _after_s: float) -> Future[str | None]:
        found: Future[str | None] = Future()
        found.set_result("failed")
        return found

    log = SimpleNamespace(warning=deny(OSError("no log")))
    shared: Any = SimpleNamespace(
        for_kills=lambda: SimpleNamespace(cancel=lambda _: None), options=SimpleNamespace(backend="fake")
    )
    connections: Any = SimpleNamespace(keep=lambda _: True, leave=leave)
    kills = Kills(connections, SimpleNamespace(ask=ended), Helpers("launch-kills", 1), Now())  # type: ignore[arg-type]
    for _ in range(2):
        assert kills.end("fake://c/a", "a", "c", None, log, shared=shared).result(20) is None
    until(lambda: len(left) == 2, 20)


def test_whatever_ends_a_question_to_airflow_ends_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's client may raise a cancellation or an exit, and the app of the task would be forgotten."""

    def leave(*_: object, **__: object) -> None:
        raise SystemExit("the supervisor has gone")

    monkeypatch.setattr("airflow_provider_launch.triggers.task_states.ask_states", leave)
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    found = TaskStates(Helpers("launch-kills", 1)).ask(ti)

    with pytest.raises(LookupError, match="SystemExit: the supervisor has gone"):
        found.result(20)
