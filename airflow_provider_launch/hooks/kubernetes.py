"""Connections of type `launch_kubernetes`: pods in a namespace of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch.hooks.extras import LaunchOptions
from airflow_provider_launch.hooks.launch import BuiltinLaunchHook
from airflow_provider_launch.specs.errors import SchedulerRejectedError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler

__all__ = ["KubernetesLaunchHook"]


class KubernetesLaunchHook(BuiltinLaunchHook):
    """Pods of a cluster; the extras are the fields of `KubernetesConnection` and `KubernetesOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "kubernetes"

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        from airflow_provider_launch._airflow import conf

        if extras.get("kubeconfig_secret") and not conf.getboolean("launch", "allow_kubeconfig_exec", fallback=False):
            from airflow_provider_launch.schedulers.kubernetes.access import refuse_programs

            refuse_programs(str(extras["kubeconfig_secret"]))
        return super()._options(extras)

    def _probe(self) -> str:
        """Ask the cluster for all required permissions; creates nothing."""
        scheduler = cast("KubernetesScheduler", self.scheduler)
        missing = scheduler.missing_rights()
        namespace = f"namespace {scheduler.cluster.namespace!r} of {scheduler.cluster.url}"
        if missing:
            raise SchedulerRejectedError(
                f"the credentials lack rights in {namespace}: {', '.join(missing)}; "
                f"ask the administrator of the cluster to grant them, docs/kubernetes.md has the Role"
            )
        return f"{namespace} answered and grants all rights that apps need; nothing was launched"
