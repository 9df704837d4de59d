"""Runs one task in a separate process, like a worker: `one_task.py SIDE ROUNDS SCRIPT`; prints its costs.

Sides: `ours` and `peer` on Docker, and there `function` (a Python function) and `program` (`python3 -c`); `job` (ours)
and `pod` (KubernetesPodOperator, in a separate environment) on Kubernetes, also as `job-deferrable` and
`pod-deferrable`: then the trigger runs in this process; `slurm` (ours) on Slurm.

Before the clock starts the process has what each task process has: Airflow's SDK and task runner. Other
imports of the operator happen in the first round.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_engine
import kubernetes_cluster
from airflow.sdk import DAG
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.execution_time import task_runner  # noqa: F401 - each task process has it
from airflow.sdk.execution_time.comms import DeferTask
from airflow.sdk.execution_time.supervisor import run_task_in_process
from airflow.sdk.log import configure_logging
from airflow.sdk.serde import deserialize, serialize


def ours(task_id: str, script: str) -> Any:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef, Role

    role = Role("r", docker_engine.IMAGE, entrypoint="sh", args=["-c", script])
    # A million lines are more than the engine keeps by default.
    cfg = {"log_max_mb": 1000}
    return LaunchAppOperator(task_id=task_id, app=AppDef("bench", [role]), launch_conn_id="bench", cfg=cfg)


def peer(task_id: str, script: str) -> Any:
    from airflow.providers.docker.operators.docker import DockerOperator

    # Without the folder that it mounts by default, which would make it slower.
    return DockerOperator(
        task_id=task_id,
        image=docker_engine.IMAGE,
        command=["sh", "-c", script],
        docker_url=docker_engine.HOST,
        mount_tmp_dir=False,
        labels={docker_engine.LABEL: str(os.getpid())},
    )


def program(task_id: str, script: str) -> Any:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef, Role

    role = Role("r", docker_engine.IMAGE, entrypoint="python3", args=["-c", script])
    return LaunchAppOperator(task_id=task_id, app=AppDef("bench", [role]), launch_conn_id="bench")


def nothing(value: str) -> str:
    return value


def function(task_id: str, script: str) -> Any:
    from airflow_provider_launch.decorators.launch_python import launch_python_task

    decorated = launch_python_task(nothing, task_id=task_id, image=docker_engine.IMAGE, launch_conn_id="bench")
    return decorated(script).operator


def job(task_id: str, script: str, **how: Any) -> Any:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef, Role

    role = Role("r", kubernetes_cluster.IMAGE, entrypoint="sh", args=["-c", script])
    cfg = {"pull": "never", "security": "none"}
    return LaunchAppOperator(task_id=task_id, app=AppDef("bench", [role]), launch_conn_id="cluster", cfg=cfg, **how)


def pod(task_id: str, script: str, **how: Any) -> Any:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    return KubernetesPodOperator(
        task_id=task_id,
        name=task_id,
        namespace=kubernetes_cluster.NAMESPACE,
        image=kubernetes_cluster.IMAGE,
        image_pull_policy="Never",
        cmds=["sh", "-c"],
        arguments=[script],
        config_file=kubernetes_cluster.KUBECONFIG,
        in_cluster=False,
        **how,
    )


def slurm(task_id: str, script: str, **how: Any) -> Any:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs import AppDef, Resource, Role

    role = Role("r", "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 64))
    return LaunchAppOperator(task_id=task_id, app=AppDef("bench", [role]), launch_conn_id="slurm", **how)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def api() -> Any:
    # Imported late, because it imports our operator, which belongs to our first round.
    from tests.airflow.support import FakeExecutionApi

    return FakeExecutionApi()


def run(task: Any, answers: Any) -> str:
    where = {"dag_id": "bench", "run_id": "bench", "task_id": task.task_id, "map_index": -1}
    instance = TaskInstance(id=uuid.uuid4(), try_number=1, dag_version_id=uuid.uuid4(), **where)
    # The output of the task runner itself is not part of the task's log.
    with contextlib.redirect_stdout(sys.stderr):
        while True:
            result = run_task_in_process(instance, task, client=answers.client())
            if not isinstance(result.msg, DeferTask):
                break
            answers.resume = resumed(result.msg)
    return str(getattr(result.state, "value", result.state))


def resumed(asked: DeferTask) -> dict[str, Any]:
    """Run the trigger of a task, and return the event with which the task resumes."""
    from tests.airflow.support import run_trigger

    trigger = import_string(asked.classpath)(**deserialize(asked.trigger_kwargs))
    (event,) = run_trigger(trigger)
    kwargs = {**deserialize(asked.next_kwargs), "event": event.payload}
    return {"next_method": asked.next_method, "next_kwargs": serialize(kwargs)}


@contextlib.contextmanager
def removed_afterwards(apps: list[str]) -> Iterator[None]:
    """Remove the containers of the peer and these apps of ours."""
    try:
        yield
    finally:
        docker_engine.remove(f"{docker_engine.LABEL}={os.getpid()}", *(f"launch.io/app-id={app_id}" for app_id in apps))


def main() -> None:
    side, rounds, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    name, _, deferrable = side.partition("-")
    sides = {"ours": ours, "peer": peer, "job": job, "pod": pod, "slurm": slurm}
    make: Any = {**sides, "function": function, "program": program}[name]
    if deferrable:
        # The triggerer has it when a trigger comes.
        from airflow.jobs.triggerer_job_runner import TriggerRunner  # noqa: F401

        make = functools.partial(make, deferrable=True)
    os.environ["AIRFLOW_CONN_BENCH"] = json.dumps({"conn_type": "launch_docker", "extra": {"host": docker_engine.HOST}})
    extra = {"kubeconfig_path": kubernetes_cluster.KUBECONFIG, "namespace": kubernetes_cluster.NAMESPACE}
    os.environ["AIRFLOW_CONN_CLUSTER"] = json.dumps({"conn_type": "launch_kubernetes", "extra": extra})
    if name == "slurm":
        # Imported here, because the environment of a peer lacks its imports.
        import slurm_cluster

        extra = slurm_cluster.params(over_ssh=True)
        os.environ["AIRFLOW_CONN_SLURM"] = json.dumps({"conn_type": "launch_slurm", "extra": extra})
    with DAG("warm", schedule=None):
        pass  # imports time tables
    path = Path(os.environ["BENCH_HOME"], f"{os.getpid()}.log")
    apps: list[str] = []
    on_docker = name in {"ours", "peer", "function", "program"}
    with path.open("wb") as sink, removed_afterwards(apps) if on_docker else contextlib.nullcontext():
        configure_logging(json_output=True, output=sink, sending_to_supervisor=True)
        for number in range(rounds):
            task_id = f"t{os.getpid()}-{number}"
            start = clocks()
            with DAG("bench", schedule=None):
                task = make(task_id, script)
            made = clocks()
            answers = api()
            begin = clocks()
            state = run(task, answers)
            end = clocks()
            wall, cpu = (made[kind] - start[kind] + end[kind] - begin[kind] for kind in (0, 1))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print("COST " + json.dumps({"wall": wall, "cpu": cpu, "peak": peak, "state": state}), flush=True)
            if handle := answers.xcoms.get((task_id, "handle")):
                apps.append(str(handle).strip('"').rpartition("/")[2])
    print(f"LOG {path}", flush=True)


if __name__ == "__main__":
    main()
