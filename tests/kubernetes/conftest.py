"""Fixtures that launch apps on the cluster behind a proxy, and read their objects from the cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.naming import Label
from airflow_provider_launch.schedulers.kubernetes.objects import Pod, pod_of
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler, create_scheduler
from airflow_provider_launch.specs import AppDef, AppState, Role, is_terminal
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from tests.engines.kubernetes.fixtures import KubernetesEngine
from tests.engines.kubernetes.proxy import KubernetesProxy


class KubernetesApps:
    """Launches apps, waits for them, and reads their objects from the cluster."""

    def __init__(self, kubeconfig: Path, admin: Path, namespace: str, image: str) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.image = image
        self.cluster = Cluster(KubernetesConnection(kubeconfig_path=str(admin), namespace=namespace))
        """A client that bypasses the proxy and has all permissions."""
        self._made: list[KubernetesScheduler] = []
        self.scheduler = self.another()

    def another(self, **connection: Any) -> KubernetesScheduler:
        """Return a new scheduler, as another process would have."""
        known = {"kubeconfig_path": str(self.kubeconfig), "namespace": self.namespace, "timeout_s": 20}
        made = create_scheduler("tests", **{**known, **connection})
        self._made.append(made)
        return made

    def sh(self, script: str, name: str = "main", **fields: Any) -> Role:
        return Role(name, **{"image": self.image, "entrypoint": "sh", "args": ["-c", script], **fields})

    def info(self, *roles: Role, app_id: str | None = None, **cfg: object) -> AppDryRunInfo[KubernetesRequest]:
        cfg = {"pull": "never", "grace_s": 1, "security": "none", **cfg}
        return self.scheduler.submit_dryrun(AppDef("app", list(roles)), cfg, app_id=app_id or make_unique("test"))

    def start(self, *roles: Role, removed_after_s: int | None = None, **how: Any) -> str:
        """Launch an app; `removed_after_s` is a `ttl_s` that is too short for users."""
        info = self.info(*roles, **how)
        if removed_after_s is not None:
            info.request.ttl_s = removed_after_s
        return self.scheduler.schedule(info)

    def until(
        self, app_id: str, condition: Callable[[DescribeAppResponse], object], timeout_s: float = 90.0
    ) -> DescribeAppResponse:
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.scheduler.describe(app_id)
            assert found is not None
            if condition(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def end(self, app_id: str) -> DescribeAppResponse:
        return self.until(app_id, lambda found: is_terminal(found.state))

    def running(self, app_id: str) -> DescribeAppResponse:
        return self.until(app_id, lambda found: found.state is AppState.RUNNING)

    def run(self, *roles: Role, **how: Any) -> DescribeAppResponse:
        return self.end(self.start(*roles, **how))

    def lines(self, app_id: str, role: str = "main", k: int = 0) -> list[str]:
        return [str(line) for line in self.scheduler.log_iter(app_id, role, k)]

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
        for scheduler in self._made:
            scheduler.close()
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
