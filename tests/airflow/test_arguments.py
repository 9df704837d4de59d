"""Wrong arguments of operator and sensor are reported when the DAG is parsed, or before anything starts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import a_dag, launch, run_task, run_to_end, sh
from tests.support.fake_scheduler import FakeScheduler

SHARED = [
    ({"log_roles": "worker"}, "log_roles='worker' must be a list"),
    ({"log_roles": [1]}, "must be a list of names"),
    ({"unavailable_for_s": "600"}, "unavailable_for_s='600' must be a number of seconds, not str"),
    ({"unavailable_for_s": None}, "must be a number of seconds"),
    ({"unavailable_for_s": timedelta(seconds=5)}, "not timedelta"),
    ({"unavailable_for_s": -5}, "must not be negative"),
    ({"unavailable_for_s": float("inf")}, "is not a valid time to wait"),
    ({"streams": "both"}, "streams='both' is not one of"),
    ({"logs_from": "end"}, "logs_from='end' is not one of"),
    ({"on_kill": "keep"}, "on_kill='keep' is not one of"),
    ({"max_log_bytes": "1 MB"}, "max_log_bytes='1 MB'"),
]
OF_THE_OPERATOR = [
    ({"poll_interval_s": "5"}, "poll_interval_s='5' must be a number of seconds, not str"),
    ({"poll_interval_s": True}, "not bool"),
    ({"poll_interval_s": 0}, "must be more than 0 seconds"),
    ({"poll_interval_s": float("inf")}, "is not a valid time to wait"),
    ({"poll_interval_s": float("nan")}, "is not a valid time to wait"),
    ({"time_limit_s": timedelta(hours=1)}, "not timedelta"),
    ({"skip_on_exit_code": "3"}, "skip_on_exit_code='3' must be a whole number"),
    ({"skip_on_exit_code": ["3"]}, "must be a whole number, or a list"),
    ({"skip_on_exit_code": True}, "must be a whole number"),
]


@pytest.mark.parametrize(("wrong", "message"), [*SHARED, *OF_THE_OPERATOR])
def test_the_operator_refuses_it(wrong, message) -> None:
    with pytest.raises(InvalidAppError, match=message):
        launch(sh("true"), **wrong)


@pytest.mark.parametrize(("wrong", "message"), SHARED)
def test_the_sensor_refuses_it(wrong, message) -> None:
    with a_dag(), pytest.raises(InvalidAppError, match=message):
        AppStatusSensor(task_id="s", handle="fake://c/x", **wrong)


@pytest.mark.parametrize("right", [{"skip_on_exit_code": 3}, {"skip_on_exit_code": range(1, 3)}, {"log_roles": ()}])
def test_valid_arguments_are_accepted(right) -> None:
    launch(sh("true"), **right)


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"log_roles": ["worker", "trainr"]},
            "log_roles names 'trainr', which is not a role of app 'app'; its roles are 'worker'",
        ),
        ({"cfg": "queue=fast"}, "cfg must be a mapping of options, not str"),
        ({"cfg": 3}, "cfg must be a mapping of options, not int"),
        ({"streams": "stdout"}, "streams='stdout': scheduler 'fake' does not keep stdout and stderr apart"),
    ],
)
def test_nothing_starts_with_it(engine, make_api, monkeypatch, wrong, message, deferrable) -> None:
    monkeypatch.setattr(FakeScheduler, "capabilities", FakeScheduler.capabilities - {Capability.STREAMS})
    ran = run_task(launch(sh("true"), launch_conn_id="cluster", deferrable=deferrable, **wrong), make_api(retries=3))

    assert ran.state == "failed"  # without another try
    assert message in str(ran.error)
    assert engine.started == 0


@pytest.fixture
def ended(engine, api):
    """The handle of an app that has succeeded."""
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.SUCCEEDED)
    return api.xcoms["t", "return_value"]["handle"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_sensor_without_streams_is_reported_so(make_api, ended, monkeypatch, deferrable) -> None:
    monkeypatch.setattr(FakeScheduler, "capabilities", FakeScheduler.capabilities - {Capability.STREAMS})
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle=ended, streams="stderr", deferrable=deferrable)
    ran = run_task(sensor, make_api(retries=3))

    assert ran.state == "failed"
    assert "does not keep stdout and stderr apart" in str(ran.error)


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_sensor_shows_which_roles_there_are(api, ended, deferrable) -> None:
    """Nothing in the log would look like an app that says nothing."""
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle=ended, log_roles=["trainr"], deferrable=deferrable)
    ran, _ = run_to_end(sensor, api)

    assert ran.state == "success"
    assert sum("log_roles names 'trainr'; the roles of the app are 'worker'" in line for line in ran.lines) == 1


def test_a_handle_of_an_unknown_connection_is_named(api) -> None:
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle="fake://nowhere/abc")
    ran = run_task(sensor, api)

    assert "handle 'fake://nowhere/abc' names the connection 'nowhere'" in str(ran.error)
    assert "or give launch_conn_id" in str(ran.error)


def test_text_in_cfg_is_cast_as_a_template_gives_it(engine, api) -> None:
    ran = run_task(launch(sh("true"), launch_conn_id="cluster", wait=False, cfg={"tags": "{{ 'a,b' }}"}), api)

    assert ran.state == "success"
    (app,) = engine.apps.values()
    assert app.request.cfg["tags"] == ["a", "b"]
