"""Reads why apps wait or were killed: from events of their pods, and from Kueue, which may hold them back.

Both need permissions of their own. Without them only the reason is missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import incidents_text
from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.kubernetes.catalog import CachedApp
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.containers import epoch
from airflow_provider_launch.schedulers.kubernetes.naming import Label, group_name
from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod
from airflow_provider_launch.schedulers.kubernetes.record import Plan
from airflow_provider_launch.specs.errors import LaunchError, SchedulerRejectedError

_ASKED_S, _ASKED_LATER_S = 10.0, 30.0
"""Interval for reading the events of one app, without and with a reason."""
_SECOND_S = 1.0
"""The server's times are whole seconds."""
_SILENT_S = 5.0
"""Seconds that a pod may wait without a reason before its events are read."""
_TEXT = 500


class PodEvents:
    """Reads the newest events of the pods and Jobs of one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def reason_to_wait(self, app: App, cached: CachedApp, now: float) -> str:
        """Return why an app waits if its pods show no reason; empty if unknown."""
        for job in app.jobs.values():
            if job.suspended:
                return HELD
        for job in app.jobs.values():
            if not job.active and job.attempt == app.attempt and job.started is not None:
                return self.reason_of(cached, job)
        waiting = [
            pod for pod in cached.pods if pod.app_attempt == app.attempt and not pod.has_started and not pod.over
        ]
        waiting = [pod for pod in waiting if now - pod.created > _SILENT_S]
        return (self.reason_of(cached, waiting[0]) or _not_taken(waiting[0])) if waiting else ""

    def cause_of_kill(self, pod: Pod) -> str:
        """Return why the program of a pod was killed; empty if unknown or not permitted."""
        with contextlib.suppress(LaunchError):
            return self._newest(f"involvedObject.uid={pod.uid},type=Warning")[0]
        return ""

    def killed(self) -> Iterable[Mapping[str, Any]]:
        """Return the events of containers that nodes have stopped; empty if not permitted."""
        with contextlib.suppress(SchedulerRejectedError):
            return self._cluster.list("events", "", fields="involvedObject.kind=Pod,reason=Killing")[0]
        return ()

    def reason_of(self, cached: CachedApp, of: Job | Pod, since: float = 0.0) -> str:
        """Return why a Job has no pod, or a pod does not start; empty if unknown.

        `cached` keeps the answer for some seconds. Events older than `since` are about an earlier wait.
        """
        pause_s = _ASKED_LATER_S if cached.wait_reason else _ASKED_S
        if cached.wait_reason_of != of.uid or time.monotonic() - cached.wait_reason_at > pause_s:
            if cached.wait_reason_of != of.uid:
                cached.wait_reason = ""
            cached.wait_reason_at, cached.wait_reason_of = time.monotonic(), of.uid
            fields = f"involvedObject.uid={of.uid}"
            try:
                # Read all events of a pod: if the newest one is normal, an older warning no longer applies.
                text, kind, at = self._newest(f"{fields},reason=FailedCreate" if isinstance(of, Job) else fields)
                cached.wait_reason = text if kind != "Normal" and at >= since - _SECOND_S else ""
            except SchedulerRejectedError as error:
                cached.wait_reason = f"the reason is unknown: {error}"[:_TEXT]
            except LaunchError:
                pass  # only the reason is missing; the state is known
        return cached.wait_reason

    def _newest(self, fields: str) -> tuple[str, str, float]:
        """Return text, type and time of the newest event."""
        events, _ = self._cluster.list("events", "", fields=fields)
        newest = max(events, key=_time, default=None)
        if newest is None:
            return "", "", 0.0
        text = " ".join(f"{newest.get('reason', '')}: {newest.get('message', '')}".split())[:_TEXT]
        return text, newest.get("type", ""), epoch(_time(newest)) or 0.0


def _not_taken(pod: Pod) -> str:
    """Return why a pod without a reason or events waits; empty if it has a reason."""
    if pod.reason:
        return ""
    if pod.node:
        return f"node {pod.node!r} has not taken the pod"
    return f"no scheduler has taken the pod: is there a scheduler {pod.scheduler!r} in the cluster?"


def _time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((text for text in times if text), event["metadata"].get("creationTimestamp") or "")


HELD = "suspended: a queue, or a person, holds it back"
"""Why a Job without pods waits."""


def incidents(app: App, plan: Plan, newest: Mapping[tuple[str, int], Pod]) -> str:
    """Return the incidents that users should see while an app runs; empty if there are none."""
    if any(job.suspended for (_, attempt), job in app.jobs.items() if attempt == app.attempt):
        return HELD
    names = plan.role_names
    found = []
    for pod in sorted(newest.values(), key=lambda pod: (pod.role, pod.replica)):
        replica = f"{names.get(pod.role, pod.role)}/{pod.replica}"
        found += [f"{replica} {text}" for text in _of_pod(pod, plan)]
    return incidents_text(found)


def _of_pod(pod: Pod, plan: Plan) -> Iterator[str]:
    if pod.disruption and not pod.over:
        yield f"is preempted ({pod.disruption})"
    elif pod.disruption:
        fails = plan.fails_on_disruption or pod.role in plan.max_disruptions
        yield f"was preempted ({pod.disruption}){'' if fails else ', and will restart'}"
    elif pod.disruptions:
        again = "has restarted" if pod.has_started else "waits to restart"
        wait = "" if pod.has_started or not pod.reason else f": {pod.reason}"
        yield f"was preempted (restart {pod.disruptions}), and {again}{wait}"
    if pod.kept_by and pod.exit_code is not None:
        which = ", ".join(map(repr, pod.kept_by))
        containers = f"container {which} still runs" if len(pod.kept_by) == 1 else f"containers {which} still run"
        stopped = "it is" if len(pod.kept_by) == 1 else "they are"
        yield (
            f"has ended with exit code {pod.exit_code}, and {containers}; {stopped} stopped by "
            f"sidecar_grace_s={plan.sidecar_grace_s:g}"
        )


GATED = "SchedulingGated"
"""The reason of a pod that Kueue or another controller holds back."""
_GATE = "kueue.x-k8s.io/admission"


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
