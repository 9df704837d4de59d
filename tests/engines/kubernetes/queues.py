"""Queues of Kueue for tests: a flavor, a ClusterQueue with a quota of memory and a LocalQueue of one namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, CoreV1Api, CustomObjectsApi

from airflow_provider_launch.schedulers.kubernetes.claims import quantity
from tests.engines.kubernetes.kueue import MANAGED

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
PLACE_MB = 64
"""Request of a replica of a test: memory, because nodes have more of it than CPUs, which other tests need."""
PRIORITIES = {"launch-low": 1, "launch-high": 1000}


def create(client: ApiClient, namespace: str, name: str, places: int) -> str:
    """Make the LocalQueue `name` with its own quota, and return the name of its ClusterQueue."""
    cluster_queue = flavor = f"queue-{namespace}"
    for priority, value in PRIORITIES.items():
        _create(client, "workloadpriorityclasses", {"metadata": {"name": priority}, "value": value})
    _create(client, "resourceflavors", {"metadata": {"name": flavor}})
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": _groups(flavor, places),
    }
    _create(client, "clusterqueues", {"metadata": {"name": cluster_queue}, "spec": spec})
    local = {"metadata": {"name": name}, "spec": {"clusterQueue": cluster_queue}}
    CustomObjectsApi(client).create_namespaced_custom_object(
        GROUP, VERSION, namespace, "localqueues", _typed("LocalQueue", local)
    )
    return cluster_queue


def of_the_example(kubeconfig: Path) -> str:
    """Make the namespace and the queue of the example `launch_kubernetes_gang`; return a description of the objects."""
    namespace, name = "launch-gang", "team"
    with config.new_client_from_config(str(kubeconfig)) as client:
        try:
            CoreV1Api(client).create_namespace({"metadata": {"name": namespace, "labels": {MANAGED: "true"}}})
            create(client, namespace, name, places=3)
        except ApiException as error:
            if error.status != 409:
                raise
    return f"queue {name!r} in namespace {namespace!r}"


def delete(client: ApiClient, cluster_queue: str) -> None:
    """Remove a ClusterQueue and its flavor; Kueue keeps them while they are in use."""
    for plural in ("clusterqueues", "resourceflavors"):
        try:
            CustomObjectsApi(client).delete_cluster_custom_object(GROUP, VERSION, plural, cluster_queue)
        except ApiException as error:
            if error.status != 404:
                raise


def set_places(client: ApiClient, cluster_queue: str, places: int) -> None:
    """Change the quota of a ClusterQueue."""
    change = {"spec": {"resourceGroups": _groups(cluster_queue, places)}}
    CustomObjectsApi(client).patch_cluster_custom_object(GROUP, VERSION, "clusterqueues", cluster_queue, change)


def hold(client: ApiClient, namespace: str, name: str) -> None:
    """Stop the LocalQueue."""
    change = {"spec": {"stopPolicy": "Hold"}}
    CustomObjectsApi(client).patch_namespaced_custom_object(GROUP, VERSION, namespace, "localqueues", name, change)


def used_places(client: ApiClient, cluster_queue: str) -> int:
    """Return the reserved part of the quota."""
    found = CustomObjectsApi(client).get_cluster_custom_object(GROUP, VERSION, "clusterqueues", cluster_queue)
    reserved = found.get("status", {}).get("flavorsReservation") or []
    totals = [resource.get("total", "0") for flavor in reserved for resource in flavor["resources"]]
    return sum(int(quantity(str(total)) / quantity(f"{PLACE_MB}Mi")) for total in totals)


def _groups(flavor: str, places: int) -> list[dict[str, Any]]:
    quota = {"name": flavor, "resources": [{"name": "memory", "nominalQuota": f"{places * PLACE_MB}Mi"}]}
    return [{"coveredResources": ["memory"], "flavors": [quota]}]


def _create(client: ApiClient, plural: str, body: dict[str, Any]) -> None:
    kinds = {
        "clusterqueues": "ClusterQueue",
        "resourceflavors": "ResourceFlavor",
        "workloadpriorityclasses": "WorkloadPriorityClass",
    }
    try:
        CustomObjectsApi(client).create_cluster_custom_object(GROUP, VERSION, plural, _typed(kinds[plural], body))
    except ApiException as error:
        if error.status != 409:
            raise


def _typed(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, **body}
