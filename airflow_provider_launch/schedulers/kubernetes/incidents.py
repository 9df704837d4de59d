"""What has happened to an app that runs, or is to run again: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_launch.schedulers._kit.endings import incidents_text
from airflow_provider_launch.schedulers.kubernetes.objects import App, Pod
from airflow_provider_launch.schedulers.kubernetes.record import Plan

HELD = "suspended: a queue, or a person, holds it back"
"""Why a Job without pods waits."""


def incidents(app: App, plan: Plan, newest: Mapping[tuple[str, int], Pod]) -> str:
    """Return what users should know of an app while it runs; empty: nothing has happened."""
    if any(job.suspended for (_, attempt), job in app.jobs.items() if attempt == app.attempt):
        return HELD
    names = plan.titles
    found = []
    for pod in sorted(newest.values(), key=lambda pod: (pod.role, pod.replica)):
        replica = f"{names.get(pod.role, pod.role)}/{pod.replica}"
        found += [f"{replica} {text}" for text in _of_pod(pod, plan)]
    return incidents_text(found)


def _of_pod(pod: Pod, plan: Plan) -> Iterator[str]:
    if pod.disruption and not pod.over:
        yield f"is preempted ({pod.disruption})"
    elif pod.disruption:
        yield f"was preempted ({pod.disruption}){'' if plan.fails_on_disruption else ', and is to begin again'}"
    elif pod.disruptions:
        again = "has begun again" if pod.began else "waits to begin again"
        wait = "" if pod.began or not pod.reason else f": {pod.reason}"
        yield f"was preempted (restart {pod.disruptions}), and {again}{wait}"
    if pod.kept_by and pod.exit_code is not None:
        which = ", ".join(map(repr, pod.kept_by))
        containers = f"container {which} still runs" if len(pod.kept_by) == 1 else f"containers {which} still run"
        stopped = "it is" if len(pod.kept_by) == 1 else "they are"
        yield (
            f"has ended with exit code {pod.exit_code}, and {containers}; {stopped} stopped by "
            f"sidecar_grace_s={plan.sidecar_grace_s:g}"
        )
