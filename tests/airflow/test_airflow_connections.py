"""A DAG that moves over keeps its connections: apps run by a connection of Airflow's own type."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Role
from tests.airflow.support import FakeExecutionApi, a_dag, run_task, run_to_end


@pytest.mark.engine("docker")
@pytest.mark.parametrize("deferrable", [False, True])
def test_an_app_runs_by_a_connection_of_type_docker(docker_engine, docker_proxy, monkeypatch, deferrable) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_proxy.url)
    fields = {"conn_type": "docker", "host": "registry.example", "login": "me", "password": "hush-hush"}
    monkeypatch.setenv("AIRFLOW_CONN_DOCKER_DEFAULT", json.dumps(fields))
    role = Role("main", docker_engine.image, entrypoint="sh", args=["-c", "echo ran; sleep 2"])
    # The id of an app is that of its task, and both cases use one engine, perhaps at the same time.
    task_id = make_unique("t")
    with a_dag():
        task = LaunchAppOperator(
            task_id=task_id,
            app=AppDef("app", [role]),
            launch_conn_id="docker_default",
            cfg={"pull": "never"},
            deferrable=deferrable,
            defer_after_s=0,
            on_finish="delete",
        )
    api = FakeExecutionApi()
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert ran.state == "success"
    assert api.xcoms[task_id, "handle"].startswith("docker://docker_default/")
    assert not ran.logged("hush-hush")
