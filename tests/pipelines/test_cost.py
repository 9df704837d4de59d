"""Costs of a large file: parse time and additional tasks."""

from __future__ import annotations

import time

import pytest
import yaml

from tests.support.repeats import SOAK

LIMIT_S = 0.5
TASK = {"type": "task", "command_type": "shell", "command": "true"}


def chain(count: int) -> dict:
    steps = {f"s{at}": {**TASK, "next": f"s{at + 1}" if at + 1 < count else "success"} for at in range(count)}
    return {"dag": {"start_at": "s0", "steps": steps}}


def by_hand(count: int):
    from airflow.sdk import DAG

    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef, Role

    with DAG("by_hand", schedule=None) as dag:
        before = None
        for at in range(count):
            app = AppDef("app", [Role("task", "", entrypoint="sh", args=["-c", "true"])])
            task = LaunchAppOperator(task_id=f"s{at}", app=app)
            if before is not None:
                before >> task
            before = task
    return dag


def seconds(make) -> float:
    """Return the CPU time of the fastest of a few calls, because others use the machine."""
    found = []
    for _ in range(3):
        started = time.process_time()
        make()
        found.append(time.process_time() - started)
    return min(found)


@pytest.fixture
def large(write):
    return write(yaml.safe_dump(chain(500), sort_keys=False))


def test_500_steps_are_500_tasks_and_an_end(large):
    from airflow_provider_launch.pipelines import dag_from_file

    dag = dag_from_file(large)

    assert [task.task_id for task in dag.tasks] == [*(f"s{at}" for at in range(500)), "success"]
    # Values come from the previous step only.
    assert [len(task.sources) for task in dag.tasks[:3]] == [0, 1, 1]
    assert len(dag.get_task("s499").sources) == 1


def test_a_file_of_500_steps_is_parsed_about_as_fast_as_python(large):
    from airflow_provider_launch.pipelines import dag_from_file

    python = seconds(lambda: by_hand(500))

    file = seconds(lambda: dag_from_file(large))

    # A ratio, because seconds depend on the load; superlinear growth is far above this limit.
    assert file <= 5 * python, f"{file:.2f} s from the file, {python:.2f} s in Python"


def test_a_map_of_1000_elements_costs_no_more_than_one(write):
    from airflow_provider_launch.pipelines import dag_from_file

    path = write(yaml.safe_dump({
        "parameters": {"xs": list(range(1000))},
        "dag": {"start_at": "m", "steps": {"m": {
            "type": "map", "iterate_on": "xs", "iterate_as": "x", "next": "success",
            "branch": {"start_at": "a", "steps": {"a": {**TASK, "next": "success"}}},
        }}},
    }))  # fmt: skip

    dag = dag_from_file(path)

    assert [task.task_id for task in dag.tasks] == ["m.fan_out", "m.each.a", "m.each.success", "m.fan_in", "success"]
    assert seconds(lambda: dag_from_file(path)) <= LIMIT_S


@pytest.mark.skipif(not SOAK, reason="a thousand tasks take minutes; LAUNCH_SOAK=1 runs them")
@pytest.mark.timeout(1500)
def test_a_map_of_1000_elements_runs(run_pipeline):
    ran = run_pipeline(f"""
        executor: mocked
        parameters: {{xs: {list(range(1000))}}}
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              next: after
              branch:
                start_at: a
                steps: {{a: {{type: task, command_type: shell, command: export y=$x, returns: [y], next: success}}}}
            after: {{type: stub, next: success}}
        """)

    assert ran.state == "success", {name: state for name, state in ran.states.items() if state != "success"}
    assert sum(name.startswith("m.each.a[") for name in ran.states) == 1000
    assert ran.states["m.fan_in"] == "success"


def test_gates_stand_only_where_ways_part_or_meet(write):
    from airflow_provider_launch.pipelines import dag_from_file

    dag = dag_from_file(
        write("""
        dag:
          start_at: a
          steps:
            a: {type: stub, next: b}
            b: {type: stub, next: c, on_failure: d}
            c: {type: stub, next: d}
            d: {type: stub, next: success}
        """)
    )

    assert {task.task_id for task in dag.tasks} == {"a", "b", "b__ok", "b__failed", "c", "d__join", "d", "success"}


