"""DAGs and components of TorchX do the same after the move. TorchX has an environment of its own."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.overlays import set_overlay
from tests.airflow.support import a_dag

pytestmark = pytest.mark.timeout(300)


def run_theirs(*command: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def connection(docker_engine, monkeypatch):
    known = {"conn_type": "launch_docker", "extra": {"host": docker_engine.host, "pull": "never"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_DOCKER_DEFAULT", json.dumps(known))
    monkeypatch.setenv("DOCKER_HOST", docker_engine.host)


@pytest.fixture
def clean(docker_engine, unique):
    """Remove the containers and volumes of a test; TorchX leaves both, and a network that parallel tests share."""
    yield
    for container in docker_engine.client.containers.list(all=True, filters={"name": unique}):
        container.remove(force=True)
    for volume in docker_engine.client.volumes.list(filters={"name": unique}):
        volume.remove(force=True)


@pytest.mark.engine("docker")
def test_the_dag_of_the_page_with_a_volume_a_secret_and_a_result(
    moves, docker_engine, connection, clean, unique, peer_python
):
    replaced = {
        "/opt/torchx/bin/python": str(peer_python("torchx")),
        "busybox": docker_engine.image,
        "train-data": unique,
        "train": unique,
    }
    before, after = moves.of_page("torchx", replaced)

    first, value = moves.run(before)
    assert first.state == "success", first.error
    second, outcome = moves.run(after)
    assert second.state == "success", second.error
    assert json.loads(value) == outcome["result"] == {"size": 7}
    assert not [line for line in second.lines if "s3cr3t" in line]


@pytest.mark.engine("docker")
def test_an_image_with_an_entrypoint(moves, docker_engine, connection, clean, unique, peer_python):
    """TorchX gives its entrypoint to the image's one, as its first argument."""
    made = docker_engine.client.containers.create(docker_engine.image, "true")
    image = made.commit(unique, "1", changes='ENTRYPOINT ["echo", "from the image"]')
    made.remove()
    try:
        theirs = run_theirs(peer_python("torchx"), "-c", ENTRYPOINT, unique)
        with a_dag():
            role = Role("main", f"{unique}:1", entrypoint=None, args=["and", "the task"])
            after = LaunchAppOperator(
                task_id=unique, launch_conn_id="launch_docker_default", app=AppDef(unique, [role]), on_finish="delete"
            )

        lines = moves.run(after)[0].lines
        assert theirs.strip() == "from the image and the task"
        assert "[main/0] from the image and the task" in lines
    finally:
        docker_engine.client.images.remove(image.id, force=True)


ENTRYPOINT = """
import sys
from torchx.runner import get_runner
from torchx.specs import AppDef, Role

role = Role("main", f"{sys.argv[1]}:1", entrypoint="and", args=["the task"])
with get_runner() as runner:
    app = runner.run(AppDef(sys.argv[1], [role]), "local_docker")
    runner.wait(app).raise_for_status()
    print(*runner.log_lines(app, "main", 0))
"""

COMPONENT = """
from torchx.specs import AppDef, Role


def train(epochs: int, name: str = "train") -> AppDef:
    \"\"\"Train.

    Args:
        epochs: how often
        name: of the app
    \"\"\"
    args = ["-c", f"echo {epochs} epochs"]
    return AppDef(name, [Role("trainer", image="any", entrypoint="sh", args=args, num_replicas=2)])
"""


def test_a_component_in_a_file(moves, tmp_path, unique, peer_python, monkeypatch):
    """It moves with its arguments; only its import changes."""
    from airflow.providers.standard.operators.bash import BashOperator

    (tmp_path / "theirs.py").write_text(COMPONENT)
    (tmp_path / "ours.py").write_text(COMPONENT.replace("from torchx", "from airflow_provider_launch"))
    known = {"conn_type": "launch", "extra": {"scheduler": "local_cwd", "params": {"root": str(tmp_path / "apps")}}}
    monkeypatch.setenv("AIRFLOW_CONN_THIS_HOST", json.dumps(known))
    torchx = peer_python("torchx").with_name("torchx")
    with a_dag():
        command = f"{torchx} run -s local_cwd theirs.py:train --epochs 2 2>&1"
        before = BashOperator(task_id="before", bash_command=command, cwd=str(tmp_path))
    with a_dag():
        component = f"{tmp_path}/ours.py:train"
        arguments = {"epochs": 2, "name": unique}
        after = LaunchAppOperator(
            task_id=unique, launch_conn_id="this_host", component=component, component_args=arguments
        )

    first, second = (moves.run(task)[0] for task in (before, after))
    assert [first.state, second.state] == ["success", "success"], (first.lines, second.error)
    for k in (0, 1):
        assert any(f"trainer/{k} 2 epochs" in line for line in first.lines)
        assert f"[trainer/{k}] 2 epochs" in second.lines


OVERLAY = {
    "spec": {
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["store"]}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
}
DRY_RUN = """
import json, sys
from kubernetes.client import ApiClient
from torchx.runner import get_runner
from torchx.specs import AppDef, Role
from torchx.specs.overlays import set_overlay

role = Role("main", "busybox", entrypoint="grep", args=["store", "/etc/hosts"])
set_overlay(role, "kubernetes", "V1Pod", json.loads(sys.argv[1]))
with get_runner() as runner:
    info = runner.dryrun(AppDef("train", [role]), "kubernetes", {"queue": "default", "validate_spec": False})
    job = ApiClient().sanitize_for_serialization(info.request.resource)
    print(json.dumps(job["spec"]["tasks"][0]["template"]["spec"]))
"""


@pytest.mark.engine("kubernetes")
def test_an_overlay_of_the_pod(moves, kubernetes_engine, kubernetes_namespace, unique, peer_python, monkeypatch):
    """TorchX only makes its request here, because the cluster has no Volcano."""
    from kubernetes.client import CoreV1Api

    where = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace}
    known = {"conn_type": "launch_kubernetes", "extra": {**where, "pull": "never", "grace_s": 1}}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_KUBERNETES_DEFAULT", json.dumps(known))
    theirs = json.loads(run_theirs(peer_python("torchx"), "-c", DRY_RUN, json.dumps(OVERLAY)))
    role = Role("main", kubernetes_engine.image, entrypoint="grep", args=["store", "/etc/hosts"])
    set_overlay(role, "kubernetes", "V1Pod", OVERLAY)
    with a_dag():
        after = LaunchAppOperator(
            task_id=unique,
            launch_conn_id="launch_kubernetes_default",
            app=AppDef(unique, [role]),
            on_finish="keep",
        )

    ran, _ = moves.run(after)
    assert ran.state == "success", ran.error
    assert any("10.1.2.3" in line for line in ran.lines if line.startswith("[main/0]"))
    pods = CoreV1Api(kubernetes_engine.client).list_namespaced_pod(kubernetes_namespace).items
    (pod,) = [each for each in pods if unique in each.metadata.name]
    ours = kubernetes_engine.client.sanitize_for_serialization(pod.spec)
    assert ours["hostAliases"] == theirs["hostAliases"]
    # The server adds the tolerations of every pod.
    assert theirs["tolerations"][0] in ours["tolerations"]
