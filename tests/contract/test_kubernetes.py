"""The contract of the Kubernetes scheduler, on a real cluster behind a proxy that counts and breaks its requests.

The scheduler has only the permissions of the Role of our page.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.objects import Pod, pod_of
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.testing import SchedulerContract
from tests.contract.proxied import StreamingEngine
from tests.engines.docker.images import PRINTS_ITS_ARGS
from tests.engines.kubernetes.config import plain_kubeconfig
from tests.engines.kubernetes.fixtures import KubernetesEngine
from tests.engines.kubernetes.proxy import KubernetesProxy
from tests.support.apps import until
from tests.support.capabilities import EVERYWHERE
from tests.support.processes import processes_of
from tests.support.repeats import SOAK
from tests.support.role_page import rules_of_the_page


class KubernetesEngineView(StreamingEngine):
    """Reads the pods directly, without the proxy."""

    log_path = r"/log$"

    def __init__(self, cluster: Cluster, proxy: KubernetesProxy) -> None:
        super().__init__(proxy)
        self._cluster = cluster

    def alive(self, app_id: str) -> int:
        return max(sum(pod.running for pod in self._pods(app_id)), len(processes_of(app_id)))

    def starts(self, app_id: str) -> int:
        # Each attempt is a separate pod; pods that ran stay until the app is deleted.
        return sum(pod.has_started for pod in self._pods(app_id))

    def lose(self, app_id: str, role: str) -> bool:
        jobs, _ = self._cluster.list("jobs", f"{Label.APP_ID}={app_id},{Label.ROLE}={role}")
        for job in jobs:
            self._cluster.delete("jobs", job["metadata"]["name"], job["metadata"]["uid"])
        return True

    def give_up(self, app_id: str, role: str) -> bool | None:
        if not processes_of(app_id):
            return None  # the nodes are other hosts
        for pod in self._pods(app_id):
            if pod.role == role:
                # By force: the pod is gone before its node has stopped the program.
                path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{pod.name}"
                self._cluster._request("DELETE", path, {}, {"gracePeriodSeconds": 0})
        return True

    def stop(self, app_id: str, role: str) -> bool:
        for pod in self._pods(app_id):
            if pod.role == role:
                self._cluster.delete("pods", pod.name, pod.uid)
        return True

    def _pods(self, app_id: str) -> list[Pod]:
        return [pod_of(item) for item in self._cluster.list("pods", f"{Label.APP_ID}={app_id}")[0]]

    @contextlib.contextmanager
    def damaged(self, app_id: str) -> Iterator[None]:
        service = self._cluster.get("services", app_id)
        assert service is not None
        before = service["metadata"]["annotations"]
        jobs = [item["metadata"] for item in self._cluster.list("jobs", f"{Label.APP_ID}={app_id}")[0]]
        nonsense = {Annotation.REQUEST: "x", Annotation.ATTEMPT: "9" * 5000, Annotation.OWNER: "["}
        self._cluster.patch("services", app_id, {"metadata": {"annotations": nonsense}})
        for job in jobs:
            self._cluster.patch("jobs", job["name"], {"metadata": {"labels": {Label.ATTEMPT: "abc"}}})
        try:
            yield
        finally:
            for job in jobs:
                label = {Label.ATTEMPT: job["labels"].get(Label.ATTEMPT)}
                self._cluster.patch("jobs", job["name"], {"metadata": {"labels": label}})
            restored = {name: before.get(name) for name in nonsense}
            self._cluster.patch("services", app_id, {"metadata": {"annotations": restored}})

    @contextlib.contextmanager
    def forged(self, app_id: str) -> Iterator[None]:
        metadata = {
            "name": app_id,
            "labels": {Label.MANAGED: "true", Label.APP_ID: app_id},
            "annotations": {Annotation.SPEC_HASH: "x", Annotation.REQUEST: "x", Annotation.RELEASED: "9" * 5000},
        }
        spec = {"clusterIP": "None", "ports": [{"port": 1}]}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        made = self._cluster.create("services", body)
        try:
            yield
        finally:
            self._cluster.delete("services", app_id, made["metadata"]["uid"])

    def left(self, app_id: str) -> int:
        kinds = ("services", "jobs", "pods")
        return sum(len(self._cluster.list(kind, f"{Label.APP_ID}={app_id}")[0]) for kind in kinds)


@pytest.fixture(scope="module")
def limited(kubernetes_engine: KubernetesEngine, kubernetes_namespace: str, checkout: Path) -> Path:
    """A user with exactly the Role of our page."""
    return kubernetes_engine.limited(kubernetes_namespace, rules_of_the_page(checkout))


@pytest.mark.timeout(900)  # hundreds of pods take minutes on a busy machine
@pytest.mark.engine("kubernetes")
class TestKubernetes(SchedulerContract):
    factory = "airflow_provider_launch.schedulers.kubernetes.scheduler:create_scheduler"
    timeout_s = 120
    lag_s = 8  # the kubelet reports it a second later, the Job controller two seconds after that
    drain_s = 5  # containerd reads a program's pipes for two more seconds
    xfail = {  # noqa: RUF012 - of the kit
        "test_odd_output_is_complete": "containerd writes logs without the carriage return before a line feed"
    }
    many = 60  # a node has room for 110 pods
    capabilities = EVERYWHERE | {
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.DISRUPTION_RETRY,
        Capability.WORKSPACE,
    }

    @pytest.fixture
    def proxy(
        self, kubernetes_engine: KubernetesEngine, kubernetes_namespace: str, limited: Path
    ) -> Iterator[KubernetesProxy]:
        with kubernetes_engine.proxy(limited, kubernetes_namespace) as proxy:
            yield proxy

    @pytest.fixture
    def engine(
        self, kubernetes_engine: KubernetesEngine, proxy: KubernetesProxy, kubernetes_namespace: str
    ) -> Iterator[KubernetesEngineView]:
        path = str(kubernetes_engine.kubeconfig)
        connection = KubernetesConnection(kubeconfig_path=path, namespace=kubernetes_namespace)
        with contextlib.closing(Cluster(connection)) as cluster:
            yield KubernetesEngineView(cluster, proxy)

    @pytest.fixture
    def params(self, proxy: KubernetesProxy) -> dict[str, Any]:
        return {"kubeconfig_path": str(proxy.kubeconfig), "timeout_s": 20}

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any]:
        return {"kubeconfig_secret": plain_kubeconfig("http://127.0.0.1:1", "default")}

    @pytest.fixture
    def image(self, kubernetes_engine: KubernetesEngine) -> str:
        return kubernetes_engine.image

    @pytest.fixture
    def workspace_cfg(self, cfg: dict[str, Any], kubernetes_engine: KubernetesEngine, registry: str) -> dict[str, Any]:
        if kubernetes_engine.cluster is None:
            pytest.skip("nodes of an external cluster cannot reach the registry of the tests")
        if (host := os.environ.get("DOCKER_HOST")) is None:
            pytest.skip("no Docker engine answers here, which would build the image")
        return {**cfg, "pull": "missing", "image_repo": f"{registry}/contract", "build_host": host}

    @pytest.fixture
    def program_with_a_space(self) -> str:
        return PRINTS_ITS_ARGS

    @pytest.fixture
    def resource(self) -> Resource:
        # The node has two processors, and 50 replicas must run in parallel.
        return Resource(cpu=0, gpu=0, memMB=64)

    @pytest.fixture
    def cfg(self) -> dict[str, Any]:
        # The image runs as root, and is not in a registry.
        return {"pull": "never", "security": "none"}

    @pytest.fixture
    def never_starts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"image": "no-such-image:local"}, {}


@pytest.fixture(scope="module")
def other_namespace(
    kubernetes_engine: KubernetesEngine, kubernetes_namespace: str, limited: Path, checkout: Path
) -> Iterator[str]:
    """Another namespace, in which the limited user has the same Role."""
    from kubernetes.client import RbacAuthorizationV1Api

    from tests.engines.kubernetes import namespaces

    made = namespaces.create(kubernetes_engine.client)
    rbac, meta = RbacAuthorizationV1Api(kubernetes_engine.client), {"name": "launch-limited"}
    rbac.create_namespaced_role(made, {"metadata": meta, "rules": rules_of_the_page(checkout)})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **meta}
    user = {"kind": "ServiceAccount", "namespace": kubernetes_namespace, **meta}
    rbac.create_namespaced_role_binding(made, {"metadata": meta, "roleRef": role, "subjects": [user]})
    with contextlib.closing(create_scheduler("tests", kubeconfig_path=str(limited), namespace=made)) as scheduler:
        until(lambda: not scheduler.missing_rights())
    yield made
    namespaces.delete(kubernetes_engine.client, made)


@pytest.mark.skipif(not SOAK, reason="the contract again, in another namespace; LAUNCH_SOAK=1 runs it")
class TestSeveralNamespaces(TestKubernetes):
    """All launches choose the second of the namespaces that the connection lists."""

    @pytest.fixture
    def engine(
        self, kubernetes_engine: KubernetesEngine, proxy: KubernetesProxy, other_namespace: str
    ) -> Iterator[KubernetesEngineView]:
        path = str(kubernetes_engine.kubeconfig)
        connection = KubernetesConnection(kubeconfig_path=path, namespace=other_namespace)
        with contextlib.closing(Cluster(connection)) as cluster:
            yield KubernetesEngineView(cluster, proxy)

    @pytest.fixture
    def params(self, proxy: KubernetesProxy, other_namespace: str) -> dict[str, Any]:
        return {"kubeconfig_path": str(proxy.kubeconfig), "timeout_s": 20, "namespaces": [other_namespace]}

    @pytest.fixture
    def unreachable_params(self, other_namespace: str) -> dict[str, Any]:
        return {
            "kubeconfig_secret": plain_kubeconfig("http://127.0.0.1:1", "default"),
            "namespaces": [other_namespace],
        }

    @pytest.fixture
    def cfg(self, other_namespace: str) -> dict[str, Any]:
        return {"pull": "never", "security": "none", "namespace": other_namespace}
