"""An executor of another distribution, written against the useful part of magnus's interface."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines import dag_from_file, validate
from airflow_provider_launch.pipelines.plugin import BaseExecutor, Node, NodeFailedError, load_executor
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.support.apps import until

CALLS: list = []


class RecordingExecutor(BaseExecutor):
    service_name = "recording"

    class Config(BaseExecutor.Config):
        queue: str
        priority: int = 0

    def execute_graph(self, dag, map_variable=None, **kwargs):
        raise AssertionError("Airflow goes through the graph")

    def prepare_for_node_execution(self):
        CALLS.append("prepared")

    def add_code_identities(self, node, **kwargs):
        return [{"type": "queue", "identifier": self.config.queue, "dependable": True}]

    def trigger_job(self, node, map_variable=None, **kwargs):
        CALLS.append((node.internal_name, self.config.queue, self.config.priority, dict(map_variable or {})))
        if node.name == "foreign":
            # As on another system: use only the fields of the node.
            done = subprocess.run(node.command_line, env={"PATH": "/usr/bin:/bin", **node.environment}, check=False)
            assert done.returncode == 0
            return {"seen": node.environment["LAUNCH_PARAM_x"]}
        return self.execute_node(node, map_variable)


@pytest.fixture
def plugin(tmp_path_factory, monkeypatch):
    site = tmp_path_factory.mktemp("site")
    info = site / "launch_recording-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launch-recording\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[airflow_provider_launch.executors]\nrecording = {__name__}:RecordingExecutor\n"
    )
    monkeypatch.syspath_prepend(str(site))
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__(__name__))
    CALLS.clear()


FILE = """
    executor: {type: recording, config: {queue: day, env: {mode: fast}, placeholders: {urgent: {priority: 9}}}}
    parameters: {x: 1, xs: [a, b]}
    dag:
      start_at: foreign
      steps:
        foreign: {type: task, command_type: shell, command: test "$x-$mode" = 1-fast, returns: [seen], next: m}
        m:
          type: map
          iterate_on: xs
          iterate_as: one
          next: bad
          branch:
            start_at: here
            steps:
              here: {type: task, command_type: shell, command: export y=$one$seen, returns: [y], overrides: {recording: urgent}, next: success}
        bad: {type: task, command_type: shell, command: exit 3, next: success, on_failure: local}
        local: {type: task, command_type: shell, command: "true", executor: local, next: success}
    """


def test_an_executor_of_a_plug_in_runs_the_tasks(plugin, run_pipeline, capsys):
    ran = run_pipeline(FILE)

    assert ran.state == "success", ran.states
    assert ran.returned("m.fan_in") == {"y": ["a1", "b1"]}
    assert CALLS[::2] == ["prepared"] * 4
    assert sorted(CALLS[1::2], key=str) == [
        ("bad", "day", 0, {}),
        ("foreign", "day", 0, {}),
        ("m.each.here", "day", 9, {"one": "a"}),
        ("m.each.here", "day", 9, {"one": "b"}),
    ]
    assert "exited with code 3" in ran.xcom("bad", "attempt")["error"]
    assert ran.xcom("local", "attempt")["executor"] == "local"
    code = ran.xcom("foreign", "attempt")["code"]
    assert [one["identifier"] for one in code if one["type"] == "queue"] == ["day"]
    assert "executor 'recording' has execute_graph, but Airflow does this work itself" in capsys.readouterr().out


def test_an_executor_that_no_plug_in_has(write):
    (problem,) = validate(write("executor: recording\ndag: {start_at: a, steps: {a: {type: stub, next: success}}}\n"))

    assert "'recording' is not a valid executor" in problem.text


def test_an_executor_that_cannot_be_made_is_refused_without_retries(plugin):
    """A retry would find the same mistake, so it is one of the DAG's author."""
    with pytest.raises(InvalidAppError, match=r"^executor 'no-such' of a plug-in cannot be loaded: "):
        load_executor("no-such", {}, print)
    with pytest.raises(InvalidAppError, match=r"^executor 'recording' refuses its config: queue: Field required$"):
        load_executor("recording", {}, print)


def test_a_task_that_is_killed_ends_all_of_its_processes(plugin, write):
    from tests.airflow.support import LISTENERS, logged

    task = dag_from_file(write(FILE)).get_task("bad")
    task.app = AppDef("a", [Role("r", "/", entrypoint="sh", args=["-c", "sleep 60 & jobs -p; wait"])])
    pids: list[str] = []

    def kill(line: str) -> None:
        if line.isdecimal():
            pids.append(line)
            task.on_kill()

    LISTENERS.append(kill)
    try:
        with logged(), pytest.raises(NodeFailedError, match="step 'bad' exited with code -15"):
            task._launched({})
    finally:
        LISTENERS.remove(kill)

    (pid,) = pids
    until(lambda: not Path("/proc", pid).exists())


def test_a_process_that_is_gone_can_be_killed(tmp_path):
    """It may end between the question and the signal; here its group does not exist."""
    node = Node("a", "a", "", "shell", [], {}, str(tmp_path))
    process = node.process = subprocess.Popen(["sleep", "600"])
    try:
        node.kill()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    node.kill()


def test_a_setting_that_the_executor_does_not_know(plugin, run_pipeline):
    ran = run_pipeline("""
        executor: {type: recording, config: {queue: day, colour: red}}
        dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: "true", next: success}}}
        """)

    assert ran.state == "failed"
    assert "refuses its config: colour: Extra inputs are not permitted" in ran.xcom("a", "attempt")["error"]