REQUESTS = [
    "PATCH run",
    "PUT rtif",
    "GET parameters",
    "GET launch_local_default",
    "GET launch",
    "PUT launch",
    "PUT launch",
    "PUT launch",
    "POST parameters",
    "PUT launch_attempts",
    "POST attempt",
    "POST return_value",
    "PATCH state",
]
"""Those of a step in its order, with `[launch] deployment_id`, which saves the request for a Variable.

Airflow sends the first two and the last two for each task.
"""


def test_a_small_step_sends_no_more_requests_than_these(write, monkeypatch):
    """Each takes 4 ms of CPU of its worker, and 5 to 15 ms of the API server."""
    from airflow_provider_launch.pipelines import dag_from_file
    from tests.airflow.support import FakeExecutionApi, run_task

    monkeypatch.setenv("AIRFLOW__LAUNCH__ON_FINISH", "delete_succeeded")
    dag = dag_from_file(write(yaml.safe_dump(chain(2), sort_keys=False)))
    api = FakeExecutionApi()
    assert run_task(dag.get_task("s0"), api).state == "success"
    api.store, api.calls = {}, []  # the store of each task is its own

    ran = run_task(dag.get_task("s1"), api)

    assert ran.state == "success"
    # The log has what other launches show by requests.
    assert ran.logged("launched local://launch_local_default/")
    assert ran.logged("Request to scheduler local")
    # Heartbeats depend on time.
    sent = [f"{method} {path.rpartition('/')[2]}" for method, path in api.calls]
    assert [one for one in sent if one != "PUT heartbeat"] == REQUESTS


STORED = "launch_attempts"


def one_step(command: str, executor: str = "local") -> str:
    step = {**TASK, "command": command, "next": "success", "airflow": {"unavailable_for_s": 0}}
    return yaml.safe_dump({"executor": executor, "dag": {"start_at": "a", "steps": {"a": step}}})


def test_a_step_that_is_not_small_is_recorded_while_it_runs(write):
    """If its worker is killed, the record shows that the attempt was there, and with which code and settings."""
    from airflow_provider_launch.pipelines import dag_from_file
    from tests.airflow.support import FakeExecutionApi, run_task

    api = FakeExecutionApi()
    records: list[dict] = []
    api.on_call = lambda method, parts, body: (
        records.append(body["value"][-1]) if parts[-1] == STORED and body else None
    )

    assert run_task(dag_from_file(write(one_step("sleep 2"))).get_task("a"), api).state == "success"

    running, ended = records
    assert (running["state"], running["ended"], ended["state"]) == ("RUNNING", "", "SUCCEEDED")
    assert running["code"] == ended["code"] != []
    assert running["config"]["conn_id"] == "launch_local_default"


def test_a_step_of_another_executor_is_recorded_before_its_launch(write, monkeypatch):
    """A launch on a cluster takes seconds, in which the worker may be killed."""
    from airflow_provider_launch.pipelines import dag_from_file
    from tests.airflow.support import FakeExecutionApi, run_task

    monkeypatch.setenv("PATH", "/nowhere")
    api = FakeExecutionApi()

    assert run_task(dag_from_file(write(one_step("true", "slurm"))).get_task("a"), api).state != "success"

    sent = [path.rpartition("/")[2] for _, path in api.calls]
    assert sent.index(STORED) < sent.index("launch_slurm_default")


def test_a_step_pushes_its_record_and_after_a_failure_its_app(run_pipeline):
    ran = run_pipeline("""
        dag:
          start_at: good
          steps:
            good: {type: task, command_type: shell, command: "true", next: bad}
            bad: {type: task, command_type: shell, command: exit 3, next: success}
        """)

    good, bad = ran.xcom("good", "attempt"), ran.xcom("bad", "app")
    assert (good["state"], good["exit_codes"]) == ("SUCCEEDED", {"task": [0]})
    assert ran.xcom("good", "return_value")["handle"] == good["handle"] != ""
    assert (bad["state"], bad["roles"]) == ("FAILED", {"task": [3]})
    assert bad["handle"].startswith("local://launch_local_default/")
    assert [ran.xcom(task, key) for task, key in (("good", "app"), ("good", "handle"), ("bad", "handle"))] == [None] * 3
