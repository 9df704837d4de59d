"""Pods of one cluster, for the tests of the guarantees; the tasks reach its API server through a proxy."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any, ClassVar

from kubernetes.client import ApiClient, ApiException, BatchV1Api, CoreV1Api
from kubernetes.stream import stream

from airflow_provider_launch.schedulers.kubernetes.naming import Label
from airflow_provider_launch.specs import Role

_CHECK_S = 0.2


class KubernetesPlace:
    """Jobs in the namespace of the session."""

    lag_s, log_lag_s, drain_s = 8.0, 0.0, 5.0
    cfg_without_result: ClassVar[dict[str, Any]] = {}

    def __init__(self, engine: Any, namespace: str, proxy: Any) -> None:
        from tests.faults import error

        self._engine, self._namespace, self._proxy = engine, namespace, proxy
        self._core, self._batch = CoreV1Api(engine.client), BatchV1Api(engine.client)
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        extra = {"kubeconfig_path": str(proxy.kubeconfig), "namespace": namespace, "pull": "never"}
        self.connection = {
            "conn_type": "launch_kubernetes",
            "extra": {**extra, "security": "none", "grace_s": 1, "timeout_s": 10},
        }
        self.outages = {
            "connections are refused": proxy.refused,
            "429": lambda: proxy.answering(error(429, "too many requests", retry_after_s=1)),
            "500": lambda: proxy.answering(error(500, "internal error")),
            "credentials have expired": lambda: proxy.answering(error(401, "Unauthorized")),
            "credentials are refused": lambda: proxy.answering(error(403, "forbidden")),
        }
        self._started: dict[tuple[str, int], str] = {}
        self._is_let_go = False
        self._gone: set[str] = set()
        """Pods that were let go, by uid."""
        self._others: list[KubernetesPlace] = []
        self._closed = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def another(self) -> KubernetesPlace:
        self._others.append(KubernetesPlace(self._engine, self._namespace, self._proxy))
        return self._others[-1]

    def role(self, script: str, **fields: Any) -> Role:
        return Role("main", self._engine.image, entrypoint="sh", args=["-c", f"GO=/tmp/go; {script}"], **fields)

    def apps(self) -> list[str]:
        records = self._core.list_namespaced_service(self._namespace, label_selector=Label.APP_ID).items
        return sorted(name for one in records if self.mark in (name := one.metadata.labels[Label.APP_ID]))

    def starts(self) -> list[str]:
        self._look()
        return sorted(self._started.values())

    def alive(self) -> int:
        return len(self._running())

    def go(self) -> None:
        # Also for pods that do not run yet.
        self._is_let_go = True
        self._let_go()

    def _let_go(self) -> None:
        for pod in self._running():
            if pod.metadata.uid in self._gone:
                continue
            # In a client of its own: `stream` changes the one it is given.
            with ApiClient(self._engine.client.configuration) as client, contextlib.suppress(ApiException):
                ran = stream(
                    CoreV1Api(client).connect_get_namespaced_pod_exec,
                    pod.metadata.name,
                    self._namespace,
                    command=["touch", "/tmp/go"],
                    stdout=True,
                    stderr=True,
                    _preload_content=False,
                )
                ran.run_forever(timeout=10)
                ran.close()
                ran.sock.shutdown()
                client.rest_client.pool_manager.clear()
                self._gone.add(pod.metadata.uid)

    def vanish(self, app_id: str) -> None:
        self._remove(app_id)
        # Without their grace: nothing is to be written any more about how they ended.
        ours = {"label_selector": f"{Label.APP_ID}={app_id}"}
        self._core.delete_collection_namespaced_pod(self._namespace, grace_period_seconds=0, **ours)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        names = "|".join(pod.metadata.name for pod in self._pods())
        return self._proxy.stalled(rf"/pods/({names})/log")

    def _remove(self, app_id: str) -> None:
        ours = {"label_selector": f"{Label.APP_ID}={app_id}"}
        self._batch.delete_collection_namespaced_job(self._namespace, propagation_policy="Background", **ours)
        with contextlib.suppress(ApiException):  # gone meanwhile
            self._core.delete_namespaced_service(app_id, self._namespace)

    def _pods(self) -> list[Any]:
        pods = self._core.list_namespaced_pod(self._namespace, label_selector=Label.APP_ID).items
        return [pod for pod in pods if self.mark in pod.metadata.labels[Label.APP_ID]]

    def _running(self) -> list[Any]:
        return [pod for pod in self._pods() if any(one.state.running for one in pod.status.container_statuses or ())]

    def _look(self) -> None:
        for pod in self._pods():
            for one in pod.status.container_statuses or ():
                if one.state.running or one.state.terminated:
                    for number in range(one.restart_count + 1):
                        self._started[pod.metadata.uid, number] = pod.metadata.labels[Label.INDEX]

    def _watch(self) -> None:
        """Note what starts, for pods go when their Job is stopped; let it go, if it may."""
        while not self._closed.is_set():
            with contextlib.suppress(Exception):
                self._look()
                if self._is_let_go:
                    self._let_go()
            time.sleep(_CHECK_S)

    def close(self) -> None:
        for other in self._others:
            other.close()
        self._closed.set()
        self._watching.join()
        for app_id in self.apps():
            self._remove(app_id)
