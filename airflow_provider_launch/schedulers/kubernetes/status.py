"""Build the `DescribeAppResponse` of an app from its state and its pods, without I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_reason, ending_text, failure_message
from airflow_provider_launch.schedulers.kubernetes.containers import MAX_MESSAGE, STARTING, failed_among
from airflow_provider_launch.schedulers.kubernetes.objects import App, Condition, Job, Pod, newest_attempts
from airflow_provider_launch.schedulers.kubernetes.pod_events import incidents
from airflow_provider_launch.schedulers.kubernetes.reconcile import REMOVED, SIDECARS, Assessment, failed_without_pod
from airflow_provider_launch.schedulers.kubernetes.record import Plan, PlannedRole
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest
from airflow_provider_launch.schedulers.kubernetes.result_container import CANNOT_START
from airflow_provider_launch.schedulers.kubernetes.result_container import NAME as RESULT_CONTAINER
from airflow_provider_launch.schedulers.responses import DescribeAppResponse, app_response
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import UntrustedError, clean_text, parse_json

_TEXT, _MAX_ERROR = 500, 64 * 1024

Newest = dict[tuple[str, int], Pod]


def response_from(
    app: App, plan: Plan, assessment: Assessment, pods: Iterable[Pod], request: KubernetesRequest | None
) -> DescribeAppResponse:
    """Return the response for one app; `pods` include those of earlier attempts, and `request` may be unknown."""
    newest = newest_attempts(pods, app.attempt)
    if assessment.state is AppState.PENDING and any(pod.has_started for pod in newest.values()):
        # The counters of a Job lag a second behind its pods.
        assessment = replace(assessment, state=AppState.RUNNING)
    replicas = {}
    for role in plan.roles:
        job = app.jobs.get((role.slug, app.attempt))
        replicas[role.name] = [
            _replica(
                role,
                k,
                job,
                newest.get((role.slug, k)),
                assessment.state,
                has_leader=plan.leader or role.policy.is_service,
            )
            for k in range(role.num_replicas)
        ]
    msg = assessment.msg
    if assessment.state is AppState.FAILED and msg == NONE:
        msg = cause_of(app, plan, newest)
    elif assessment.state is AppState.PENDING and msg == NONE:
        msg = waits_for(newest.values()) or NONE
    elif assessment.state is AppState.RUNNING and msg == NONE:
        msg = incidents(app, plan, newest) or NONE
    failed = _first_failed(app, newest)
    response = app_response(
        app.app_id,
        assessment.state,
        msg=msg,
        restarts=app.attempt
        + sum(pod.attempt + pod.disruptions for pod in newest.values())
        + sum(job.preemptions for (_, attempt), job in app.jobs.items() if attempt == app.attempt),
        replicas=replicas,
        app=request.app_def if request else None,
    )
    # The app is stuck if one replica is stuck, even a restarted one, because the others wait for it.
    response.is_stuck = assessment.state in {AppState.PENDING, AppState.RUNNING} and any(
        map(_is_stuck, newest.values())
    )
    names = plan.role_names
    response.early_logs = frozenset(
        (names.get(pod.role, pod.role), pod.replica)
        for pod in newest.values()
        if not pod.has_started and any(one.has_started for one in pod.others if one.name in plan.container_logs)
    )
    if assessment.state is AppState.FAILED:
        first = response.to_status().first_failed_replica()
        own = first.structured_error_msg if first else NONE
        response.structured_error_msg = own if own != NONE or failed is None else _error_document(failed)
    return response


def cause_of(app: App, plan: Plan, newest: Newest) -> str:
    """Return which replica failed first, and why."""
    names = plan.role_names
    if pod := _first_failed(app, newest):
        name = names.get(pod.role, pod.role)
        return failure_message(name, pod.replica, ending_text(_end_of(pod)), pod.app_attempt + pod.attempt)
    for role, job, k in failed_without_pod(app, plan, newest.values()):
        if job.failing is None or job.failing.reason != "PodFailurePolicy":
            return failure_message(role.name, k, REMOVED, app.attempt)
    for role in plan.roles:
        found = app.jobs.get((role.slug, app.attempt))
        if found and (failing := found.failing):
            return f"{role.name} failed: {_condition_text(failing)}"
    return NONE


def ending_of(pod: Pod) -> str:
    """Return how an attempt ended."""
    return "stopped" if pod.stopped else ending_text(_end_of(pod))


_STUCK = frozenset({"CreateContainerConfigError", "InvalidImageName", "ErrImageNeverPull"})
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff"})
_REFUSED = re.compile(
    r"(?<![\w.-])(?:not found|denied|unauthorized|authorization|forbidden|manifest unknown|no match for platform)"
    r"(?![.:-]*\w)",
    re.IGNORECASE,
)
"""Words in the error of a registry that mean that another pull cannot succeed; any other error may be temporary."""
_NAMED = re.compile(r'"[^"]*"|(?<!\S)(?:lookup|tag|denied for) [^\s,]+|connect: permission denied')
"""Names of images and registries in a message; names with a slash are found by the slash.

