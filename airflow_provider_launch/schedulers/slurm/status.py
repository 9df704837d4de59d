"""Decides the state of an app from its job and record, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text, services_message, signal_in
from airflow_provider_launch.schedulers.responses import DescribeAppResponse, app_response
from airflow_provider_launch.schedulers.slurm.records import Account, Attempt, Job, Record
from airflow_provider_launch.schedulers.slurm.request import CHECK_S, SlurmRequest
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus

LIVE = {
    "PENDING": AppState.PENDING,
    "CONFIGURING": AppState.PENDING,  # the nodes boot
    "REQUEUED": AppState.PENDING,
    "EXPEDITING": AppState.PENDING,  # the same, before all others
    "REQUEUE_HOLD": AppState.PENDING,  # waits for an admin
    "REQUEUE_FED": AppState.PENDING,
    "SPECIAL_EXIT": AppState.PENDING,  # the same
    "RESV_DEL_HOLD": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "COMPLETING": AppState.RUNNING,  # an epilog may still write
    "STAGE_OUT": AppState.RUNNING,
    "RESIZING": AppState.RUNNING,
    "SIGNALING": AppState.RUNNING,
    "SUSPENDED": AppState.RUNNING,  # the nodes are kept, the processes stopped
    "STOPPED": AppState.RUNNING,
}
"""States of a job that has not ended. A state that is neither here nor in `ENDS` comes from a newer Slurm: UNKNOWN."""
ENDS = {
    "COMPLETED": "its record of the end is missing",  # not a success: only the records of replicas show that
    "CANCELLED": "cancelled in Slurm",
    "FAILED": "its job failed",
    "TIMEOUT": "time limit of its job reached",
    "DEADLINE": "deadline of its job reached",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "disrupted: a node was lost",
    "BOOT_FAIL": "disrupted: a node did not boot",
    "PREEMPTED": "disrupted: preempted by another job",
    "REVOKED": "its job was revoked by a sibling cluster",
}
"""Final state of a job to the message. CANCELLED is CANCELLED, the others are FAILED."""
_OURS = {
    "cancel": "cancelled",
    "limit": "time limit reached",
    "TimeLimit": "time limit of its job reached",
    "NodeDown": "disrupted: a node was lost",
    "disruptions": "disrupted: more often than max_disruptions allows",
    "nostart": "Slurm could not start any replica; job.log in its directory shows why",
    "dropped": "disrupted: Slurm has dropped its job",
    "lost": "disrupted: Slurm has lost its job",
    "unstarted": "disrupted: Slurm has lost its job before it started",
}
# Slurm manual, "JOB REASON CODES": https://slurm.schedmd.com/job_reason_codes.html
_STUCK = frozenset(
    {
        "AccountNotAllowed",
        "BadConstraints",  # no node has the requested features
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionConfig",  # the partition has no such nodes
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
    }
)
_STUCK_AT_A_LIMIT = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)\w*")
"""Limits of a single job, which the job exceeds by itself. Limits of a user or group no longer apply when other jobs
end."""
FORGOTTEN = frozenset({"lost", "unstarted"})
"""Reasons of ends for which the accounting of the cluster may have more details."""
_STEPS_SEEN = frozenset({"exit", "nostart", "limit", "TimeLimit"})
"""Reasons that are recorded after srun has seen all replicas end. With other reasons replicas may still run."""
_STOPS_S = 5.0
"""Seconds within which a replica notices the end and records that its program is dead."""
_UNSEEN_S = 60.0
"""Seconds after which a job that Slurm does not list counts as ended, counted from the last change of its file `alive`.
A running job changes that file every 15 s."""


@dataclass(frozen=True)
class Standing:
    """The state of an app as a whole."""

    state: AppState
    reason: str = ""
    """The reason, as in the record of the end."""
    msg: str = NONE
    claim: str = ""
    """For a new end of an unclaimed app: the value with which the observer claims the app, so that no job starts it."""
    is_new: bool = False
    """Whether the end must still be recorded."""
    is_stuck: bool = False
    """Whether it cannot start until a user or administrator fixes the cause."""

    @property
    def end(self) -> str:
        """The text of the recorded end, without the time."""
        return f"{self.state.name},{self.reason}"


def standing(record: Record, jobs: Sequence[Job], now: int, settle_s: float) -> Standing:
    """Return the state of an app from its record and the jobs of its submissions.

    `now` is the time of the login node, which sees a record of another node after `settle_s` at the latest.
    """
    if record.end:
        name, reason = record.end.split(",")[:2]
        return Standing(AppState[name], reason)
    if record.claim in _OURS:
        # The observer that claimed the app was interrupted before it recorded the end.
        state = AppState.CANCELLED if record.claim == "cancel" else AppState.FAILED
        return Standing(state, record.claim, is_new=True)
    if record.claim:
        return _claimed(record, jobs, now, settle_s)
    if record.cancelled:
        return Standing(AppState.CANCELLED, "cancel", claim="cancel", is_new=True)
    return _unclaimed(record, jobs, now, settle_s)


def until_stopped(
    found: Standing, record: Record, request: SlurmRequest, attempts: Sequence[Attempt], now: int
) -> Standing:
    """Return RUNNING for an ended app whose programs may still run on a node that Slurm considers lost.

    These programs stop themselves soon after the end is recorded. If they have not recorded that by then, they are dead
    together with their node.
    """
    if not is_terminal(found.state) or found.reason in _STEPS_SEEN:
        return found
    current = max((one.app_attempt for one in attempts), default=0)
    lives = sum(one.app_attempt == current and one.code is None for one in attempts)
    since = now - float(record.end.rpartition(",")[2] or 0)
    if not lives or since >= CHECK_S + request.grace_s + _STOPS_S:
        return found
    why = _end_text(found, request)
    return Standing(AppState.RUNNING, msg=f"has ended ({why}); waits until {lives} of its replicas have stopped")


def accounted(found: Standing, record: Record, identity: str, accounts: Sequence[Account]) -> Standing:
    """Return the end of an app whose job Slurm has forgotten, from the accounting of the cluster if possible."""
    # If the app is unclaimed it may have had several jobs, of which all but one were cancelled.
    mine = [one for one in accounts if one.is_of(identity, record.claim) and one.state in ENDS]
    best = next((one for one in mine if one.state != "CANCELLED"), mine[0] if mine else None)
    if best is None or record.cancelled:
        return found
    state = AppState.CANCELLED if best.state == "CANCELLED" else AppState.FAILED
    return replace(found, state=state, reason=best.state)


def _claimed(record: Record, jobs: Sequence[Job], now: int, settle_s: float) -> Standing:
    job = next((job for job in jobs if job.nonce == record.claim), None)
    if job is None or ((job.state, job.reason) == ("PENDING", "JobHeldUser") and not record.terminated):
        # After a crash the controller may show the job as held, as it was before its release, although it has started.
        return _unseen(record, now, settle_s)
    if job.state not in ENDS:
        state = LIVE.get(job.state, AppState.UNKNOWN)
        waits = state is AppState.PENDING
        return Standing(state, msg=_waits(job) if waits else NONE, is_stuck=waits and _is_stuck(job))
    if job.end is None or now - job.end < settle_s:
        return Standing(AppState.RUNNING, msg=f"its job has ended ({job.state}); waits for the record of its end")
    if record.cancelled:
        return Standing(AppState.CANCELLED, "cancel", is_new=True)
    if job.state == "CANCELLED" and not record.terminated:
        # After a crash a controller cancels jobs that it does not recognise; no user has cancelled it.
        return Standing(AppState.FAILED, "dropped", is_new=True)
    return _of_slurm(job)


def _unseen(record: Record, now: int, settle_s: float) -> Standing:
    if now - record.alive < _UNSEEN_S + settle_s:
        return Standing(AppState.RUNNING, msg="Slurm no longer knows its job; checking whether it still runs")
    return Standing(AppState.CANCELLED if record.cancelled else AppState.FAILED, "lost", is_new=True)


def _unclaimed(record: Record, jobs: Sequence[Job], now: int, settle_s: float) -> Standing:
    live = [job for job in jobs if job.state not in ENDS]
    if live:
        if all(job.reason == "JobHeldUser" for job in live):
            return Standing(AppState.SUBMITTED, msg="its job is held until its submission is complete")
        # A running job without a claim has not started its script yet.
        return Standing(AppState.PENDING, msg=_waits(live[0]), is_stuck=all(map(_is_stuck, live)))
    # Held jobs that were cancelled belong to other submitters.
    ended = [job for job in jobs if (job.state, job.reason) != ("CANCELLED", "JobHeldUser")]
    if ended:
        if any(job.end is None or now - job.end < settle_s for job in ended):
            return Standing(AppState.PENDING, msg=f"its job has ended ({ended[-1].state}); waits for its records")
        found = _of_slurm(ended[-1])
        if ended[-1].state == "CANCELLED" and ended[-1].has_nodes:
            # After a crash a node refuses a reused job number, and the controller cancels the job.
            found = Standing(AppState.FAILED, "dropped")
        return Standing(found.state, found.reason, claim="ended", is_new=True)
    if now - record.submitted < _UNSEEN_S + settle_s:
        return Standing(AppState.SUBMITTED, msg="waits for its submission to be complete")
    return Standing(AppState.FAILED, "unstarted", claim="unstarted", is_new=True)


def _of_slurm(job: Job) -> Standing:
    return Standing(AppState.CANCELLED if job.state == "CANCELLED" else AppState.FAILED, job.state, is_new=True)


def _is_stuck(job: Job) -> bool:
    return job.reason in _STUCK or _STUCK_AT_A_LIMIT.fullmatch(job.reason) is not None


def _waits(job: Job) -> str:
    text = "waits in the queue" if job.reason in {"", "None"} else f"waits in the queue: {job.reason}"
    if job.start:
        text += f"; expected to start at {datetime.fromtimestamp(job.start, timezone.utc):%Y-%m-%d %H:%M} UTC"
    return text


def response_from(
    record: Record, found: Standing, request: SlurmRequest, attempts: Sequence[Attempt]
) -> DescribeAppResponse:
    """Return the response for one app."""
    current = max((one.app_attempt for one in attempts), default=0)
    newest = {(one.role, one.replica): one for one in attempts if one.app_attempt == current}
    has_cause = any(_failed_by_itself(one) for one in newest.values())
    replicas = {
        role.name: [
            _replica(role.name, k, newest.get((number, k)), found.state, has_cause=has_cause)
            for k in range(role.num_replicas)
        ]
        for number, role in enumerate(request.roles)
    }
    msg = found.msg
    if is_terminal(found.state):
        first = _first_failed(replicas) if found.reason == "exit" else None
        msg = _cause(first) if first else _end_text(found, request)
    if msg == NONE and found.state in {AppState.RUNNING, AppState.SUCCEEDED}:
        msg = _services_text(request, newest, is_over=found.state is AppState.SUCCEEDED)
    response = app_response(
        record.app_id,
        found.state,
        msg=msg,
        restarts=current + sum(one.number for one in newest.values()),
        replicas=replicas,
        app=request.app_def,
    )
    response.is_stuck = found.is_stuck
    return response


def ending_of(attempt: Attempt) -> str:
    """Return how an attempt of a replica ended."""
    if attempt.stopped:
        return "stopped"
    return "" if attempt.code is None else ending_text(ReplicaEnd(attempt.code))


def _end_text(found: Standing, request: SlurmRequest) -> str:
    if found.reason == "limit" and request.time_limit_s is not None:
        return f"time limit of {request.time_limit_s:g} s reached"
    if found.reason == "nostart" and found.msg != NONE:
        return f"Slurm could not start any replica: {found.msg}"
    return _OURS.get(found.reason) or ENDS.get(found.reason) or NONE


def _replica(role: str, k: int, newest: Attempt | None, state: AppState, *, has_cause: bool) -> ReplicaStatus:
    ended = is_terminal(state)
    if newest is None:
        shown = AppState.CANCELLED if ended else AppState.PENDING if state is AppState.RUNNING else state
        return ReplicaStatus(id=k, state=shown, role=role, hostname="")
    status = ReplicaStatus(
        id=k,
        state=AppState.RUNNING,
        role=role,
        hostname=newest.host,
        exit_code=newest.code,
        start_time=None if newest.started is None else int(newest.started),
        end_time=None if newest.ended is None else int(newest.ended),
        num_restarts=newest.app_attempt + newest.number,
    )
    if newest.code is None:
        if ended:
            # A replica without a record of its end was stopped with the others, or is the cause itself.
            is_lost = state is AppState.FAILED and not has_cause
            status.state = AppState.FAILED if is_lost else AppState.CANCELLED
            status.exit_code = 137
            status.reason = "killed from outside" if is_lost else "stopped"
    elif newest.stopped:
        status.state, status.reason = AppState.CANCELLED, signal_in(newest.code) or "stopped"
    else:
        status.state = AppState.FAILED if newest.code else AppState.SUCCEEDED
        status.reason = signal_in(newest.code)
    return status


def _failed_by_itself(attempt: Attempt) -> bool:
    return bool(attempt.code) and not attempt.stopped


def _services_text(request: SlurmRequest, newest: Mapping[tuple[int, int], Attempt], *, is_over: bool) -> str:
    """Return the message of an app whose services are stopped; `NONE` if they are not."""
    services = [role.name for role in request.app_def.roles if role.service]
    waited_for = {role.name: role.num_replicas for role in request.roles if role.name not in services}
    keys = [(n, k) for n, role in enumerate(request.roles) if role.name in waited_for for k in range(role.num_replicas)]
    done = all((one := newest.get(key)) is not None and one.code == 0 and not one.stopped for key in keys)
    return services_message(waited_for, services, is_over=is_over) if services and done else NONE


def _first_failed(replicas: dict[str, list[ReplicaStatus]]) -> ReplicaStatus | None:
    failed = [one for role in replicas.values() for one in role if one.state is AppState.FAILED]
    return min(failed, key=lambda one: one.end_time if one.end_time is not None else float("inf"), default=None)


def _cause(replica: ReplicaStatus) -> str:
    text = f"{replica.role}/{replica.id} exited with code {replica.exit_code}"
    return f"{text} ({replica.reason})" if replica.reason else text
