"""`LaunchAppOperator` under `.expand`: an app for each index, as objects and as dicts, that do not mix."""

from __future__ import annotations

import copy
import json

import pytest
from airflow.sdk import BaseOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role, app_to_dict
from tests.airflow.support import FakeExecutionApi, a_dag, run_task, sh

pytestmark = pytest.mark.engine("local")


def app_of(index: int) -> AppDef:
    """An app with templates in each field that may have one."""
    role = sh(
        "echo $NOTE {{ ti.map_index }} {{ run_id }}", name=f"w{index}", env={"NOTE": f"{index}-{{{{ ti.task_id }}}}"}
    )
    return AppDef(f"app{index}-{{{{ ti.map_index }}}}", [role])


def lines_of(ran) -> list[str]:
    return [line for line in ran.lines if line.startswith("[w")]


def run_each(task, count: int):
    """Run some of the indices, as a worker would: each with a state store of its own."""
    for index in range(count):
        api = FakeExecutionApi()
        yield index, api, run_task(task, api, map_index=index)


def test_objects_and_dicts_are_rendered_for_their_own_index() -> None:
    apps = [app_of(index) if index % 2 else app_to_dict(app_of(index)) for index in range(100)]
    before = copy.deepcopy(apps)
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t").expand(app=apps)

    for index, api, ran in run_each(task, 6):
        assert ran.error is None
        assert lines_of(ran) == [f"[w{index}/0] {index}-t {index} test_run"]
        assert f"(app{index}-{index})" in api.rendered["request"]
        assert f"app{index}-{index}" in str(api.rendered["app"])
    assert apps == before


def test_a_failing_index_leaves_the_others_alone() -> None:
    apps = [AppDef("a", [sh(f"exit {3 * (index == 1)}")]) for index in range(3)]
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t").expand(app=apps)

    assert [ran.state for _, _, ran in run_each(task, 3)] == ["success", "failed", "success"]


def test_a_wrong_app_is_reported_for_its_index_only() -> None:
    apps = [app_to_dict(app_of(0)), {"name": "a", "rolls": []}]
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t", wait=False).expand(app=apps)
    right, wrong = (ran for _, _, ran in run_each(task, 2))

    assert right.state == "success"
    assert wrong.state == "failed"
    assert "did you mean 'roles'?" in str(wrong.error)


def test_more_than_the_app_differs_by_index(tmp_path) -> None:
    kwargs = [{"app": app_of(index), "cfg": {"working_dir": str(tmp_path / str(index))}} for index in range(2)]
    for index in range(2):
        (tmp_path / str(index)).mkdir()
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t", wait=False).expand_kwargs(kwargs)

    for index, api, ran in run_each(task, 2):
        assert ran.error is None
        assert f"1 x in {tmp_path}/{index}" in api.rendered["request"]


def test_apps_of_another_task_are_data() -> None:
    apps = [app_to_dict(app_of(index)) for index in range(2)]
    with a_dag():
        maker = BaseOperator(task_id="maker")
        task = LaunchAppOperator.partial(task_id="t", wait=False).expand(app=maker.output)
    api = FakeExecutionApi()
    api.xcoms["maker", "return_value"] = apps
    ran = run_task(task, api, map_index=1)

    assert ran.error is None
    assert "(app1-{{ ti.map_index }})" in api.rendered["request"]


@pytest.mark.parametrize("where", ["partial", "expand", "expand_kwargs"])
def test_a_task_runs_after_tasks_whose_output_is_in_its_app(where: str) -> None:
    """Airflow looks for them in lists and dicts, and not in objects."""
    with a_dag():
        maker = BaseOperator(task_id="maker")
        app = AppDef("a", [Role("w", "", entrypoint="sh", args=["-c", maker.output])])
        if where == "partial":
            task = LaunchAppOperator.partial(task_id="t", app=app).expand(cfg=[{}, {}])
        elif where == "expand":
            task = LaunchAppOperator.partial(task_id="t").expand(app=[app, app])
        else:
            task = LaunchAppOperator.partial(task_id="t").expand_kwargs([{"app": app}])

    assert task.upstream_task_ids == {"maker"}


def test_the_stored_dag_has_no_secrets_of_the_apps() -> None:
    """Airflow stores objects in a DAG as their text."""
    app = AppDef("a", [Role("w", "", entrypoint="true", env={"DB_PASSWORD": "hunter2"})])
    with a_dag() as dag:
        LaunchAppOperator(task_id="one", app=app)
        LaunchAppOperator.partial(task_id="many").expand(app=[app, app])
    stored = json.dumps(DagSerialization.to_dict(dag), default=str)

    assert "AppDef(a: w x1)" in stored
    assert "hunter2" not in stored
