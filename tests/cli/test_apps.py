"""The commands about apps: which engine they ask, and what they print."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch._airflow import AirflowNotFoundException
from airflow_provider_launch.cli.apps import parse_duration
from airflow_provider_launch.cli.targets import for_handle
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.owner import OWNER
from tests.cli.conftest import Ran
from tests.support.apps import until

pytestmark = pytest.mark.engine("local")


@pytest.fixture
def app(launch) -> str:
    """An app that has succeeded."""
    return launch("run", "-s", "local", "--wait", "utils.sh", "--", "sh", "-c", "echo hello").out.strip()


def state_of(launch, handle: str) -> str:
    return launch("status", "--json", handle).data["state"]


def test_status_as_text_and_as_json(launch, app) -> None:
    ran = launch("status", app)
    found = launch("status", "--json", app).data

    assert ran.code == 0
    assert ran.out.splitlines()[0] == "SUCCEEDED"
    assert ran.out.splitlines()[2].split()[:3] == ["sh/0", "SUCCEEDED", "0"]
    assert found["handle"] == app
    assert found["message"] is None
    assert found["roles"][0]["replicas"][0]["exit_code"] == 0


def test_the_status_of_a_failed_app_is_an_exit_code(launch) -> None:
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "sh", "-c", "exit 4").out.strip()

    assert launch("status", handle).code == 1


def test_the_status_shows_how_many_replicas_run(launch, shell) -> None:
    role = {"name": "r", "image": "", "entrypoint": "sh", "args": ["-c", "sleep ${replica_id}00"], "num_replicas": 3}
    (shell / "app.json").write_text(json.dumps({"name": "some", "roles": [role]}))
    handle = launch("run", "-s", "local", "app.json").out.strip()

    until(lambda: launch("status", handle).out.splitlines()[0] == "RUNNING (2 of 3 running)")
    launch("cancel", handle)


@pytest.mark.parametrize("command", ["status", "describe", "log", "cancel", "delete"])
def test_an_unknown_app_has_its_own_exit_code(launch, command) -> None:
    ran = launch(command, "local://torchx/never-was")

    assert ran.code == 3
    assert "never-was" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("command", ["status", "cancel"])
def test_an_engine_that_does_not_answer_has_its_own_exit_code(launch, define, command) -> None:
    define("gone", "launch_docker", host="unix:///nowhere/docker.sock")

    ran = launch(command, "docker://gone/app-1")

    assert ran.code == 4
    assert "does not answer" in ran.err


@pytest.mark.parametrize("command", ["status", "describe", "log", "cancel", "delete"])
def test_an_undefined_connection_is_never_the_default_engine(launch, app, command) -> None:
    """The default engine would report "unknown app", and a cancel would end nothing."""
    elsewhere = app.replace("torchx", "gpu_cluster")
    ran = launch(command, elsewhere)

    assert ran.code == 2
    assert "connection 'gpu_cluster' is not defined here" in ran.err
    assert "its session 'gpu_cluster', add -s local" in ran.err
    assert "AIRFLOW_CONN_GPU_CLUSTER" in ran.err


def test_a_scheduler_that_is_named_is_asked(launch, app) -> None:
    """For apps of programs, whose session is not a connection."""
    assert launch("status", "-s", "local", app.replace("torchx", "my_program")).code == 0


def test_a_connection_that_is_named_is_asked(launch, app, define) -> None:
    assert launch("status", "-c", define("mine"), app.replace("torchx", "elsewhere")).code == 0


@pytest.mark.parametrize("where", [("-s", "docker"), ("-c", "d")])
def test_another_scheduler_is_refused(launch, app, define, where) -> None:
    define("d", "launch_docker")
    ran = launch("status", *where, app)

    assert ran.code == 2
    assert "is an app of scheduler 'local', but" in ran.err


def test_a_session_without_connection_may_be_defined(define, tmp_path) -> None:
    define("torchx", root=str(tmp_path))
    with for_handle("local://torchx/a", None, None) as target:
        assert target.connection is not None


def test_older_scheduler_names_mean_the_current_ones(launch, app) -> None:
    assert launch("status", "-s", "local_cwd", app).code == 0


def test_describe_shows_the_app(launch, app) -> None:
    found = launch("describe", "--json", app).data

    assert found["roles"][0]["args"][-1] == "sh -c 'echo hello'"
    assert "sh -c 'echo hello'" in launch("describe", app).out


def test_list_filters(launch, app) -> None:
    failed = launch("run", "-s", "local", "--wait", "utils.sh", "--", "false").out.strip()

    assert [row["handle"] for row in launch("list", "--json").data] == [app, failed]
    assert [row["handle"] for row in launch("list", "--json", "--state", "failed").data] == [failed]
    assert launch("list", "--json", "--dag", "d").data == []
    assert launch("list", "--state", "broken").code == 2
    assert app in launch("list").out


def test_list_and_sweep_find_the_apps_of_a_task(launch, shell) -> None:
    """As the operator marks them."""
    role = {"name": "r", "image": "", "entrypoint": "true"}
    handles = {}
    for task_id in ("a", "b"):
        owner = {"dag_id": "d", "run_id": "r1", "task_id": task_id, "map_index": -1}
        app = {"name": task_id, "roles": [role], "metadata": {OWNER: owner}}
        (shell / "app.json").write_text(json.dumps(app))
        handles[task_id] = launch("run", "-s", "local", "--wait", "app.json").out.strip()
    launch("run", "-s", "local", "--wait", "utils.echo")

    def found(*words: str) -> set[str]:
        return {row["handle"] for row in launch("list", "--json", *words).data}

    assert found("--dag", "d") == found("--run", "r1") == {*handles.values()}
    assert found("--dag", "d", "--task", "a") == {handles["a"]}
    (row,) = launch("list", "--json", "--task", "a").data
    assert row.keys() == {"handle", "app_id", "name", "state", "created_at", "owner"}
    assert (row["name"], row["state"]) == ("a", "SUCCEEDED")
    assert row["owner"] == {"dag_id": "d", "run_id": "r1", "task_id": "a", "map_index": "-1"}
    assert found("--dag", "other") == found("--run", "r2") == found("--dag", "d", "--task", "c") == set()
    assert "d a r1" in launch("list", "--task", "a").out
    assert launch("sweep", "--json", "--older-than", "0s", "--task", "b").data == [handles["b"]]
    assert found("--dag", "d") == {handles["a"]}


def test_the_default_of_the_file_is_listed_too(launch, app, define, shell, tmp_path) -> None:
    define("mine", root=str(tmp_path / "mine"))
    (shell / ".launchconfig").write_text("[cli:run]\nconnection = mine\n")

    assert launch("list", "--json").data == []
    assert [row["handle"] for row in launch("list", "--json", "-s", "local").data] == [app]


def test_cancel_reports_what_happened(launch, app) -> None:
    running = launch("run", "-s", "local", "utils.sh", "--", "sleep", "60").out.strip()
    ran = launch("cancel", "--json", running, app)

    assert ran.code == 0
    assert [row["result"] for row in ran.rows] == ["cancelled", "already ended as SUCCEEDED"]
    until(lambda: state_of(launch, running) == "CANCELLED")


def test_one_unknown_app_does_not_keep_the_others(launch, app) -> None:
    ran = launch("delete", "local://torchx/never-was", app)

    assert ran.code == 3
    assert launch("status", app).code == 3


def test_sweep_deletes_what_is_old_enough(launch, app) -> None:
    assert launch("sweep", "--older-than", "1h").out == ""
    ran = launch("sweep", "--older-than", "0s")

    assert ran.out.split() == [app]
    assert launch("status", app).code == 3


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604800)])
def test_durations(text, seconds) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "-1d", "1w", "1 d"])
def test_what_is_no_duration(text) -> None:
    with pytest.raises(InvalidAppError, match="is not a time"):
        parse_duration(text)


def test_what_is_no_handle_is_wrong_usage(launch) -> None:
    ran: Ran = launch("status", "app-1")

    assert ran.code == 2
    assert "scheduler://session/app_id" in ran.err


def test_a_state_that_does_not_exist_is_refused_with_all_states(launch) -> None:
    ran = launch("list", "--state", "done")

    assert ran.code == 2
    assert "'done' is not a state; there are UNSUBMITTED, " in ran.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (AirflowNotFoundException("gone"), 2, "connection 'gone' is not defined"),
        (OSError("no database"), 4, "'gone' is not defined in this shell, and Airflow cannot be asked: no database"),
    ],
    ids=["absent", "outage"],
)
def test_a_connection_that_airflow_does_not_return(launch, shell, monkeypatch, error, code, text) -> None:
    (shell / "airflow.cfg").write_text("")
    monkeypatch.setenv("AIRFLOW_CONFIG", str(shell / "airflow.cfg"))

    def find(_conn_id: str) -> None:
        raise error

    monkeypatch.setattr("airflow_provider_launch.hooks.connections.find_connection", find)
    ran = launch("list", "-c", "gone")

    assert ran.code == code
    assert text in ran.err