Also the refusal of a socket of the node, which is not the registry's.
"""
_MISSING_SOURCE = re.compile(
    r'\b(?:secret|configmap|persistentvolumeclaim) "[^"]*" not found|references non-existent \w+ key'
)


def _is_stuck(pod: Pod) -> bool:
    """Return whether a pod cannot start until a user or administrator fixes the cause."""
    if pod.has_started or pod.over:
        return False
    if any(one.name == RESULT_CONTAINER and one.reason in CANNOT_START for one in pod.others):
        return True  # it runs only our script
    return pod.reason in _STUCK or (pod.reason in _PULLS and is_refused_pull(pod.message or ""))


def is_refused_pull(message: str) -> bool:
    """Return whether a registry has refused a pull, according to the words of the message that are not names."""
    # Remove only names: an image may be called `denied`, and the registry's own word must stay.
    rest = _NAMED.sub(lambda found: "denied" if found[0].startswith("denied") else " ", message[:MAX_MESSAGE])
    return bool(_REFUSED.search(" ".join(" " if "/" in word else word for word in rest.split())))


def is_missing_source(reason: str) -> bool:
    """Return whether the newest event of a pod reports a missing Secret, ConfigMap or claim."""
    return reason.startswith("FailedMount: ") and bool(_MISSING_SOURCE.search(reason))


class WaitingPart(NamedTuple):
    """A part of a started app that waits."""

    role: str
    replica: int | None
    """None if several replicas of the role wait, or it is not known which."""
    source: Pod | Job
    """The pod that waits, or the Job that has not created it."""
    since: float
    """Epoch seconds since when it waits."""


def pending_part(app: App, plan: Plan, pods: Iterable[Pod]) -> WaitingPart | None:
    """Return the first part of a started app that waits; None if nothing waits."""
    newest = newest_attempts(pods, app.attempt)
    names = plan.role_names
    for (slug, k), pod in sorted(newest.items()):
        if not pod.has_started and not pod.over and not pod.deleting:
            return WaitingPart(names.get(slug, slug), k, pod, pod.created)
    for slug, job in sorted((slug, job) for (slug, attempt), job in app.jobs.items() if attempt == app.attempt):
        if job.finished or job.suspended or job.ended or job.failing or job.started is None:
            continue
        done = [pod for (role, k), pod in newest.items() if role == slug and k not in job.completed and pod.over]
        missing = job.completions - job.active - len(job.completed)
        if missing > 0 and (done or not any(role == slug for role, _ in newest)):
            since = max((pod.finished or pod.created for pod in done), default=job.started)
            return WaitingPart(names.get(slug, slug), done[0].replica if len(done) == 1 else None, job, since)
    return None


def waits_for(pods: Iterable[Pod]) -> str:
    """Return why the first waiting pod does not start; empty if no pod has a reason."""
    for pod in pods:
        if not pod.has_started and not pod.over and pod.reason not in STARTING:
            return f"{pod.reason}: {pod.message}"[:_TEXT].rstrip(": ")
    return ""


def killed_pod(app: App, pods: Iterable[Pod]) -> Pod | None:
    """Return the pod that made the app fail, if its program was killed for an unknown reason."""
    pod = _first_failed(app, newest_attempts(pods, app.attempt))
    if pod is None:
        return None
    end = _end_of(pod)
    return pod if end.signal_name and not (end.out_of_memory or end.preempted or end.note) else None


def _first_failed(app: App, newest: Newest) -> Pod | None:
    failed = []
    for (slug, replica), pod in newest.items():
        job = app.jobs.get((slug, app.attempt))
        if pod.phase == "Failed" and not pod.stopped and not (job and replica in job.completed):
            failed.append(pod)
    return min(failed, key=lambda pod: (pod.finished or pod.created, pod.role, pod.replica), default=None)


def _condition_text(failing: Condition) -> str:
    if failing.reason == "PodFailurePolicy" and re.search("DisruptionTarget|TerminationTarget", failing.message):
        return f"preempted: {failing.message}"[:_TEXT]
    return f"{failing.reason}: {failing.message}"[:_TEXT].rstrip(": ")


def _end_of(pod: Pod) -> ReplicaEnd:
    note = f"{pod.reason}: {pod.message}"[:_TEXT].rstrip(": ")
    if pod.exit_code is None:
        note = f"{pod.reason or 'unknown reason'}: {pod.message}"[:_TEXT].rstrip(": ")
    side_container = failed_among(pod.others) if not (pod.exit_code or pod.disruption) else None
    evicted = note if pod.reason == "Evicted" else ""
    return ReplicaEnd(
        pod.exit_code,
        # A program with exit code 0 has not failed, even if a child process was killed.
        out_of_memory=pod.ended_by == "OOMKilled" and bool(pod.exit_code),
        start_error=" ".join(pod.end_message.split())[:_TEXT] if pod.ended_by == "StartError" else "",
        preempted=pod.disruption or "",
        # An eviction is the cause; the signal to the program only follows from it.
        other_failure=evicted or (side_container.end if side_container else ""),
        last_lines=side_container.last_lines if side_container and not evicted else "",
        note=note if pod.reason or pod.exit_code is None else "",
    )


def _replica(
    role: PlannedRole, k: int, job: Job | None, pod: Pod | None, state: AppState, *, has_leader: bool
) -> ReplicaStatus:
    status = ReplicaStatus(
        id=k, state=_state(job, pod, k, state, has_leader=has_leader), role=role.name, hostname=pod.node if pod else ""
    )
    if pod is None:
        if job and k in job.completed:
            status.exit_code = 0
        return status
    status.num_restarts = pod.number
    status.exit_code = pod.exit_code
    status.image_id = pod.image_id or None
    status.start_time = int(pod.started) if pod.started else None
    status.end_time = int(pod.finished) if pod.finished else None
    status.reason = _reason(pod, status.state)
    if status.state is AppState.FAILED or (status.state is AppState.CANCELLED and state is AppState.FAILED):
        status.structured_error_msg = _error_document(pod)
    return status


def _state(  # noqa: PLR0911 - a table
    job: Job | None, pod: Pod | None, k: int, state: AppState, *, has_leader: bool
) -> AppState:
    if (job and k in job.completed) or (pod and pod.phase == "Succeeded"):
        return AppState.SUCCEEDED
    if job and job.ended == SIDECARS and pod and pod.over and pod.exit_code == 0:
        return AppState.SUCCEEDED
    if state is AppState.SUCCEEDED:
        return AppState.CANCELLED if has_leader else AppState.SUCCEEDED
    if pod is not None and pod.stopped:
        return AppState.CANCELLED  # the launcher stopped it, so its exit code does not matter
    has_ended = is_terminal(state) or (job is not None and (k in job.failed or "Failed" in job.conditions))
    if pod is not None and pod.phase == "Failed" and has_ended:
        return AppState.FAILED
    if is_terminal(state):
        return AppState.CANCELLED  # its pod was removed, or never created
    if pod is not None and (pod.has_started or pod.phase == "Failed"):
        return AppState.RUNNING
    return AppState.SUBMITTED if state is AppState.SUBMITTED else AppState.PENDING


def _reason(pod: Pod, state: AppState) -> str | None:
    end = _end_of(pod)._replace(note="")
    if not end.start_error and state in {AppState.PENDING, AppState.SUBMITTED}:
        return waits_for([pod]) or None
    if not end.start_error and pod.stopped:
        return "stopped" if state is not AppState.SUCCEEDED else None
    return ending_reason(end, pod.reason or None)


def _error_document(pod: Pod) -> str:
    """Return the error that the program wrote to `TORCHELASTIC_ERROR_FILE`.

    The result of the program is in the same termination message, so only a document with a `message` is an error.
    """
    text = clean_text(pod.end_message or "")
    if not text or not pod.exit_code or pod.ended_by == "StartError":
        return NONE
    try:
        document = parse_json(text, _MAX_ERROR)
    except UntrustedError:
        return text  # the last lines of its log, if an overlay requests them
    return text if isinstance(document, dict) and "message" in document else NONE
