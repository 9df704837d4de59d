"""DAGs with KubernetesPodOperator do the same after the move, on a real cluster."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from tests.airflow.support import a_dag

pytestmark = [
    pytest.mark.engine("kubernetes"),
    pytest.mark.timeout(300),
    # KubernetesPodOperator leaves its connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

pytest.importorskip("airflow.providers.cncf.kubernetes")


@pytest.fixture(autouse=True)
def connections(kubernetes_engine, kubernetes_namespace, monkeypatch):
    where = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace}
    ours = {"conn_type": "launch_kubernetes", "extra": {**where, "pull": "never", "security": "none", "grace_s": 1}}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_KUBERNETES_DEFAULT", json.dumps(ours))
    # The sidecar for the result needs an image, too.
    extra = {"kube_config_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace}
    extra["xcom_sidecar_container_image"] = kubernetes_engine.image
    theirs = {"conn_type": "kubernetes", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(theirs))


@pytest.fixture
def secret(kubernetes_engine, kubernetes_namespace, unique):
    from kubernetes.client import CoreV1Api, V1ObjectMeta, V1Secret

    core = CoreV1Api(kubernetes_engine.client)
    made = V1Secret(metadata=V1ObjectMeta(name=unique), string_data={"token": "s3cr3t"})
    core.create_namespaced_secret(kubernetes_namespace, made)
    yield unique
    core.delete_namespaced_secret(unique, kubernetes_namespace)


def test_the_dag_of_the_page_with_a_volume_a_secret_and_a_result(
    moves, kubernetes_engine, kubernetes_namespace, secret, unique
):
    replaced = {
        "busybox": kubernetes_engine.image,
        "research": kubernetes_namespace,
        "training": secret,
        "training/token": f"{secret}/token",
        "train": unique,
    }
    before, after = moves.of_page("kubernetes-pod-operator", replaced)

    first, value = moves.run(before)
    assert first.state == "success", first.error
    second, outcome = moves.run(after)
    assert second.state == "success", second.error
    assert value == outcome["result"] == {"size": 7}


def both(unique: str, image: str, namespace: str, role: Role, cfg: dict, **theirs):
    """Return the task before and the task after."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    with a_dag():
        before = KubernetesPodOperator(
            task_id="before", name=unique, image=image, namespace=namespace, image_pull_policy="Never", **theirs
        )
    with a_dag():
        app = AppDef(unique, [role])
        after = LaunchAppOperator(task_id=unique, launch_conn_id="launch_kubernetes_default", app=app, cfg=cfg)
    return before, after


def test_labels_a_failure_and_an_exit_code(moves, kubernetes_engine, kubernetes_namespace, unique):
    script = ["-c", "echo nothing to do; exit 99"]
    image = kubernetes_engine.image
    before, after = both(
        unique,
        image,
        kubernetes_namespace,
        Role("main", image, entrypoint="sh", args=script),
        {"labels": {"team": "research"}},
        cmds=["sh"],
        arguments=script,
        labels={"team": "research"},
        skip_on_exit_code=99,
    )
    after.skip_on_exit_code = 99

    assert [moves.run(task)[0].state for task in (before, after)] == ["skipped", "skipped"]


@pytest.fixture
def image_with_entrypoint(kubernetes_engine, docker_engine, unique, tmp_path):
    """An image that the node has, with a program of its own."""
    cluster = kubernetes_engine.cluster
    if cluster is None:
        pytest.skip("images of the tests cannot be loaded into the nodes of an external cluster")
    made = docker_engine.client.containers.create(docker_engine.image, "true")
    image = made.commit(unique, "1", changes='ENTRYPOINT ["echo", "from the image"]')
    made.remove()
    archive = tmp_path / "image.tar"
    with archive.open("wb") as file:
        file.writelines(docker_engine.client.images.get(f"{unique}:1").save(named=True))
    docker_engine.client.images.remove(image.id, force=True)
    cluster.ctr("images", "import", str(archive))
    yield f"{unique}:1"
    cluster.ctr("images", "rm", f"docker.io/library/{unique}:1")


@pytest.mark.engine("docker")
def test_an_image_with_an_entrypoint(moves, kubernetes_engine, kubernetes_namespace, image_with_entrypoint, unique):
    before, after = both(
        unique,
        image_with_entrypoint,
        kubernetes_namespace,
        Role("main", image_with_entrypoint, entrypoint=None, args=["and the task"]),
        {},
        arguments=["and the task"],
        on_finish_action="keep_pod",
    )

    first, _ = moves.run(before)
    assert first.state == "success", first.error
    assert log_of(kubernetes_engine, kubernetes_namespace, unique) == "from the image and the task\n"
    second, _ = moves.run(after)
    assert second.state == "success", second.error
    assert "[main/0] from the image and the task" in second.lines


def log_of(kubernetes_engine, namespace: str, name: str) -> str:
    """Return the log of the pod of KubernetesPodOperator, which it removes."""
    from kubernetes.client import CoreV1Api

    core = CoreV1Api(kubernetes_engine.client)
    (pod,) = [one for one in core.list_namespaced_pod(namespace).items if one.metadata.name.startswith(name)]
    text = core.read_namespaced_pod_log(pod.metadata.name, namespace, _preload_content=False).data.decode()
    core.delete_namespaced_pod(pod.metadata.name, namespace)
    return str(text)


def test_a_pod_template(moves, kubernetes_engine, kubernetes_namespace, unique):
    """The container `base` of the template runs the program of the role, once."""
    image = kubernetes_engine.image
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"from": "template"}},
        "spec": {
            "containers": [{"name": "base", "image": image, "env": [{"name": "PLACE", "value": "the moon"}]}],
            "restartPolicy": "Never",
        },
    }
    script = ["-c", 'echo "on $PLACE"']
    before, after = both(
        unique,
        image,
        kubernetes_namespace,
        Role("main", image, entrypoint="sh", args=script),
        {"pod_template": template},
        cmds=["sh"],
        arguments=script,
        pod_template_dict=template,
    )

    first, second = (moves.run(task)[0] for task in (before, after))
    assert [first.state, second.state] == ["success", "success"]
    assert [line for line in second.lines if line.startswith("[main/0]")] == ["[main/0] on the moon"]
