"""Finds replicas whose pods were removed from outside, and pods and Jobs in which only sidecars run, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod, newest_attempts
from airflow_provider_launch.schedulers.kubernetes.record import Plan, PlannedRole

REMOVED = "its pod was removed from outside, and its log with it"


def succeeded_without_pod(app: App, plan: Plan, pods: Iterable[Pod]) -> list[tuple[PlannedRole, Job, int]]:
    """Return the replicas that count as succeeded but whose pod was removed, before or after their end."""
    return list(_without_pod(app, plan, pods, lambda job: job.completed))


def failed_without_pod(app: App, plan: Plan, pods: Iterable[Pod]) -> list[tuple[PlannedRole, Job, int]]:
    """Return the replicas that have failed because their last pods were removed."""
    return list(_without_pod(app, plan, pods, lambda job: job.failed))


def _without_pod(
    app: App, plan: Plan, pods: Iterable[Pod], indexes: Callable[[Job], Collection[int]]
) -> Iterator[tuple[PlannedRole, Job, int]]:
    newest = newest_attempts(pods, app.attempt)
    for role in plan.roles:
        job = app.jobs.get((role.slug, app.attempt))
        if job is None or job.ended is not None:
            continue  # a Job that the launcher ends may lose its pods
        for k in sorted(indexes(job)):
            pod = newest.get((role.slug, k))
            # For a replica with retries the last attempt counts.
            if pod is None or (k in job.failed and pod.attempt < job.retries and pod.phase != "Failed"):
                yield role, job, k
            elif k in job.completed and pod.deleting:
                yield role, job, k  # it will be gone in a moment


def first_killed(
    missing: Sequence[tuple[PlannedRole, Job, int]],
    pods: Iterable[Pod],
    events: Callable[[], Iterable[Mapping[str, Any]]],
) -> tuple[PlannedRole, int] | None:
    """Return the first replica without a pod whose program ran when its pod was removed; None if there is none.

    `events` returns those with reason `Killing`, which a node writes when it stops a running container.
    """
    stopped = {(pod.role, pod.replica) for pod in pods if pod.was_stopped_outside}
    for role, _, k in missing:
        if (role.slug, k) in stopped:
            return role, k
    names = {str((event.get("involvedObject") or {}).get("name") or "") for event in events()}
    for role, job, k in missing:
        if any(name.startswith(f"{job.name}-{k}-") for name in names):
            return role, k
    return None


def pods_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Pod]:
    """Return the pods to stop because their programs have failed and only sidecars run."""
    newest = newest_attempts(pods, app.attempt).values()
    return [pod for pod in newest if pod.exit_code and pod.deadline != 1 and _is_due(pod, plan, now)]


def jobs_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Job]:
    """Return the Jobs to end as succeeded because only sidecars run."""
    newest = newest_attempts(pods, app.attempt)
    found = []
    for role in plan.roles:
        job = app.jobs.get((role.slug, app.attempt))
        if job is None or job.ended is not None or job.finished or job.suspended or job.failing:
            continue
        of_job = {k: newest.get((role.slug, k)) for k in range(role.num_replicas)}
        kept = {k for k, pod in of_job.items() if pod and pod.exit_code == 0 and _is_due(pod, plan, now)}
        wanted = {0} if plan.decides(job.role) else set(of_job)
        if kept & wanted and wanted <= kept | job.completed:
            found.append(job)
    return found


def _is_due(pod: Pod, plan: Plan, now: float) -> bool:
    """Return whether only sidecars run in a pod, for longer than their grace."""
    return bool(pod.kept_by) and not pod.deleting and now - (pod.finished or now) >= plan.sidecar_grace_s
