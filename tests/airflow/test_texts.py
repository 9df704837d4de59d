"""The first texts that a user reads: the location of an error, its fix, and the output of a failed task."""

from __future__ import annotations

import json
import os
import re
import signal
import traceback

import pytest
from airflow.sdk import task

from airflow_provider_launch._airflow import AirflowNotFoundException
from airflow_provider_launch._task.cancel_on_kill import AppKilledError
from airflow_provider_launch.hooks.docker import DockerLaunchHook
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, Resource, Role, macros
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import near_misses
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import a_dag, launch, rendered, run_task, run_to_end, sh
from tests.airflow.test_sensor import launched, sensor  # noqa: F401 - a fixture

# ---- errors of a DAG -------------------------------------------------------------------------------------------------


def test_an_import_error_names_the_task() -> None:
    """Airflow shows the last two frames, and both are ours."""
    with (
        a_dag(),
        pytest.raises(InvalidAppError, match=r"^task 'train': app 'x' is not valid:\n  roles\.0\."),
    ):
        LaunchAppOperator(task_id="train", app=AppDef("x", [Role("w", "", entrypoint="x", num_replicas=0)]))
    with a_dag(), pytest.raises(InvalidAppError, match=r"^task 'wait': streams='out'"):
        AppStatusSensor(task_id="wait", handle="x", streams="out")


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "deferrable"])
@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"role": sh("exit 3")}, r"^role 'worker' replica 0 .*exited with code 3; app local://"),
        ({"role": sh("exit 3", num_replicas=2), "skip_on_exit_code": 4}, "exited with code 3"),
        ({"role": sh("true"), "cfg": {"rot": 1}}, "unknown option 'rot'"),
        ({"role": sh("true", resource=Resource(cpu=1, gpu=1000, memMB=1))}, "^role 'worker': resource.gpu=1000"),
    ],
    ids=["failed", "one of two failed", "wrong option", "refused"],
)
def test_below_an_error_of_the_user_are_few_frames_of_ours(api, tmp_path, monkeypatch, task, text, deferrable) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": {"root": str(tmp_path)}}))
    kwargs = dict(task)
    ran, _ = run_to_end(launch(kwargs.pop("role"), launch_conn_id="c", deferrable=deferrable, **kwargs), api)

    assert re.search(text, str(ran.error))
    ours = ours_in(ran.error)
    assert 1 <= len(ours) < 3, ours
    assert ran.error.__cause__ is None
    assert ran.error.__suppress_context__ or ran.error.__context__ is None


@pytest.mark.parametrize("how", [{}, {"deferrable": True}, {"mode": "reschedule", "poke_interval": 5}], ids=str)
def test_below_the_error_of_a_sensor_are_few_frames_of_ours(api, how) -> None:
    """The cause is a line before the exception, as in the task that launched the app."""
    run_task(launch(sh("exit 3", num_replicas=2), wait=False), api)
    handle = api.xcoms["t", "return_value"]["handle"]
    hook = LaunchHook.for_connection("launch_local_default")
    hook.runner.wait(handle)
    hook.close()
    ran, _ = run_to_end(sensor(handle, **how), api)

    assert 1 <= len(ours_in(ran.error)) < 3
    assert ran.error.__suppress_context__ or ran.error.__context__ is None
    errors = [rendered(entry) for entry in ran.log if entry["level"] == "error"]
    assert "exited with code 3" in str(ran.error)
    assert str(ran.error).partition("\n")[0] in errors


def test_below_the_error_of_a_decorated_function_are_few_frames_of_ours(api) -> None:
    with a_dag() as dag:

        @task.launch
        def failing() -> AppDef:
            return AppDef("x", [sh("exit 3")])

        @task.launch_python
        def raising() -> None:
            raise ValueError("of the function")

        failing()
        raising()
    for name, text in (("failing", "exited with code 3"), ("raising", "of the function")):
        ran = run_task(dag.get_task(name), api)
        assert text in str(ran.error)
        assert 1 <= len(ours_in(ran.error)) < 3


