"""A deferrable task whose app ends within seconds: Airflow would fail it if its trigger fired too early."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import DeferTask

from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import FakeExecutionApi, launch, logged, rendered, run_task, run_to_end, run_trigger, sh
from tests.airflow.versions import deserialize, serialize

NUMBERS = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done"


def shown(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("[worker/0] line")]


def test_an_app_that_ends_at_once_is_not_deferred() -> None:
    ran = run_task(launch(sh("echo line 1"), deferrable=True, defer_after_s=60), api := FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert shown(ran.lines) == ["[worker/0] line 1"]
    assert sum(line.endswith("SUCCEEDED") for line in ran.lines) == 1
    assert api.xcoms["t", "return_value"]["state"] == "SUCCEEDED"


def test_an_app_that_fails_at_once_fails_its_task_at_once() -> None:
    ran = run_task(launch(sh("echo oh no; exit 3"), deferrable=True, defer_after_s=60), FakeExecutionApi())

    assert ran.state == "failed"
    assert "exited with code 3" in str(ran.error)
    assert "oh no" in str(ran.error)


def test_a_longer_app_is_deferred_and_each_line_is_shown_once() -> None:
    ran, events = run_to_end(launch(sh(NUMBERS), deferrable=True, defer_after_s=1), FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert len(events) == 1
    assert shown(ran.lines) == [f"[worker/0] line {k}" for k in range(1, 7)]
    assert sum(line.endswith("RUNNING") for line in ran.lines) == 1


@pytest.mark.parametrize("defer_after_s", [1, 60])
def test_a_limited_log_is_shown_as_without_a_deferral(defer_after_s: float) -> None:
    """Its first half by whoever comes first, its last half at the end."""
    script = "for i in $(seq 1 40); do echo line $i; done; sleep 2.5; echo line last"
    arguments: dict[str, Any] = {"deferrable": True, "max_log_bytes": 60}
    ran, _ = run_to_end(launch(sh(script), defer_after_s=defer_after_s, **arguments), FakeExecutionApi())
    here, _ = run_to_end(launch(sh(script), max_log_bytes=60), FakeExecutionApi())

    assert shown(ran.lines) == shown(here.lines)
    assert shown(ran.lines)[-1] == "[worker/0] line last"


def test_an_option_shows_how_long_the_worker_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__DEFER_AFTER_S", "60")
    ran = run_task(launch(sh("echo line 1; sleep 2"), deferrable=True), FakeExecutionApi())

    assert ran.state == "success", ran.error


@pytest.mark.parametrize("wrong", [-1, "soon", True])
def test_an_invalid_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(Exception, match="defer_after_s"):
        launch(sh("true"), deferrable=True, defer_after_s=wrong)


def test_a_trigger_does_not_fire_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines do not wait for that."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__TRIGGER_FIRE_AFTER_S", "3")
    ran = run_task(launch(sh("echo line 1; sleep 2"), deferrable=True), FakeExecutionApi())
    assert isinstance(ran.msg, DeferTask), ran.error
    trigger = AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs))
    began = time.monotonic()
    with logged() as entries:
        (event,) = run_trigger(trigger)

    assert event.payload["reason"] == "ended"
    assert time.monotonic() - began >= 3
    assert "[worker/0] line 1" in map(rendered, entries)


def test_a_task_that_resumes_without_an_event_launches_like_execute() -> None:
    """Airflow resumes with `next_method` but without the event if the task was cleared at that moment."""
    api = FakeExecutionApi()
    task = launch(sh(NUMBERS), deferrable=True)
    ran = run_task(task, api)
    assert isinstance(ran.msg, DeferTask), ran.error
    old = api.xcoms["t", "handle"]
    api.clear()
    api.resume = {"next_method": "resume", "next_kwargs": serialize({})}
    again = run_task(task, api)

    assert isinstance(again.msg, DeferTask), again.error
    assert api.xcoms["t", "handle"] != old
    assert again.logged("the task was cleared")


def test_a_trigger_that_did_not_find_the_app_leaves_it_to_the_worker() -> None:
    """The record of the try names the app, so it is not left alone."""
    api = FakeExecutionApi()
    task = launch(sh(NUMBERS), deferrable=True)
    ran = run_task(task, api)
    assert isinstance(ran.msg, DeferTask), ran.error
    event = json.loads(json.dumps({"handle": "", "reason": "error", "text": "out of memory"}))
    api.resume = {"next_method": "resume", "next_kwargs": serialize({"event": event})}
    again = run_task(task, api)

    assert again.state == "success", again.error
    assert shown(again.lines)[-1] == "[worker/0] line 6"
