"""Which pods and Jobs are kept by sidecars alone, after the end of their programs: pure.

A pod whose program has failed is stopped; its Job counts that as the failure that it is. One whose program ended well
cannot be stopped alone: Kubernetes would count that as a failure, too, and might run the program again. So its Job is
ended as a whole, once each of its replicas has ended well.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod, newest_attempts
from airflow_provider_launch.schedulers.kubernetes.record import Plan


def pods_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Pod]:
    """Return the pods to stop: their programs have failed."""
    newest = newest_attempts(pods, app.attempt).values()
    return [pod for pod in newest if pod.exit_code and pod.deadline != 1 and _is_due(pod, plan, now)]


def jobs_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Job]:
    """Return the Jobs to end as succeeded."""
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
    """Return whether only sidecars run in a pod, and for long enough."""
    return bool(pod.kept_by) and not pod.deleting and now - (pod.finished or now) >= plan.sidecar_grace_s
