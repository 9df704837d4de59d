"""Apps are found by the task that launched them, and a connection bounds how long they run."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers import get_builtin_scheduler_factories
from airflow_provider_launch.specs.errors import InvalidRunConfigException
from airflow_provider_launch.specs.owner import owner_from
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh
from tests.support.fake_scheduler import an_app


def test_apps_are_found_by_dag_run_and_task() -> None:
    """A task that was deleted while no triggerer ran leaves an app which Airflow knows nothing of."""
    for map_index in (0, 1):
        ran = run_task(launch(sh("sleep 60"), wait=False), FakeExecutionApi(), map_index=map_index)
        assert ran.state == "success", ran.error
    hook = LaunchHook.for_connection("launch_local_default")
    hook.runner.run(an_app(), "local")

    def found(**wanted: str) -> list[str]:
        return [row.owner["map_index"] for row in hook.runner.list("local", **wanted)]

    assert len(hook.runner.list("local")) == 3
    assert sorted(found(dag_id="test_dag")) == ["0", "1"]
    assert sorted(found(dag_id="test_dag", run_id="test_run", task_id="t")) == ["0", "1"]
    assert found(dag_id="test_dag", run_id="another") == []
    assert found(task_id="another") == []
    for row in hook.runner.list("local", run_id="test_run"):
        hook.runner.cancel(row.app_handle)
    hook.close()


@pytest.mark.parametrize("text", [None, "", "{", "[]", "7", '{"other": 1}'])
def test_a_foreign_label_names_no_task(text: str | None) -> None:
    assert owner_from(text) == {}


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> LaunchHook:
    extra = json.dumps({"max_time_limit_s": 100})
    monkeypatch.setenv("AIRFLOW_CONN_BOUNDED", json.dumps({"conn_type": "launch_local", "extra": extra}))
    return LaunchHook.for_connection("bounded")


@pytest.mark.parametrize(("given", "expected"), [({}, 100), ({"time_limit_s": 60}, 60), ({"time_limit_s": 100}, 100)])
def test_a_launch_without_a_limit_gets_the_maximum_of_its_connection(
    bounded: LaunchHook, given: dict[str, float], expected: float
) -> None:
    info = bounded.runner.dryrun(an_app(), "local", bounded.merged_cfg(given))

    assert info.request.time_limit_s == expected


def test_a_limit_above_that_of_the_connection_is_refused(bounded: LaunchHook) -> None:
    with pytest.raises(InvalidRunConfigException, match=r"time_limit_s=101 is above 100.*connection 'bounded'"):
        bounded.runner.dryrun(an_app(), "local", bounded.merged_cfg({"time_limit_s": 101}))


@pytest.mark.parametrize("backend", ["local", "docker", "kubernetes"])
def test_every_scheduler_keeps_the_maximum(backend: str) -> None:
    scheduler = get_builtin_scheduler_factories()[backend]("c", max_time_limit_s=100)

    assert scheduler.max_time_limit_s == 100
