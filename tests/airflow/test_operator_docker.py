"""The operator and the sensor through the real task runner, on a real Docker engine."""

from __future__ import annotations

import json
import runpy
import time
import uuid
from pathlib import Path

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import AppFailedError
from tests.airflow.support import (
    FakeExecutionApi,
    a_dag,
    deserialize,
    import_string,
    logged,
    run_task,
    run_trigger,
)
from tests.support.apps import until

pytestmark = pytest.mark.engine("docker")

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


class Tasks:
    """Tasks of one test on a connection to the engine; the engine itself says what became of their apps."""

    def __init__(self, docker_engine, define) -> None:
        self.image = docker_engine.image
        self.define = define
        # The engine is shared, and equal tasks have equal ids.
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        self._api = docker_engine.client.api
        define()

    def sh(self, script: str, **fields) -> Role:
        return Role(fields.pop("name", "worker"), self.image, entrypoint="sh", args=["-c", script], **fields)

    def launch(self, *roles: Role, **kwargs) -> LaunchAppOperator:
        with a_dag():
            return LaunchAppOperator(task_id=self.mark, app=AppDef("app", list(roles)), launch_conn_id="dock", **kwargs)

    def containers(self, **filters) -> list[dict]:
        """Containers of replicas that were ever started."""
        wanted = {"name": self.mark, "label": "launch.io/kind=replica", **filters}
        return [row for row in self._api.containers(all=True, filters=wanted) if row["State"] != "created"]

    def alive(self) -> list[dict]:
        return self.containers(status="running")

    def remove(self) -> None:
        for row in self._api.containers(all=True, filters={"name": self.mark}):
            self._api.remove_container(row["Id"], force=True, v=True)


