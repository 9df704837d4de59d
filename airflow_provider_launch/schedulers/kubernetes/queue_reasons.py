"""Reads from Kueue why it holds an app back, and how often it has evicted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.kubernetes.naming import Label, group_name
from airflow_provider_launch.specs.errors import LaunchError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.kubernetes.client import Cluster
    from airflow_provider_launch.schedulers.kubernetes.objects import App, Job
    from airflow_provider_launch.schedulers.kubernetes.record import Plan

GATED = "SchedulingGated"
"""The reason of a pod that Kueue or another controller holds back."""
_GATE = "kueue.x-k8s.io/admission"
_TEXT = 500


def is_gated(pod: Mapping[str, Any]) -> bool:
    """Return whether Kueue holds the pod back until its group is admitted."""
    return any(gate.get("name") == _GATE for gate in pod.get("spec", {}).get("schedulingGates") or [])


@dataclass(frozen=True)
class QueueState:
    """The report of a queue about an app that it holds back."""

    reason: str = ""
    """Why it does not let the app start, with the name of the queue; empty if it has no reason yet."""
    evictions: int = 0
    """How often it has evicted the app."""


def queue_state(cluster: Cluster, app: App, plan: Plan) -> QueueState | None:
    """Return the report of the queue; None if it cannot be read now.

    The permission to list Workloads is optional, and a cluster without Kueue has no Workloads.
    """
    jobs = [job for (_, attempt), job in app.jobs.items() if attempt == app.attempt]
    if not jobs:
        return QueueState()
    try:
        found, _ = _workloads(cluster, app, plan, jobs)
    except (LaunchError, NotFoundError):
        return None
    return QueueState(next(filter(None, map(reason_in, found)), ""), max(map(evictions_in, found), default=0))


def _workloads(cluster: Cluster, app: App, plan: Plan, jobs: list[Job]) -> tuple[list[dict[str, Any]], float]:
    if plan.group:
        return cluster.list("workloads", "", fields=f"metadata.name={group_name(app.app_id, app.attempt)}")
    return cluster.list("workloads", f"{Label.WORKLOAD_OF}={jobs[0].uid}")


def evictions_in(workload: Mapping[str, Any]) -> int:
    """Return how often a Workload was evicted, as Kueue counts it since 0.12."""
    counts = ((workload.get("status") or {}).get("schedulingStats") or {}).get("evictions") or []
    return sum(one.get("count", 0) for one in counts)


def reason_in(workload: Mapping[str, Any]) -> str:
    """Return why a Workload is not admitted; empty if it is admitted, or has no reason yet."""
    status = workload.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or []}
    texts = []
    for kind, holds in (("Evicted", "True"), ("QuotaReserved", "False")):
        condition = conditions.get(kind, {})
        if condition.get("status") == holds and condition.get("message"):
            texts.append(condition["message"])
    texts += [
        f"admission check {check.get('name')!r} is {check.get('state')}: {check.get('message', '')}"
        for check in status.get("admissionChecks") or []
        if check.get("state") != "Ready"
    ]
    if not texts or conditions.get("Admitted", {}).get("status") == "True":
        return ""
    queue = (workload.get("spec") or {}).get("queueName", "")
    # Evicted and pending may have the same text.
    return f"queue {queue!r}: {'; '.join(dict.fromkeys(texts))}"[:_TEXT]
