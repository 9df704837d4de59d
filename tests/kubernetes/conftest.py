"""Fixtures that launch apps on the cluster behind a proxy, and read their objects from the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.naming import Label
from airflow_provider_launch.schedulers.kubernetes.objects import Pod, pod_of
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler, create_scheduler
from airflow_provider_launch.specs import Role
from tests.engines.kubernetes.fixtures import KubernetesEngine
from tests.engines.kubernetes.proxy import KubernetesProxy
from tests.support.apps import Apps


class KubernetesApps(Apps[KubernetesScheduler]):
    """Launches apps, waits for them, and reads their objects from the cluster."""

    cfg: ClassVar[Mapping[str, object]] = {"pull": "never", "grace_s": 1, "security": "none"}
    timeout_s = 90.0
    pause_s = 0.2

    def __init__(self, kubeconfig: Path, admin: Path, namespace: str, image: str) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.image = image
        self.cluster = Cluster(KubernetesConnection(kubeconfig_path=str(admin), namespace=namespace))
        """A client that bypasses the proxy and has all permissions."""
        known = {"kubeconfig_path": str(kubeconfig), "namespace": namespace, "timeout_s": 20}
        super().__init__(lambda **more: create_scheduler("tests", **{**known, **more}))

    def start(self, *roles: Role, removed_after_s: int | None = None, **how: Any) -> str:
        """Launch an app; `removed_after_s` is a `ttl_s` that is too short for users."""
        info = self.info(*roles, **how)
        if removed_after_s is not None:
            info.request.ttl_s = removed_after_s
        return self.scheduler.schedule(info)

    # ---- what the cluster has ----

    def pods(self, app_id: str) -> list[Pod]:
        return [pod_of(item) for item in self.cluster.list("pods", f"{Label.APP_ID}={app_id}")[0]]

    def objects(self, app_id: str) -> list[str]:
        """Return the names of all Services, Jobs and ConfigMaps of the app."""
        kinds = ("services", "jobs", "configmaps")
        items = [item for kind in kinds for item in self.cluster.list(kind, f"{Label.APP_ID}={app_id}")[0]]
        return sorted(item["metadata"]["name"] for item in items)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request to the API that the scheduler never sends, in this namespace."""
        return self.cluster._request(method, path.replace("{ns}", f"namespaces/{self.namespace}"), {}, body)

    def close(self) -> None:
        super().close()
        self.cluster.close()


@pytest.fixture
def kubernetes_apps(
    kubernetes_engine: KubernetesEngine, kubernetes_proxy: KubernetesProxy, kubernetes_namespace: str
) -> Iterator[KubernetesApps]:
    """Apps behind the proxy; their namespace is deleted at the end of the session."""
    apps = KubernetesApps(
        kubernetes_proxy.kubeconfig, kubernetes_engine.kubeconfig, kubernetes_namespace, kubernetes_engine.image
    )
    with contextlib.closing(apps):
        yield apps
        kubernetes_proxy.clear()


@pytest.fixture
def apps_in(kubernetes_engine: KubernetesEngine) -> Iterator[Callable[..., KubernetesApps]]:
    """Make apps in another namespace, as another user."""
    with contextlib.ExitStack() as stack:

        def make(namespace: str, kubeconfig: Path | None = None) -> KubernetesApps:
            admin = kubernetes_engine.kubeconfig
            made = KubernetesApps(kubeconfig or admin, admin, namespace, kubernetes_engine.image)
            return stack.enter_context(contextlib.closing(made))

        yield make