@pytest.fixture
def define(docker_engine, monkeypatch):
    """Defines the connection `dock` to the engine, with further extras."""

    def define(conn_id: str = "dock", **extra) -> None:
        connection = {"conn_type": "launch_docker", "extra": {"host": docker_engine.host, "pull": "never", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    return define


@pytest.fixture
def tasks(docker_engine, define):
    tasks = Tasks(docker_engine, define)
    yield tasks
    tasks.remove()


def test_success_hands_over_handle_codes_and_result(tasks) -> None:
    api = FakeExecutionApi()
    task = tasks.launch(
        tasks.sh("echo hello; echo why >&2; echo '{\"n\": 3}' > $LAUNCH_RESULT_PATH", name="first"),
        tasks.sh("echo hello", num_replicas=2),
    )

    ran = run_task(task, api)

    assert ran.error is None
    handle = api.xcoms[tasks.mark, "handle"]
    assert handle.startswith(f"docker://dock/test-dag-{tasks.mark}-")
    assert api.xcoms[tasks.mark, "return_value"] == {
        "handle": handle,
        "state": "SUCCEEDED",
        "attempts": 1,
        "roles": {"first": [0], "worker": [0, 0]},
        "result": {"n": 3},
    }
    told = sorted((str(entry["event"]), entry["level"]) for entry in ran.log if str(entry["event"]).startswith("["))
    assert told == [
        ("[first/0] hello", "info"),
        ("[first/0] why", "warning"),
        ("[worker/0] hello", "info"),
        ("[worker/1] hello", "info"),
    ]
    assert len(tasks.containers()) == 3


def test_the_first_lines_of_a_deferred_app_are_in_order_of_time(tasks) -> None:
    """All were written before the trigger reads the first of them."""
    script = "for n in 1 2 3 4; do cut -d' ' -f1 /proc/uptime; sleep 0.4; done; sleep 6"
    ran = run_task(tasks.launch(tasks.sh(script, num_replicas=3), deferrable=True), FakeExecutionApi())
    until(lambda: len(tasks.alive()) == 3)
    time.sleep(3)
    trigger = import_string(ran.msg.classpath)(**deserialize(ran.msg.trigger_kwargs))
    with logged() as entries:
        run_trigger(trigger)
    lines = [text.split() for entry in entries if (text := str(entry["event"])).startswith("[worker/")]
    times = [float(text) for _, text in lines]

    assert len(lines) == 12
    assert [name for name, _ in lines] != sorted(name for name, _ in lines)
    assert times == sorted(times)


def test_the_lines_of_a_build_are_a_group(tasks, docker_engine, tmp_path, caplog) -> None:
    """The page shows a group closed, also if a program of the build prints the word that ends it."""
    (tmp_path / "mark").write_text(tasks.mark)
    (tmp_path / "Dockerfile.torchx").write_text(
        f"ARG IMAGE\nFROM $IMAGE\nCOPY mark /mark\nRUN echo ::endgroup:: {tasks.mark}; echo step two\n"
    )
    # Airflow's task log has what modules log by `logging`, too; here the two are apart.
    with caplog.at_level("INFO"):
        task = tasks.launch(tasks.sh("cat /mark"), workspace=str(tmp_path))
        ran = run_task(task, FakeExecutionApi())
    lines = [text for record in caplog.records if "events" not in record.name for text in [record.getMessage()]]
    first = next(number for number, line in enumerate(lines) if line.startswith("::group::build of "))
    last = lines.index("::endgroup::", first)
    docker_engine.client.api.remove_image(lines[first].removeprefix("::group::build of "), force=True)

    assert ran.error is None
    assert f"[worker/0] {tasks.mark}" in ran.lines
    assert {line.partition(": ")[0] for line in lines[first + 1 : last]} == {"build"}
    assert "build: step two" in lines[first:last]
    assert [line for line in lines[last + 1 :] if line.startswith(("build: ", "::"))] == []


def test_failure_names_role_replica_and_exit_code(tasks) -> None:
    api = FakeExecutionApi()
    ran = run_task(tasks.launch(tasks.sh("echo first; echo why >&2; exit $((3 * ${replica_id}))", num_replicas=2)), api)

    assert ran.state == "failed"
    assert isinstance(ran.error, AppFailedError)
    text = str(ran.error)
    assert "role 'worker' replica 1 (attempt 0" in text
    assert "exited with code 3" in text
    assert {"  first", "  why"} <= set(text.splitlines())
    xcom = api.xcoms[tasks.mark, "app"]
    assert (xcom["state"], xcom["roles"]["worker"][1]) == ("FAILED", 3)


def test_the_operator_makes_the_retries_of_the_app(tasks) -> None:
    api = FakeExecutionApi()
    role = tasks.sh(
        "echo attempt $$LAUNCH_ATTEMPT; test $$LAUNCH_ATTEMPT = 2", max_retries=2, retry_policy=RetryPolicy.REPLICA
    )
    ran = run_task(tasks.launch(role), api)

    assert ran.error is None
    assert [line for line in ran.lines if line.startswith("[worker/0] attempt")] == [
        f"[worker/0] attempt {number}" for number in range(3)
    ]
    assert api.xcoms[tasks.mark, "return_value"]["attempts"] == 3
    assert len(tasks.containers()) == 3


def test_cfg_wins_over_the_extras(tasks) -> None:
    tasks.define(working_dir="/tmp", user="nobody")
    task = tasks.launch(tasks.sh("echo $(pwd) $(id -un)"), cfg={"working_dir": "/etc"})

    assert run_task(task, FakeExecutionApi()).logged("[worker/0] /etc nobody")


def test_a_missing_image_names_the_fix(tasks) -> None:
    tasks.image = "launch-no-such-image:local"
    ran = run_task(tasks.launch(tasks.sh("true")), FakeExecutionApi())

    assert ran.state == "failed"
    assert "no image 'launch-no-such-image:local'" in str(ran.error)
    assert "load the image" in str(ran.error)


def test_the_requests_secrets_are_masked(tasks) -> None:
    api = FakeExecutionApi()
    run_task(tasks.launch(tasks.sh("true", env={"MY_PASSWORD": "hunter2hunter2"})), api)

    assert tasks.image in api.rendered["request"]
    assert "hunter2hunter2" not in api.rendered["request"]


@pytest.mark.parametrize("delay_s", [0.05, 0.5, 1, 2, 4])
def test_sigterm_is_never_a_success_and_leaves_nothing_alive(tasks, sigterm, delay_s) -> None:
    """At any moment, also in the middle of the launch."""
    moment = time.monotonic() + delay_s
    task = tasks.launch(tasks.sh("trap '' TERM; sleep 60", num_replicas=3), cfg={"grace_s": 1})
    sigterm(lambda: time.monotonic() > moment, task)
    ran = run_task(task, FakeExecutionApi())

    assert ran.state == "failed"
    until(lambda: not tasks.alive())
    time.sleep(1)
    assert not tasks.alive(), "started after it was cancelled"


def test_a_retry_takes_up_the_app(tasks, sigterm) -> None:
    api = FakeExecutionApi(retries=1)
    task = tasks.launch(tasks.sh("echo begun; sleep 5; echo done"), on_kill="leave")
    sigterm(lambda: (tasks.mark, "handle") in api.xcoms and tasks.alive(), task)
    first = run_task(task, api)
    handle = api.xcoms[tasks.mark, "handle"]
    second = run_task(task, api, try_number=2)

    assert (first.state, second.state) == ("up_for_retry", "success")
    assert api.xcoms[tasks.mark, "handle"] == handle
    assert second.logged("[worker/0] done")
    assert len(tasks.containers()) == 1


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_sensor_sees_an_app_to_its_end(tasks, mode) -> None:
    """Retries too, because the app has no other observer and the engine does not retry."""
    api = FakeExecutionApi()
    role = tasks.sh("echo attempt $$LAUNCH_ATTEMPT; test $$LAUNCH_ATTEMPT = 1", max_retries=1)
    assert run_task(tasks.launch(role, wait=False), api).error is None
    until(lambda: tasks.containers(status="exited"))
    with a_dag():
        wait = AppStatusSensor(task_id="s", handle=api.xcoms[tasks.mark, "handle"], mode=mode, poke_interval=5)

    looks = [run_task(wait, api)]
    while looks[-1].state == "up_for_reschedule":
        looks.append(run_task(wait, api))

    assert looks[-1].state == "success"
    shown = [line for ran in looks for line in ran.lines if line.startswith("[worker/0] attempt")]
    assert shown == ["[worker/0] attempt 0", "[worker/0] attempt 1"]


def test_the_example_is_that_of_local_processes_in_another_image(tasks, docker_engine, define) -> None:
    define("launch_docker_default")
    local, example = (runpy.run_path(str(EXAMPLES / f"launch_{name}_demo.py")) for name in ("local", "docker"))
    task = example["count_words"]

    def app_of(demo) -> str:
        return json.dumps(app_to_dict(demo["count_words"].app)).replace(demo["IMAGE"], "IMAGE")

    assert app_of(example) == app_of(local)
    assert docker_engine.python_image() == example["IMAGE"]

    tasks.mark = task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()
    ran = run_task(task, api)

    assert ran.error is None
    assert example["compare"].function(api.xcoms[tasks.mark, "return_value"]) > 1000