def test_below_the_error_of_a_killed_task_are_few_frames_of_ours(api, tmp_path, monkeypatch) -> None:
    """Marked as failed, its log would otherwise end with the loop that noticed it."""
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": {"root": str(tmp_path)}}))
    task = launch(sh("kill -TERM $TASK; sleep 60", env={"TASK": str(os.getpid())}), launch_conn_id="c")
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    try:
        ran = run_task(task, api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert isinstance(ran.error, AppKilledError)
    assert len(ours_in(ran.error)) < 3


def test_below_the_error_of_an_outage_are_few_frames_of_ours(api, tmp_path, monkeypatch) -> None:
    extra = {"host": "tcp://127.0.0.1:9"}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    role = Role("worker", "busybox", entrypoint="true")
    ran = run_task(launch(role, launch_conn_id="c", unavailable_for_s=0), api)

    assert "127.0.0.1:9" in str(ran.error)
    shown: BaseException | None = ran.error
    while shown is not None:
        assert len(ours_in(shown)) < 3
        shown = shown.__cause__


def ours_in(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno}" for frame in frames if "/airflow_provider_launch/" in frame.filename]


def test_a_template_instead_of_a_number_names_the_fix() -> None:
    role = Role("w", "", entrypoint="x", num_replicas="{{ params.n }}")  # type: ignore[arg-type] # the mistake
    with a_dag(), pytest.raises(InvalidAppError, match=r"have a function make the app, or @task\.launch"):
        LaunchAppOperator(task_id="t", app=AppDef("x", [role]))


# ---- connections that nobody has made --------------------------------------------------------------------------------


def test_the_docker_engine_of_this_host_needs_no_connection() -> None:
    hook = LaunchHook.for_connection("launch_docker_default")

    assert isinstance(hook, DockerLaunchHook)
    assert hook.options.params["host"] is None


def test_a_missing_default_connection_names_the_cure() -> None:
    with pytest.raises(
        AirflowNotFoundException,
        match="airflow connections add launch_kubernetes_default --conn-type launch_kubernetes",
    ):
        LaunchHook.for_connection("launch_kubernetes_default")


# ---- macros ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "misses"),
    [
        ("--rank=${replicaid}", [("replicaid", "replica_id")]),
        ("${REPLICA_ID} ${app_ids}", [("REPLICA_ID", "replica_id"), ("app_ids", "app_id")]),
        ("${rank_0_env}", [("rank_0_env", "rank0_env")]),
        ("${HOME} ${LAUNCH_REPLICA_ID} ${x} $replicaid", []),
        ("$${replicaid}", []),
        (macros.replica_id + macros.rank0_env + macros.img_root + macros.app_id, []),
    ],
)
def test_misspelt_macros_are_found(text, misses) -> None:
    assert near_misses(Role("w", "", args=[text])) == misses
    assert near_misses(Role("w", "", env={"X": text})) == misses


def test_a_variable_of_the_role_is_not_a_misspelt_macro() -> None:
    assert near_misses(Role("w", "", args=["${REPLICA_ID}"], env={"REPLICA_ID": "3"})) == []


def test_a_misspelt_macro_is_warned_of(api, tmp_path, monkeypatch) -> None:
    """A shell makes nothing of it, and the task succeeds."""
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": {"root": str(tmp_path)}}))
    ran = run_task(launch(sh("echo ${replicaid}"), launch_conn_id="c"), api)

    assert ran.state == "success"
    assert ran.logged("${replicaid} is not a macro and stays as it is, for the shell; did you mean ${replica_id}?")


# ---- what a failed task hands on -------------------------------------------------------------------------------------


def test_a_failed_task_hands_on_how_it_ended(api, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": {"root": str(tmp_path)}}))
    ran = run_task(launch(sh("exit 3"), launch_conn_id="c"), api)

    assert ran.state in {"failed", "up_for_retry"}
    assert ("t", "return_value") not in api.xcoms
    found = api.xcoms["t", "app"]
    assert (found["state"], found["attempts"], "result" in found) == ("FAILED", 1, False)
    assert list(found["roles"].values()) == [[3]]
    assert found["handle"] == api.xcoms["t", "handle"]


def test_a_failed_sensor_hands_on_how_it_ended(engine, api, launched) -> None:  # noqa: F811 - the fixture
    app_id, xcom = launched
    engine.state(app_id, AppState.FAILED)
    ran = run_task(sensor(xcom), api)

    assert ran.state == "failed"
    assert ("s", "return_value") not in api.xcoms
    assert api.xcoms["s", "app"]["state"] == "FAILED"
    assert api.xcoms["s", "app"]["handle"] == xcom["handle"]
