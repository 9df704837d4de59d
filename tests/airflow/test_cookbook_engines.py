"""The DAGs of the cookbook that need an engine, on that engine; images, queues and sizes of the pages are replaced.

`test_pages.py` runs the others, as they are printed.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import DeferTask

from airflow_provider_launch.hooks.launch import LaunchHook
from tests.airflow.support import FakeExecutionApi, run_task, run_to_end
from tests.airflow.versions import HAS_STORE
from tests.engines.aws_batch.fixtures import params_for
from tests.support.apps import until

pytestmark = [
    pytest.mark.skipif(not HAS_STORE, reason="the pages are written for the newest Airflow"),
    pytest.mark.timeout(300),
]
COOKBOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook"
DAY = {"{{ ds }}": "{{ run_id }}"}
"""A run by hand has no date."""


@pytest.fixture
def mark() -> str:
    """A name for images and tasks of one test: equal tasks have equal apps."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def define(monkeypatch):
    def define(conn_type: str, **extra: Any) -> None:
        value = json.dumps({"conn_type": conn_type, "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_type.upper()}_DEFAULT", value)

    return define


def task_of(page: str, mark: str, replaced: dict[str, str]) -> Any:
    """Return the task of the DAG of a page."""
    text = (COOKBOOK / f"{page}.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    task_id = re.findall(r'task_id="(\w+)"', source)[0]
    for old, new in {**replaced, f'task_id="{task_id}"': f'task_id="{mark}"'}.items():
        assert old in source, old
        source = source.replace(old, new)
    source = re.sub(r"^(with DAG\(.*\)):$", r"\1 as dag:", source, flags=re.MULTILINE)
    names: dict[str, Any] = {"__name__": page, "__file__": f"{page}.py"}
    exec(compile(source, f"{page}.py", "exec"), names)
    (task,) = names["dag"].tasks
    return task


@pytest.fixture
def image_with(docker_engine, mark) -> Iterator[Any]:
    """Build an image with Python and a module."""

    def image_with(module: str, text: str) -> str:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(f"{module}.py")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        made = docker_engine.client.containers.create(docker_engine.python_image(), "true")
        made.put_archive("/", archive.getvalue())
        made.commit(mark, "1")
        made.remove()
        return f"{mark}:1"

    yield image_with
    for row in docker_engine.client.api.containers(all=True, filters={"ancestor": f"{mark}:1"}):
        docker_engine.client.api.remove_container(row["Id"], force=True, v=True)
    docker_engine.client.images.remove(f"{mark}:1", force=True)


REPORT = "import pathlib, sys\npathlib.Path('/out/report').write_text(sys.argv[2])\nprint('written for', sys.argv[2])\n"


@pytest.mark.engine("docker")
def test_a_container_every_night(docker_engine, define, image_with, mark, tmp_path) -> None:
    define("launch_docker", host=docker_engine.host, pull="never")
    replaced = {"registry.example.com/team/report:2": image_with("report", REPORT), "/srv/reports": str(tmp_path)}
    ran, _ = run_to_end(task_of("docker-nightly", mark, replaced | DAY), FakeExecutionApi())

    assert ran.error is None, ran.lines
    assert (tmp_path / "report").read_text() == "test_run"
    assert "[report/0] written for test_run" in ran.lines


CONVERT = """
import os, sys
if os.environ["LAUNCH_REPLICA_ID"] == "1" and os.environ["LAUNCH_ATTEMPT"] == "0":
    sys.exit(5)
print("share", os.environ["LAUNCH_REPLICA_ID"], "of", os.environ["LAUNCH_NUM_REPLICAS"], *sys.argv[1:])
"""


@pytest.mark.engine("aws_batch")
def test_an_array_of_jobs(batch_server, batch_queue, define, image_with, mark) -> None:
    """Three children, one of which is started again."""
    define("launch_aws_batch", **params_for(batch_server.url), queue=batch_queue)
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/convert:3"
    replaced = {image: image_with("convert", CONVERT), "num_replicas=100": "num_replicas=3"}
    api = FakeExecutionApi()
    ran, _ = run_to_end(task_of("batch-array", mark, replaced | DAY), api)

    assert ran.error is None, ran.lines
    assert {line for line in ran.lines if "] share " in line} == {
        f"[worker/{k}] share {k} of 3 --bucket raw --day test_run" for k in range(3)
    }
    assert api.xcoms[mark, "return_value"]["roles"] == {"worker": [0, 0, 0]}
    assert ran.logged("[worker/1] --- attempt 0 ended: exit code 5 ---")


@pytest.fixture
def shared(slurm_cluster, mark, define) -> Iterator[Path]:
    """A directory that login node and compute nodes share."""
    folder = Path("/var/tmp/launch-slurm") / mark
    folder.mkdir(parents=True)
    define("launch_slurm", root=str(folder / "apps"), slurm_conf=str(slurm_cluster.conf), settle_s=2)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


SIMULATE = """
import os, sys
if sys.argv[2] == "1" and os.environ["LAUNCH_ATTEMPT"] == "0":
    sys.exit(5)
print("simulated with", *sys.argv[1:], os.environ["MODULE"])
"""


@pytest.mark.engine("slurm")
def test_simulations_on_a_cluster(shared, mark, monkeypatch, slurm_cluster) -> None:
    """Three ranks, one of which is started again."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    (shared / "simulate.py").write_text(SIMULATE)
    replaced = {
        "/home/airflow/simulation": str(shared),
        "num_replicas=16": "num_replicas=3",
        "Resource(cpu=4, gpu=0, memMB=8000)": "Resource(cpu=1, gpu=0, memMB=64)",
        '"partition": "cpu"': '"partition": "debug"',
        "module load python": "export MODULE=python",
    }
    ran, _ = run_to_end(task_of("slurm-simulation", mark, replaced), FakeExecutionApi())

    assert ran.error is None, ran.lines
    assert {line for line in ran.lines if "] simulated " in line} == {
        f"[simulation/{k}] simulated with --seed {k} python" for k in range(3)
    }
    assert ran.logged("[simulation/1] --- attempt 0 ended: exit code 5 ---")


@pytest.mark.engine("kubernetes")
def test_a_training_on_gpus_is_accepted_and_waits_for_them(
    kubernetes_engine, kubernetes_namespace, define, mark
) -> None:
    """The nodes of the tests have no GPU, and `test_torch_engines.py` trains; here the cluster checks the request."""
    from kubernetes.client import CoreV1Api

    define(
        "launch_kubernetes",
        kubeconfig_path=str(kubernetes_engine.kubeconfig),
        namespace=kubernetes_namespace,
        pull="never",
        grace_s=1,
    )
    replaced = {
        "registry.example.com/team/train:7": kubernetes_engine.image,
        '"priority_class": "batch"': '"priority_class": "system-cluster-critical"',
    }
    api = FakeExecutionApi()
    ran = run_task(task_of("kubernetes-training", mark, replaced), api)
    handle = api.xcoms[mark, "handle"]
    app_id = handle.rpartition("/")[2]
    hook = LaunchHook.for_connection("launch_kubernetes_default")
    try:
        assert isinstance(ran.msg, DeferTask), (ran.error, ran.lines)
        core = CoreV1Api(kubernetes_engine.client)

        def pods() -> list[Any]:
            found = core.list_namespaced_pod(kubernetes_namespace, label_selector=f"launch.io/app-id={app_id}").items
            return list(found)

        until(lambda: len(pods()) == 2)
        for pod in pods():
            (main,) = [one for one in pod.spec.containers if one.name == "main"]
            assert main.resources.limits["nvidia.com/gpu"] == "8"
            secrets = {one.name: one.value_from.secret_key_ref for one in main.env if one.value_from}
            assert (secrets["HF_TOKEN"].name, secrets["HF_TOKEN"].key) == ("training", "token")
            assert "/checkpoints" in {one.mount_path for one in main.volume_mounts}
            claims = [one.persistent_volume_claim.claim_name for one in pod.spec.volumes if one.persistent_volume_claim]
            assert claims == ["checkpoints"]
            assert pod.spec.priority_class_name == "system-cluster-critical"
        assert str(hook.runner.status(handle).state) == "PENDING"
    finally:
        hook.runner.delete(handle)
        hook.close()
