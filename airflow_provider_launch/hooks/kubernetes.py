"""Connections of type `launch_kubernetes`: pods in a namespace of a Kubernetes cluster."""

from __future__ import annotations

from typing import ClassVar

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

__all__ = ["KubernetesLaunchHook"]


class KubernetesLaunchHook(BuiltinLaunchHook):
    """Pods of a cluster; the extras are the fields of `KubernetesConnection` and `KubernetesOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "kubernetes"
