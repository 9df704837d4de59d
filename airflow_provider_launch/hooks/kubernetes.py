"""Connections of type `launch_kubernetes`: pods in a namespace of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch.hooks.extras import LaunchOptions
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection, KubernetesOpts

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler

__all__ = ["KubernetesLaunchHook"]


class KubernetesLaunchHook(LaunchHook):
    """Pods of a cluster; the extras are the fields of `KubernetesConnection` and `KubernetesOpts`.

    Args:
        launch_conn_id: the connection.
    """

    default_conn_name = "launch_kubernetes_default"
    conn_type = "launch_kubernetes"
    hook_name = "Launch (Kubernetes)"
    backend: ClassVar[str] = "kubernetes"

    def __init__(self, launch_conn_id: str = default_conn_name) -> None:
        super().__init__(launch_conn_id)

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        places = ("kubeconfig_path", "context", "namespace")
        return self._typed_options("kubernetes", extras, KubernetesConnection, KubernetesOpts, places)

    def test_connection(self) -> tuple[bool, str]:
        """Check the extras, and ask the cluster whether we may do all that we have to do; nothing is created."""
        try:
            scheduler = cast("KubernetesScheduler", self.scheduler)
            missing = scheduler.missing_rights()
            place = f"namespace {scheduler.cluster.namespace!r} of {scheduler.cluster.url}"
        except Exception as error:  # noqa: BLE001 - Airflow shows whatever is wrong as text
            return False, str(error)
        finally:
            self.close()
        if missing:
            return False, (
                f"the credentials lack rights in {place}: {', '.join(missing)}; "
                f"whoever runs the cluster must grant them, docs/kubernetes.md has the Role"
            )
        return True, f"extras are valid; {place} answered, and lets us do all that apps need; nothing was launched"
