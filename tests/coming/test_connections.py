"""A DAG of the usual size runs by the connection that its peer used, at the first attempt from the pages."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, RetryPolicy, Role, VolumeMount, resource
from airflow_provider_launch.specs.overlays import set_overlay
from tests.airflow.support import a_dag
from tests.coming.test_batch import KEYS, register
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import REGION

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(moves, monkeypatch):
    """Define a connection of Airflow's own type, and run the app of a role by it."""

    def run_role(name: str, known: dict[str, Any], role: Role, **arguments: Any) -> tuple[list[str], Any]:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(known))
        with a_dag():
            task = LaunchAppOperator(launch_conn_id=name, app=AppDef("report", [role]), **arguments)
        ran, value = moves.run(task)
        assert ran.state == "success", ran.error
        return [line for line in ran.lines if line.startswith("[")], value["result"]

    return run_role


@pytest.fixture
def kubernetes(kubernetes_engine, kubernetes_namespace) -> dict[str, Any]:
    extra = {"kube_config_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace}
    return {"conn_type": "kubernetes", "extra": extra}


@pytest.fixture
def config_and_secret(kubernetes_engine, kubernetes_namespace, unique) -> Any:
    from kubernetes.client import CoreV1Api
    from kubernetes.client import models as k8s

    core = CoreV1Api(kubernetes_engine.client)
    named = k8s.V1ObjectMeta(name=unique)
    core.create_namespaced_config_map(kubernetes_namespace, k8s.V1ConfigMap(metadata=named, data={"mode": "fast"}))
    core.create_namespaced_secret(kubernetes_namespace, k8s.V1Secret(metadata=named, string_data={"token": "s3cr3t"}))
    yield unique
    core.delete_namespaced_config_map(unique, kubernetes_namespace)
    core.delete_namespaced_secret(unique, kubernetes_namespace)


@pytest.mark.engine("kubernetes")
@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_pods_with_objects_of_the_package_kubernetes(run, kubernetes, kubernetes_engine, config_and_secret, deferrable):
    from kubernetes.client import models as k8s

    name, image = config_and_secret, kubernetes_engine.image
    rule = k8s.V1NodeSelectorRequirement(key="disk", operator="In", values=["ssd"])
    preferred = k8s.V1PreferredSchedulingTerm(weight=1, preference=k8s.V1NodeSelectorTerm(match_expressions=[rule]))
    node_affinity = k8s.V1NodeAffinity(preferred_during_scheduling_ignored_during_execution=[preferred])
    scratch = k8s.V1VolumeMount(name="scratch", mount_path="/scratch")
    script = 'cat /config/mode; echo " $MODE"; cat /secret/token | wc -c; cat /scratch/init; grep -c store /etc/hosts'
    lines, result = run(
        "kubernetes_default",
        kubernetes,
        Role(
            "main",
            image,
            entrypoint="sh",
            args=["-c", f"{script}; echo '{{\"rows\": 3}}' > /airflow/xcom/return.json"],
            resource=resource(cpu=0.25, memMB=64),
        ),
        task_id=name,
        cfg={
            "pull": "never",
            "grace_s": 1,
            "labels": {"team": "research"},
            "tolerations": [k8s.V1Toleration(key="gpu", operator="Exists", effect="NoSchedule")],
            "affinity": k8s.V1Affinity(node_affinity=node_affinity),
            "volumes": [
                k8s.V1Volume(name="scratch", empty_dir=k8s.V1EmptyDirVolumeSource()),
                k8s.V1Volume(name="config", config_map=k8s.V1ConfigMapVolumeSource(name=name)),
                k8s.V1Volume(name="secret", secret=k8s.V1SecretVolumeSource(secret_name=name)),
            ],
            "volume_mounts": [
                scratch,
                k8s.V1VolumeMount(name="config", mount_path="/config", read_only=True),
                k8s.V1VolumeMount(name="secret", mount_path="/secret"),
            ],
            "init_containers": [
                k8s.V1Container(
                    name="fetch",
                    image=image,
                    image_pull_policy="Never",
                    command=["sh", "-c", "echo fetched > /scratch/init; echo ready"],
                    volume_mounts=[scratch],
                )
            ],
            "container_logs": ["fetch"],
            "env_configmaps": {"MODE": f"{name}/mode"},
            "host_aliases": [k8s.V1HostAlias(ip="10.1.2.3", hostnames=["store"])],
        },
        time_limit_s=120,
        deferrable=deferrable,
        start_limit_s=60,
        on_finish="delete_succeeded",
    )

    assert lines == ["[main/0 fetch] ready", *(f"[main/0] {line}" for line in ("fast fast", "6", "fetched", "1"))]
    assert result == {"rows": 3}


@pytest.mark.engine("kubernetes")
def test_a_file_of_a_pod_with_a_second_container(run, kubernetes, kubernetes_engine, unique, tmp_path):
    """Image, command, variables and resources are those of the file."""
    image = kubernetes_engine.image
    file = tmp_path / "pod.yaml"
    base = {
        "name": "base",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "echo a template of $PLACE; sleep 1"],
        "env": [{"name": "PLACE", "value": "the moon"}],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}},
    }
    side = {"name": "side", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "1"]}
    spec = {"containers": [base, side], "restartPolicy": "Never"}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": spec}))

    lines, _ = run(
        "kubernetes_default",
        kubernetes,
        Role("main", "", entrypoint=None),
        task_id=unique,
        cfg={"pod_template": str(file)},
    )

    assert lines == ["[main/0] a template of the moon"]


