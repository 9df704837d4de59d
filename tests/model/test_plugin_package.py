"""A package written for TorchX runs in Airflow if only `torchx` in its imports is changed."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_provider_launch import plugins
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, AppState, InvalidAppError, Role, named_resources
from airflow_provider_launch.specs.finder import get_components
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

PACKAGE = Path(__file__).parent / "acme_launch"
ENTRIES = """
[airflow_provider_launch.schedulers]
acme = acme_launch.scheduler:create_scheduler
[airflow_provider_launch.components]
acme = acme_launch.components
[airflow_provider_launch.named_resources]
acme.small = acme_launch.resources:small
[airflow_provider_launch.tracker]
acme = acme_launch.tracker:create
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    root = tmp_path / "site"
    (root / "acme_launch").mkdir(parents=True)
    for source in PACKAGE.glob("*.py"):
        text = source.read_text()
        for before in ("from torchx", "import torchx"):
            text = text.replace(before, before.replace("torchx", "airflow_provider_launch"))
        (root / "acme_launch" / source.name).write_text(text)
    info = root / "acme_launch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-launch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(root)
    monkeypatch.setenv("ACME_SITE", str(root))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its scheduler leaves the logs
    monkeypatch.setattr(tempfile, "tempdir", None)
    named_resources.reset()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_launch"]:
        del sys.modules[name]
    named_resources.reset()


@pytest.fixture
def launch(monkeypatch):
    connection = {"conn_type": "launch", "extra": {"scheduler": "acme", "cfg": {"lane": "fast"}}}
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps(connection))

    def launch(component_args, **kwargs):
        with a_dag():
            return LaunchAppOperator(
                task_id="t", component="acme.greet", component_args=component_args, launch_conn_id="acme", **kwargs
            )

    return launch


def test_its_plugins_are_found():
    assert "acme.greet" in get_components()
    assert named_resources["acme.small"].memMB == 128
    report = plugins.registry().to_dict()
    assert report["errors"] == {}
    assert report["plugins"]["scheduler"] == {
        "acme": "entry point acme_launch.scheduler:create_scheduler of acme-launch 1.0"
    }


@pytest.mark.filterwarnings("ignore:.*cannot adopt")
def test_its_component_runs_on_its_scheduler_as_a_task(launch):
    api = FakeExecutionApi()

    ran = run_task(launch({"names": ["{{ run_id }}", "you"], "copies": "{{ 1 + 1 }}"}, poll_interval_s=0.1), api)

    assert ran.error is None, ran.error
    value = api.xcoms["t", "return_value"]
    assert value["state"] == "SUCCEEDED"
    assert value["handle"].startswith("acme://acme/greet-")
    said = sorted(line for line in ran.lines if line.startswith("[greeter"))
    assert said == [f"[greeter/{k}] hello test_run you from {k} on fast" for k in range(2)]
    assert "acme runs" in api.rendered["request"]


@pytest.mark.filterwarnings("ignore:.*cannot adopt")
def test_a_failure_fails_the_task(launch):
    ran = run_task(launch({"names": ["x; exit 3;"]}, poll_interval_s=0.1), FakeExecutionApi())

    assert ran.state == "failed"
    assert "greeter" in str(ran.error)


def test_its_options_are_checked(launch):
    api = FakeExecutionApi()
    ran = run_task(launch({}, cfg={"lain": "slow"}), api)

    assert ran.state == "failed"
    assert "did you mean 'lane'?" in str(ran.error)


@pytest.mark.engine("local")
def test_its_tracker_is_used_in_the_job_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHX_TRACKERS", "acme")
    monkeypatch.setenv("TORCHX_TRACKER_ACME_CONFIG", str(tmp_path / "kept.jsonl"))
    role = Role("job", "", entrypoint=sys.executable, args=["-m", "acme_launch.job"])
    role.env["PYTHONPATH"] = os.environ["ACME_SITE"]
    api = FakeExecutionApi()
    with a_dag():
        task = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))

    ran = run_task(task, api)

    assert ran.error is None, ran.error
    handle = api.xcoms["t", "handle"]
    tracker = importlib.import_module("acme_launch.tracker").create(str(tmp_path / "kept.jsonl"))
    assert tracker.metadata(handle) == {"loss": 0.25}
    assert tracker.artifacts(handle)["model"].path == "/models/1"


def test_it_runs_without_airflow(capsys):
    with Runner("s") as runner:
        handle = runner.run_component("acme.greet", ["--greeting", "hi", "you"], "acme", {"lane": "slow"})
        status = runner.wait(handle, 0.1, timeout=60)

        assert status.state is AppState.SUCCEEDED
        assert [*runner.log_lines(handle, "greeter", regex="hi")] == ["hi you from 0 on slow\n"]
        assert [app.app_handle for app in runner.list("acme")].count(handle) == 1
        other = runner.run_component("acme.greet", ["x; exec sleep 60 #"], "acme", {"lane": "slow"})
        runner.cancel(other)
        assert runner.wait(other, 0.1, timeout=60).state is AppState.FAILED
        with pytest.raises(InvalidAppError, match="lane"):
            runner.run_component("acme.greet", [], "acme")
