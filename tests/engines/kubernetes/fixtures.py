"""Fixtures around the Kubernetes cluster; a test that uses them is marked `engine("kubernetes")`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.kubernetes import engine
from tests.engines.kubernetes.cluster import ApiServer, Cluster

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from tests.engines.kubernetes.proxy import KubernetesProxy


@dataclass(frozen=True)
class KubernetesEngine:
    """A running cluster."""

    kubeconfig: Path
    """Kubeconfig of an administrator, without a proxy."""
    client: ApiClient
    """The same as a client."""
    cluster: Cluster | None
    """Our cluster with its programs; None for a given cluster."""
    image: str
    """Image with a shell and its tools. There is no registry, so the pull policy must be Never or IfNotPresent."""
    folder: Path

    def python_image(self) -> str:
        """Return the image with Python and the example's word count; the first call makes it in seconds."""
        from tests.engines.docker.images import PYTHON
        from tests.engines.kubernetes import images

        return images.python(self.cluster) if self.cluster else PYTHON

    def limited(self, namespace: str, rules: list[dict[str, Any]]) -> Path:
        """Return the kubeconfig of a user with exactly the rules of a Role in the namespace."""
        from tests.engines.kubernetes import config, namespaces

        token = namespaces.grant(self.client, namespace, rules)
        found = self.folder / f"limited-{secrets.token_hex(4)}.json"
        found.write_text(config.with_token(self.kubeconfig, token, namespace))
        return found

    def proxy(self, kubeconfig: Path | None = None, namespace: str = "default") -> KubernetesProxy:
        """Return a proxy for a `with` block, with the credentials of the kubeconfig."""
        from tests.engines.kubernetes.proxy import KubernetesProxy

        return KubernetesProxy(kubeconfig or self.kubeconfig, namespace)


@pytest.fixture(scope="session")
def kubernetes_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesEngine]:
    """The cluster of this session, with the image of a shell."""
    from kubernetes import config

    from tests.engines.docker.images import BUSYBOX
    from tests.engines.kubernetes import images

    kubeconfig = engine.found()
    ours = engine.ours()
    cluster = ours if kubeconfig == ours.kubeconfig else None
    image = images.busybox(cluster) if cluster else BUSYBOX
    with config.new_client_from_config(str(kubeconfig)) as client:
        yield KubernetesEngine(kubeconfig, client, cluster, image, tmp_path_factory.mktemp("kubernetes"))


@pytest.fixture(scope="session")
def kubernetes_namespace(kubernetes_engine: KubernetesEngine) -> Iterator[str]:
    """A namespace for the tests of this process, deleted at the end."""
    from tests.engines.kubernetes import namespaces

    name = namespaces.create(kubernetes_engine.client)
    yield name
    namespaces.delete(kubernetes_engine.client, name)


@pytest.fixture
def kubernetes_make_namespace(kubernetes_engine: KubernetesEngine) -> Iterator[Callable[..., str]]:
    """Make a namespace for the test, with labels such as `pod-security.kubernetes.io/enforce`."""
    from tests.engines.kubernetes import namespaces

    made = []

    def make(**labels: str) -> str:
        made.append(namespaces.create(kubernetes_engine.client, labels))
        return made[-1]

    yield make
    for name in made:
        namespaces.delete(kubernetes_engine.client, name)


@dataclass(frozen=True)
class Queue:
    """A LocalQueue of Kueue with its own quota and namespace."""

    client: ApiClient
    namespace: str
    name: str
    cluster_queue: str

    def workloads(self) -> dict[str, dict[str, Any]]:
        """Return the Workloads of the namespace by name."""
        from kubernetes.client import CustomObjectsApi

        from tests.engines.kubernetes.queues import GROUP, VERSION

        found = CustomObjectsApi(self.client).list_namespaced_custom_object(GROUP, VERSION, self.namespace, "workloads")
        return {item["metadata"]["name"]: item for item in found["items"]}

    def used_places(self) -> int:
        """Return the number of replicas that Kueue counts against the quota."""
        from tests.engines.kubernetes import queues

        return queues.used_places(self.client, self.cluster_queue)

    def set_places(self, places: int) -> None:
        """Change the quota."""
        from tests.engines.kubernetes import queues

        queues.set_places(self.client, self.cluster_queue, places)

    def exists(self) -> bool:
        """Return whether the namespace exists."""
        from kubernetes.client import CoreV1Api

        fields = f"metadata.name={self.namespace}"
        return bool(CoreV1Api(self.client).list_namespace(field_selector=fields).items)

    def hold(self) -> None:
        """Stop admission, as an administrator does for maintenance."""
        from tests.engines.kubernetes import queues

        queues.hold(self.client, self.namespace, self.name)


@pytest.fixture
def kubernetes_make_queue(
    kubernetes_engine: KubernetesEngine, kubernetes_make_namespace: Callable[..., str]
) -> Iterator[Callable[..., Queue]]:
    """Make a queue for a number of replicas, in its own namespace; a test that uses it is marked `engine("kueue")`."""
    from tests.engines.kubernetes import queues
    from tests.engines.kubernetes.kueue import MANAGED

    engine.start_kueue()
    client = kubernetes_engine.client
    made: list[Queue] = []

    def make(places: int = 2) -> Queue:
        namespace = kubernetes_make_namespace(**{MANAGED: "true"})
        made.append(Queue(client, namespace, "team", queues.create(client, namespace, "team", places)))
        return made[-1]

    yield make
    for queue in made:
        queues.delete(client, queue.cluster_queue)


@pytest.fixture
def kubernetes_proxy(kubernetes_engine: KubernetesEngine, kubernetes_namespace: str) -> Iterator[KubernetesProxy]:
    """A proxy in front of the API server."""
    with kubernetes_engine.proxy(namespace=kubernetes_namespace) as proxy:
        yield proxy
    assert not proxy.missed()


@pytest.fixture
def kubernetes_api_server(kubernetes_engine: KubernetesEngine) -> Iterator[ApiServer]:
    """An API server of the cluster that the test may kill and restart; mark it `engine("kube-apiserver")`."""
    assert kubernetes_engine.cluster, "the engine kube-apiserver is one of our own cluster"
    with kubernetes_engine.cluster.another_api_server() as server:
        yield server
