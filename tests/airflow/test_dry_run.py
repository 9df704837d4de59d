"""The request of a task: `dry_run()` without a launch, and the rendered templates of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef
from tests.airflow.support import a_dag, launch, run_task, sh
from tests.airflow.versions import HAS_STORE
from tests.support.airflow_home import migrated

ROOT = Path(__file__).resolve().parents[2]


def test_dry_run_prints_the_request_and_launches_nothing(capsys, monkeypatch, tmp_path) -> None:
    """With the options of the connection and of `cfg`, templates as they are, and without secrets."""
    extra = {"root": str(tmp_path / "root"), "grace_s": 3}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": extra}))
    role = sh("echo hello on {{ ds }}", env={"DB_PASSWORD": "hunter2hunter2"})
    launch(role, launch_conn_id="c", cfg={"time_limit_s": 70}).dry_run()
    out = capsys.readouterr().out

    assert out.splitlines()[0].endswith(", grace 3 s, time limit 70 s")
    assert "[0] sh -c 'echo hello on {{ ds }}'" in out
    assert "DB_PASSWORD='***'" in out
    assert not (tmp_path / "root").exists()


def test_the_request_with_the_values_of_a_run_is_a_rendered_template(api) -> None:
    run_task(launch(sh("echo in {{ run_id }}", env={"DB_PASSWORD": "hunter2hunter2"})), api)

    assert "[0] sh -c 'echo in test_run'" in api.rendered["request"]
    assert "hunter2" not in api.rendered["request"]


def test_dry_run_of_an_app_that_only_a_run_makes_prints_that(capsys) -> None:
    with a_dag():
        LaunchAppOperator(task_id="t", app=lambda: AppDef("x", [sh("true")])).dry_run()

    assert capsys.readouterr().out == "t: the app is known only in a run\n"


DAG_FILE = """
import datetime

from airflow.sdk import DAG
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role

with DAG("rendered", schedule="@daily", start_date=datetime.datetime(2026, 1, 1), catchup=False):
    role = Role("r", "", entrypoint="echo", args=["on {{ ds }}"], env={"DB_PASSWORD": "hunter2hunter2"})
    LaunchAppOperator(task_id="t", app=AppDef("a", [role]), cfg={"log_dir": "/logs/{{ ds }}"})
"""


@pytest.mark.skipif(not HAS_STORE, reason="the page is written for the newest Airflow")
def test_tasks_render_shows_the_values_of_a_run_and_no_secret(tmp_path) -> None:
    """Of the app only its roles, because Airflow stores the same text unmasked."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "dag.py").write_text(DAG_FILE)
    env = migrated(tmp_path, {}) | {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags")}
    command = [sys.executable, "-m", "airflow", "tasks", "render", "rendered", "t", "2026-01-05"]
    done = subprocess.run(command, env={**env, "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "AppDef(a: r x1)" in done.stdout
    assert "/logs/2026-01-05" in done.stdout
    assert "hunter2" not in done.stdout
