"""`LaunchAppOperator(workspace=...)`: paths are relative to the DAG file, and wrong values are refused."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import task as sdk_task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, InvalidAppError, Role, Workspace
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

pytestmark = pytest.mark.engine("local")


@pytest.fixture
def dag_folder(tmp_path):
    (tmp_path / "dags" / "project").mkdir(parents=True)
    (tmp_path / "dags" / "project" / "train.sh").write_text("echo trained $1\n")
    (tmp_path / "dags" / "project" / "notes.txt").write_text("")
    (tmp_path / "dags" / "project" / ".launchignore").write_text("*.txt\n")
    return tmp_path / "dags"


def task(dag_folder, workspace, *args, **fields):
    app = AppDef("train", [Role("worker", "", entrypoint="sh", args=["train.sh", *args])])
    with a_dag() as dag:
        made = LaunchAppOperator(task_id="t", app=app, workspace=workspace, **fields)
    dag.fileloc = str(dag_folder / "dag.py")
    return made


@pytest.mark.parametrize("workspace", ["project", {"project": ""}, Workspace({"project": ""}), "{{ 'project' }}"])
def test_the_code_next_to_the_dag_file_runs(dag_folder, workspace, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(dag_folder))  # for the template
    ran = run_task(task(dag_folder, workspace, "well"), FakeExecutionApi())

    assert ran.error is None
    assert ran.logged("[worker/0] trained well")
    assert ran.logged("left out: notes.txt")


def test_a_missing_workspace_ends_the_task_without_retries(dag_folder):
    api = FakeExecutionApi(retries=2)
    ran = run_task(task(dag_folder, "no-such"), api)

    assert ran.state == "failed"
    assert f"workspace '{dag_folder / 'no-such'}' does not exist" in str(ran.error)
    assert ("t", "handle") not in api.xcoms


@pytest.mark.parametrize("workspace", [5, {"a": 1}, ["a"], "a: [b"])
def test_a_workspace_of_a_wrong_type_fails_the_parse(dag_folder, workspace):
    with pytest.raises(InvalidAppError, match="workspace"):
        task(dag_folder, workspace)


def test_a_directory_that_is_named_twice_is_refused(dag_folder):
    """Only one of the two targets could win."""
    ran = run_task(task(dag_folder, {"project": "a", "./project": "b"}), FakeExecutionApi())

    assert ran.state == "failed"
    assert f"the workspace names the directory {dag_folder / 'project'} twice, as 'project' and" in str(ran.error)


def test_a_scheduler_that_mirrors_nothing_refuses(dag_folder, monkeypatch):
    """A replica that runs without its code fails later, and elsewhere."""
    monkeypatch.setenv("AIRFLOW_CONN_PLUGIN", '{"conn_type": "launch", "extra": {"scheduler": "fake"}}')
    from airflow_provider_launch.util.plugin_registry import PluginType, registry
    from tests.support.fake_scheduler import FakeScheduler

    monkeypatch.setitem(registry._factories[PluginType.SCHEDULER], "fake", lambda name, **_: FakeScheduler(name))
    ran = run_task(task(dag_folder, "project", launch_conn_id="plugin"), FakeExecutionApi())

    assert ran.state == "failed"
    assert "does not mirror workspaces" in str(ran.error)


def code_in_json() -> dict[str, Any]:
    """An app as JSON, with the directory of the DAG file."""
    role = {"name": "r", "image": "", "entrypoint": "ls", "workspace": {"projects": {".": ""}}}
    return {"name": "app", "roles": [role]}


def code_in_item() -> dict[str, Any]:
    app = {"name": "app", "roles": [{"name": "r", "image": "", "entrypoint": "ls"}]}
    app["roles"][0]["workspace"] = {"projects": {".": ""}}  # type: ignore[index, call-overload]
    return app


@pytest.mark.parametrize("function", [code_in_json, code_in_item])
def test_a_mark_in_the_json_of_a_function_names_a_directory(tmp_path, function: Any) -> None:
    (tmp_path / "well.key").write_text("")
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        made = sdk_task.launch(launch_conn_id="launch_local_default")(function)().operator
    found = run_task(made, FakeExecutionApi())

    assert found.error is None
    assert found.logged("well.key")
