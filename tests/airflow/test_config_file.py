"""`[launch] config_file`: options below those of the connection, and trackers; the run of the task is their parent."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_launch.hooks.local import LocalLaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import InvalidAppError
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, sh

pytestmark = pytest.mark.engine("local")


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    path = tmp_path / "launchconfig"
    monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", str(path))
    return path


def test_the_file_is_below_connection_and_task(config_file, monkeypatch):
    config_file.write_text("[local]\ngrace_s = 1\ntime_limit_s = 11\nprepend_cwd = yes\n")
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_LOCAL_DEFAULT", '{"conn_type": "launch_local", "extra": {"grace_s": 2}}')

    cfg = LocalLaunchHook().merged_cfg({"prepend_cwd": False})

    assert cfg == {"grace_s": 2.0, "time_limit_s": 11.0, "prepend_cwd": False}


def test_no_other_file_is_read(tmp_path, monkeypatch):
    """Files in the home of a worker must not change the options of a connection."""
    (tmp_path / "other").write_text("[local]\ngrace_s = 1\n[launch:tracker]\none=\n")
    monkeypatch.setenv("LAUNCHCONFIG", str(tmp_path / "other"))
    monkeypatch.delenv("AIRFLOW__LAUNCH__CONFIG_FILE", raising=False)
    hook = LocalLaunchHook()

    assert hook.merged_cfg({}) == {}
    assert hook.launch.trackers == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[local]\ngrace_s = soon\n", "grace_s"),
        ("[local]\nworking_dir = #FIXME:(str) x\n", "placeholder"),
        ("x", "INI"),
    ],
)
def test_a_wrong_file_is_reported(config_file, text, word):
    config_file.write_text(text)
    with pytest.raises(InvalidAppError, match=word):
        LocalLaunchHook().merged_cfg({})


def test_a_file_that_is_not_there_ends_the_task(config_file):
    ran = run_task(launch(sh("true")), FakeExecutionApi(retries=2))

    assert ran.state == "failed"
    assert "config_file" in str(ran.error)


SCRIPT = """
from airflow_provider_launch.tracker import app_run_from_env
run = app_run_from_env()
run.add_metadata(loss=0.25)
run.add_artifact("model", "s3://bucket/model.pt", {"format": "torch"})
print("sources", [source.source_run_id for source in run.sources()])
"""


def test_artifacts_come_back_in_the_result(config_file, tmp_path):
    pytest.importorskip("fsspec")
    config_file.write_text(f"[launch:tracker]\nfsspec =\n[tracker:fsspec]\nconfig = {tmp_path / 'runs'}\n")
    api = FakeExecutionApi()
    role = sh("unused")
    role.entrypoint, role.args = sys.executable, ["-c", SCRIPT]

    ran = run_task(launch(role), api)

    assert ran.error is None
    value = api.xcoms["t", "return_value"]
    assert value["result"] == {
        "artifacts": {"model": {"path": "s3://bucket/model.pt", "metadata": {"format": "torch"}}},
        "metadata": {"loss": 0.25},
    }
    assert ran.logged("sources ['airflow://test_dag/test_run/t']")
    from airflow_provider_launch.tracker.backend.fsspec import create

    kept = create(str(tmp_path / "runs"))
    assert list(kept.run_ids(parent_run_id="airflow://test_dag/test_run/t")) == [value["handle"]]
    assert kept.artifacts(value["handle"])["model"].path == "s3://bucket/model.pt"


def test_a_component_gets_its_defaults_from_the_file(config_file):
    config_file.write_text("[component:utils.echo]\nmsg = from the file\n")
    with a_dag():
        task = LaunchAppOperator(task_id="t", component="utils.echo")
    ran = run_task(task, FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert ran.logged("[echo/0] from the file")