@pytest.mark.engine("docker")
def test_a_container_with_fields_of_an_overlay(run, docker_engine, unique, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", docker_engine.host)
    known = {"conn_type": "docker", "host": "registry.example.com", "login": "me", "password": "s3cr3t"}
    script = 'id -u; pwd; df /cache | tail -1 | cut -d " " -f 1; grep -c store /etc/hosts; echo 1 > $LAUNCH_RESULT_PATH'
    script = f"{script}; grep -c 10.0.0.10 /etc/resolv.conf"
    room = Resource(cpu=0.5, gpu=0, memMB=64)
    role = Role("main", docker_engine.image, entrypoint="sh", args=["-c", script], resource=room)
    role.mounts.append(VolumeMount(unique, "/data"))
    set_overlay(role, "docker", "Container", {"HostConfig": {"Dns": ["10.0.0.10"]}})
    options = {"user": "1000", "working_dir": "/tmp", "extra_hosts": {"store": "10.1.2.3"}, "pull": "never"}
    options["by_role"] = {"main": {"overlay": {"HostConfig": {"Tmpfs": {"/cache": "size=1m"}}}}}
    try:
        lines, result = run("docker_default", known, role, task_id=unique, cfg=options, on_finish="delete")
    finally:
        docker_engine.client.volumes.get(unique).remove(force=True)

    assert lines == [f"[main/0] {line}" for line in ("1000", "/tmp", "tmpfs", "1", "1")]
    assert result == 1


@pytest.mark.engine("aws_batch")
def test_an_array_of_an_existing_job_definition(run, batch_server, batch_queue, docker_engine, unique):
    url = params_for(batch_server.url)["endpoint_url"]
    known = {
        "conn_type": "aws",
        "login": KEYS["aws_access_key_id"],
        "password": KEYS["aws_secret_access_key"],
        "extra": {"endpoint_url": url, "region_name": REGION},
    }
    definition = register(boto3.client("batch", endpoint_url=url, region_name=REGION, **KEYS), docker_engine.image)
    script = 'echo shard $LAUNCH_REPLICA_ID of $SIZE on $PLACE; echo "{\\"size\\": $SIZE}" > $LAUNCH_RESULT_PATH'
    role = Role("main", "", entrypoint="sh", args=["-c", script], env={"SIZE": "7"}, num_replicas=2)
    role.max_retries, role.retry_policy = 1, RetryPolicy.REPLICA
    options = {"queue": batch_queue, "job_definition": definition, "layout": "array", "tags": {"team": "research"}}
    lines, result = run("aws_default", known, role, task_id=unique, cfg=options, time_limit_s=120)

    assert sorted(lines) == [f"[main/{k}] shard {k} of 7 on the moon" for k in (0, 1)]
    assert result == {"size": 7}


@pytest.mark.engine("slurm")
def test_a_job_over_ssh(run, slurm_cluster, unique):
    sshd = slurm_cluster.sshd
    extra = {"key_file": str(sshd.key), "host_key": sshd.host_key}
    known = {"conn_type": "ssh", "host": "127.0.0.1", "port": sshd.port, "login": "root", "extra": extra}
    script = "echo shard $LAUNCH_REPLICA_ID of $DATA in $(pwd), $MODULE; echo 2 > $LAUNCH_RESULT_PATH"
    room = Resource(cpu=1, gpu=0, memMB=64)
    role = Role("main", "", entrypoint="sh", args=["-c", script], env={"DATA": "images"}, num_replicas=2, resource=room)
    options = {"comment": "moved", "setup": ["export MODULE=loaded"], "working_dir": "/tmp"}
    lines, result = run("ssh_default", known, role, task_id=unique, cfg=options, time_limit_s=300)

    assert sorted(lines) == [f"[main/{k}] shard {k} of images in /tmp, loaded" for k in (0, 1)]
    assert result == 2
