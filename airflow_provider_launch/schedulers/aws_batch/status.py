"""Decides the state of an app and the next step of its observer, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import (
    ending_reason,
    ending_text,
    failure_message,
    services_message,
)
from airflow_provider_launch.schedulers.aws_batch.jobs import HOST_LOST, OURS, Replica, has_ended, stopped_outside
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest
from airflow_provider_launch.schedulers.responses import PHASE_STATES, DescribeAppResponse, app_response
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import UntrustedError, parse_int

CANCELLED = f"{OURS}cancelled"
"""Reason for ending a job; the reason is the only field of a job that can be written after its submission."""
# https://docs.aws.amazon.com/batch/latest/userguide/job-queue-blocked.html
_MISCONFIGURED = "MISCONFIGURATION:"
_TIME_LIMIT = f"{OURS}time limit"
_FAILED = f"{OURS}failed"
_SERVICES = f"{OURS}all other roles have succeeded"
_CULPRIT = re.compile(rf"{_FAILED} \[(\d+)\] (.*)", re.DOTALL)


class Action(Enum):
    """The next step of the observer."""

    NOTHING = "nothing"
    TERMINATE = "terminate"
    """End the job, with `Decision.reason`."""
    RESUBMIT = "resubmit"
    """Submit the next attempt of the app."""


@dataclass
class Decision:
    """The state of an app and the next step."""

    state: AppState
    msg: str = NONE
    action: Action = Action.NOTHING
    reason: str = ""
    culprit: int | None = None
    """Number of the replica that made the app fail."""
    replicas: Sequence[Replica] = field(default_factory=list)
    is_stuck: bool = False
    """Whether the job cannot start until a user or administrator fixes the cause."""


def decide(
    request: AwsBatchRequest, attempt: int, job: Mapping[str, Any], replicas: Sequence[Replica], now: float, *,
    cancelled: bool, disrupted: int = 0,
) -> Decision:  # fmt: skip
    """Return the state of the app and the next step, from its current attempt.

    `replicas` have the order of `request.replica_keys`, `now` is AWS's time in epoch seconds, `cancelled` is a mark of
    the record, and `disrupted` the number of earlier attempts that a disruption ended.
    """
    if has_ended(job):
        return _ended(request, attempt, job, replicas, cancelled=cancelled, disrupted=disrupted)
    began = attempt > 0 or any(one.phase is not Phase.WAITING or one.restarts for one in replicas)
    found = Decision(AppState.RUNNING if began else AppState.PENDING, replicas=replicas)
    # A retry of a started app may wait too. The job of an array has another state while its children wait.
    if not began or job["status"] == "RUNNABLE":
        found.msg = _why_waiting(job)
        found.is_stuck = (job.get("statusReason") or "").startswith(_MISCONFIGURED)
    limit_s = request.opts.time_limit_s
    failed = _first_failed(replicas)
    if cancelled:
        found.action, found.reason = Action.TERMINATE, CANCELLED
    elif _only_services_left(request, replicas):
        found.action, found.reason = Action.TERMINATE, _SERVICES
        found.msg = _services_text(request, is_over=False)
    elif limit_s is not None and now - job["createdAt"] / 1000 > limit_s:
        found.action, found.reason = Action.TERMINATE, f"{_TIME_LIMIT} of {limit_s:g} s"
    elif failed is not None and request.layout != "single":
        text = _failure(request, failed, replicas[failed], attempt)
        found.action, found.reason = Action.TERMINATE, f"{_FAILED} [{failed}] {text}"[:1000]
    return found


def _ended(  # noqa: PLR0911 - a table of ends, one return for each
    request: AwsBatchRequest, attempt: int, job: Mapping[str, Any], replicas: Sequence[Replica], *, cancelled: bool,
    disrupted: int,
) -> Decision:  # fmt: skip
    reason = job.get("statusReason") or ""
    if job["status"] == "SUCCEEDED":
        return _succeeded(request, attempt, replicas)
    if reason.startswith(_SERVICES) and _only_services_left(request, replicas):
        return Decision(
            AppState.SUCCEEDED, _services_text(request, is_over=True), replicas=_stopped_services(request, replicas)
        )
    if reason.startswith(CANCELLED):
        return Decision(AppState.CANCELLED, replicas=replicas)
    if reason.startswith(_TIME_LIMIT):
        return Decision(AppState.FAILED, f"ended at its {reason.removeprefix(OURS)}", replicas=replicas)
    if "attempt duration exceeded" in reason:
        return Decision(AppState.FAILED, f"ended at its time limit: {reason}", replicas=replicas)
    named = _CULPRIT.match(reason)
    if outside := stopped_outside(job):
        return Decision(AppState.FAILED, f"stopped from outside ({outside})", replicas=replicas)
    culprit = _named(named[1], len(replicas)) if named else None
    culprit = _first_failed(replicas) if culprit is None else culprit
    if culprit is None:
        text = reason or "AWS Batch gives no reason"
        return Decision(AppState.FAILED, f"the job failed: {text}", replicas=replicas)
    replicas[culprit].phase = Phase.FAILED
    text = _failure(request, culprit, replicas[culprit], attempt)
    found = Decision(AppState.FAILED, text, culprit=culprit, replicas=replicas)
    if request.resubmits and (
        _restarts_after_loss(request, job, replicas, disrupted) or _retries_left(request, culprit, attempt - disrupted)
    ):
        if cancelled:
            return Decision(AppState.CANCELLED, replicas=replicas)
        found.state, found.action = AppState.RUNNING, Action.RESUBMIT
    return found


def was_disrupted(job: Mapping[str, Any], replicas: Sequence[Replica]) -> bool:
    """Return whether the attempt of a multi-node job ended because a host was lost.

    Other nodes fail when they lose a peer, and AWS may report that earlier than the loss of the host.
    """
    reason = job.get("statusReason") or ""
    named = _CULPRIT.match(reason)
    text = named[2] if named else reason
    is_named = text.startswith(HOST_LOST) or (named is not None and f"preempted ({HOST_LOST}" in text)
    return is_named or any(one.end.preempted for one in replicas)


def _restarts_after_loss(
    request: AwsBatchRequest, job: Mapping[str, Any], replicas: Sequence[Replica], disrupted: int
) -> bool:
    """Return whether the attempt ended by a disruption that is not charged."""
    return disrupted < request.max_disruptions and was_disrupted(job, replicas)


def _named(number: str, count: int) -> int | None:
    """Return the number of the replica that a reason names; None if it names none, because a user wrote it."""
    try:
        return parse_int(number, high=count - 1)
    except UntrustedError:
        return None


def _succeeded(request: AwsBatchRequest, attempt: int, replicas: Sequence[Replica]) -> Decision:
    if _only_services_left(request, replicas):
        return Decision(
            AppState.SUCCEEDED, _services_text(request, is_over=True), replicas=_stopped_services(request, replicas)
        )
    left = [number for number in _waited_for(request) if replicas[number].phase is not Phase.SUCCEEDED]
    failed = _first_failed(replicas)
    if failed is not None:
        text = _failure(request, failed, replicas[failed], attempt)
        return Decision(AppState.FAILED, text, culprit=failed, replicas=replicas)
    if left:
        role, k = request.replica_keys[left[0]]
        first = request.replica_keys[0][0]
        return Decision(
            AppState.FAILED,
            f"role {role!r} replica {k} was stopped by AWS Batch, because replica 0 of role {first!r} had ended; "
            f"raise option linger_s, so that replica 0 runs until the others have ended",
            replicas=replicas,
        )
    return Decision(AppState.SUCCEEDED, replicas=replicas)


def _waited_for(request: AwsBatchRequest) -> list[int]:
    """Return the numbers of the replicas that are not services."""
    services = {role.name for role in request.app_def.roles if role.service}
    return [number for number, (role, _) in enumerate(request.replica_keys) if role not in services]


def _only_services_left(request: AwsBatchRequest, replicas: Sequence[Replica]) -> bool:
    """Return whether the app has services, and all other replicas have succeeded."""
    waited_for = _waited_for(request)
    return len(waited_for) < len(replicas) and all(replicas[n].phase is Phase.SUCCEEDED for n in waited_for)


def _stopped_services(request: AwsBatchRequest, replicas: Sequence[Replica]) -> Sequence[Replica]:
    waited_for = _waited_for(request)
    for number, replica in enumerate(replicas):
        if number not in waited_for and replica.phase is not Phase.SUCCEEDED:
            replica.phase = Phase.STOPPED
    return replicas


def _services_text(request: AwsBatchRequest, *, is_over: bool) -> str:
    roles = request.app_def.roles
    waited_for = {role.name: role.num_replicas for role in roles if not role.service}
    return services_message(waited_for, [role.name for role in roles if role.service], is_over=is_over)


def _retries_left(request: AwsBatchRequest, culprit: int, attempt: int) -> bool:
    name, _ = request.replica_keys[culprit]
    role = next(role for role in request.app_def.roles if role.name == name)
    return RetryPolicy(role.retry_policy) is RetryPolicy.APPLICATION and attempt < role.max_retries


def _first_failed(replicas: Sequence[Replica]) -> int | None:
    failed = [(one.ended or 0.0, number) for number, one in enumerate(replicas) if one.phase is Phase.FAILED]
    return min(failed)[1] if failed else None


def _failure(request: AwsBatchRequest, number: int, replica: Replica, attempt: int) -> str:
    return failure_message(*request.replica_keys[number], ending_text(replica.end), attempt + replica.restarts)


def _why_waiting(job: Mapping[str, Any]) -> str:
    reason = job.get("statusReason")
    return f"{job['status']}: {reason}" if reason else NONE


def response_from(request: AwsBatchRequest, attempt: int, decision: Decision) -> DescribeAppResponse:
    """Return the response for one app."""
    by_role: dict[str, list[ReplicaStatus]] = {role.name: [] for role in request.app_def.roles}
    for number, (role, k) in enumerate(request.replica_keys):
        replica = decision.replicas[number] if decision.replicas else Replica()
        by_role[role].append(_status(role, k, replica, attempt, decision.state))
    response = app_response(
        request.app_id,
        decision.state,
        msg=decision.msg,
        restarts=attempt + sum(one.restarts for one in decision.replicas),
        replicas=by_role,
        app=request.app_def,
    )
    response.is_stuck = decision.is_stuck
    return response


def _status(role: str, k: int, replica: Replica, attempt: int, state: AppState) -> ReplicaStatus:
    shown = PHASE_STATES[replica.phase]
    if shown is AppState.PENDING:
        if is_terminal(state):
            shown = AppState.CANCELLED  # never started, and never will be
        elif state in {AppState.SUBMITTED, AppState.UNKNOWN}:
            shown = state
    over = replica.is_over
    return ReplicaStatus(
        id=k,
        state=shown,
        role=role,
        hostname="",
        exit_code=replica.end.exit_code,
        start_time=int(replica.started) if replica.started else None,
        end_time=int(replica.ended) if replica.ended and over else None,
        num_restarts=attempt + replica.restarts,
        reason=ending_reason(replica.end) if replica.phase is Phase.FAILED else None,
    )
