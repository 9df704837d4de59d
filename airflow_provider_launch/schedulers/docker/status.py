"""Builds the `DescribeAppResponse` of an app from its assessment and its containers, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from airflow_provider_launch.schedulers._kit.endings import ending_reason, ending_text, incidents_text
from airflow_provider_launch.schedulers.docker.containers import App, Container, Detail, end_of, exit_code_of
from airflow_provider_launch.schedulers.docker.reconcile import Assessment
from airflow_provider_launch.schedulers.docker.request import DockerRequest
from airflow_provider_launch.schedulers.responses import PHASE_STATES, DescribeAppResponse, app_response
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus

_NS = 1_000_000_000


def response_from(
    app: App,
    assessment: Assessment,
    details: Mapping[str, Detail],
    hostname: str,
    request: DockerRequest | None,
    ended_at: Mapping[str, int] = MappingProxyType({}),
) -> DescribeAppResponse:
    """Return the response for one app.

    `details` are those of inspected containers; `ended_at` has the epoch seconds of the ends of others. Without
    `request` roles and metadata stay empty.
    """
    number = app.app_attempt()
    by_role: dict[str, list[ReplicaStatus]] = {}
    restarts = number
    for (role, k), phase in assessment.phases.items():
        attempts = [c for c in app.attempts.get((role, k), []) if c.app_attempt == number]
        newest = attempts[-1] if attempts else None
        if newest is not None:
            restarts += newest.attempt + _outside_restarts(newest, details.get(newest.id))
        status = _replica(role, k, phase, newest, details, hostname, assessment.state)
        if newest is not None and status.end_time is None and not newest.live:
            status.end_time = ended_at.get(newest.id)
        by_role.setdefault(role, []).append(status)
    msg = assessment.msg
    if msg == NONE and assessment.state in {AppState.RUNNING, AppState.SUCCEEDED}:
        msg = incidents(app, details) or NONE
    return app_response(
        app.app_id,
        assessment.state,
        msg=msg,
        restarts=restarts,
        replicas=by_role,
        app=request.app_def if request else None,
    )


def _replica(
    role: str,
    k: int,
    phase: Phase | None,
    newest: Container | None,
    details: Mapping[str, Detail],
    hostname: str,
    state: AppState,
) -> ReplicaStatus:
    shown = AppState.UNKNOWN if phase is None else PHASE_STATES[phase]
    if phase is Phase.WAITING and state is AppState.SUBMITTED:
        shown = AppState.SUBMITTED
    if shown in {AppState.SUBMITTED, AppState.PENDING} and is_terminal(state):
        shown = AppState.CANCELLED  # it was never started and will never be
    status = ReplicaStatus(id=k, state=shown, role=role, hostname=hostname)
    if phase is None:
        lost = "lost: its container was removed from outside"
        return replace(status, reason="deleting: its container is being removed" if newest else lost)
    if newest is None:
        return status
    detail = details.get(newest.id)
    status.num_restarts = newest.app_attempt + newest.attempt + _outside_restarts(newest, detail)
    status.image_id = newest.image_id or None
    has_failed_start = detail is not None and newest.unstarted and detail.error
    status.exit_code = detail.exit_code if detail and has_failed_start else exit_code_of(newest, detail)
    if not newest.unstarted:
        status.start_time = newest.created
    if detail is not None and not newest.unstarted:
        status.start_time = detail.started // _NS or newest.created
        status.end_time = detail.finished // _NS or None
    status.reason = _reason(phase, newest, detail)
    return status


def _outside_restarts(container: Container, detail: Detail | None) -> int:
    return max(container.restarts, detail.restarts if detail else 0)


def _reason(phase: Phase | None, newest: Container, detail: Detail | None) -> str | None:
    end = end_of(newest, detail)
    if newest.state == "dead" and not (end.out_of_memory or end.start_error):
        return "the engine could not clean up its container"
    otherwise = "stopped" if phase is Phase.STOPPED else "deleting" if newest.removing else None
    return ending_reason(end if phase is Phase.FAILED else end._replace(note=""), otherwise)


def incidents(app: App, details: Mapping[str, Detail]) -> str:
    """Return incidents of a running app as its message; empty if there are none."""
    number = app.app_attempt()
    found = []
    for (role, k), attempts in app.attempts.items():
        mine = [container for container in attempts if container.app_attempt == number]
        found += [f"{role}/{k} {text}" for text in _of_replica(mine, details)]
    return incidents_text(found)


def _of_replica(attempts: list[Container], details: Mapping[str, Detail]) -> Iterator[str]:
    if not attempts:
        return
    newest = attempts[-1]
    if newest.state == "paused":
        yield "is paused"
    if newest.unhealthy and newest.live:
        yield "is unhealthy: the health check of its image fails"
    if newest.renamed:
        yield f"was renamed to {newest.name!r}"
    detail = details.get(newest.id)
    if newest.restarts or (detail is not None and detail.restarts):
        yield "was restarted from outside, so its program ran more than once"
    if len(attempts) > 1 and newest.live:
        before = attempts[-2]
        how = ending_text(end_of(before, details.get(before.id)))
        yield f"failed: {how}; it was started again (attempt {newest.attempt})"
