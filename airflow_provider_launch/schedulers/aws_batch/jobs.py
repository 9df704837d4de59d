"""The replicas of an app, parsed from single jobs, children of arrays, or nodes, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest
from airflow_provider_launch.schedulers.retry import Phase

# https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
_PHASES = {
    "SUBMITTED": Phase.WAITING,
    "PENDING": Phase.WAITING,
    "RUNNABLE": Phase.WAITING,  # waits for capacity; also between two attempts
    "STARTING": Phase.WAITING,  # the image is pulled
    "RUNNING": Phase.RUNNING,
    "SUCCEEDED": Phase.SUCCEEDED,
    "FAILED": Phase.FAILED,
}
_DEFAULT_GROUP = "/aws/batch/job"
OURS = "launch: "
"""Prefix of the reason with which the launcher ends a job."""
NO_END = ReplicaEnd()


HOST_LOST = "Host EC2"
"""The reason of a lost host starts with this: https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html"""


@dataclass(frozen=True)
class AttemptLog:
    """The log stream of one attempt."""

    group: LogGroup
    stream: str
    ended_at: float | None
    """By AWS's clock; None if more lines may come."""
    end: ReplicaEnd = NO_END

    @property
    def ending(self) -> str:
        """How it ended; empty if it has not ended."""
        return "" if self.ended_at is None else ending_text(self.end)


@dataclass
class Replica:
    """The latest status of one replica in one attempt of the app."""

    phase: Phase = Phase.WAITING
    end: ReplicaEnd = NO_END
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    logs: list[AttemptLog] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED}


def has_ended(job: Mapping[str, Any]) -> bool:
    """Return whether the state of a job is final."""
    return job["status"] in {"SUCCEEDED", "FAILED"}


def replica_id(request: AwsBatchRequest, job_id: str, number: int) -> str:
    """Return the id of the job that runs a replica, by its number among all replicas of the app."""
    joint = {"single": "", "array": ":", "multi-node": "#"}[request.layout]
    return f"{job_id}{joint}{number}" if joint else job_id


def replicas_of(
    request: AwsBatchRequest, job: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> list[Replica]:
    """Return the replicas of an attempt in the order of `request.replica_keys`; `parts` has its nodes by id."""
    if request.layout == "single":
        return [_replica(job)]
    found = []
    for number in range(len(request.replica_keys)):
        part = parts.get(replica_id(request, job["jobId"], number))
        found.append(_replica(part) if part else Replica())
    main = found[0]
    if request.layout == "multi-node" and has_ended(job):
        for replica in found[1:]:
            # Batch stops the other nodes when the main node has ended.
            late = replica.ended is None or main.ended is None or replica.ended >= main.ended
            if replica.phase is Phase.FAILED and main.is_over and main.phase is not Phase.STOPPED and late:
                replica.phase = Phase.STOPPED
    if has_ended(job):
        for replica in found:
            if not replica.is_over:
                replica.phase = Phase.STOPPED  # never started, or its end is not shown yet
    return found


def stopped_outside(job: Mapping[str, Any]) -> str:
    """Return the reason of an outside stop of a job, its child or its node; empty if there was none."""
    is_stopped = job.get("isTerminated") or job.get("isCancelled")
    reason = job.get("statusReason") or ""
    return "" if not is_stopped or reason.startswith(OURS) else reason


def _end_of(container: Mapping[str, Any], status_reason: str, outside: str = "") -> ReplicaEnd:
    """Return how an attempt has ended, according to its container and the reason of its job."""
    code, reason = container.get("exitCode"), container.get("reason") or ""
    # A program that ends in time after the warning has an exit code, too.
    lost = status_reason if status_reason.startswith(HOST_LOST) else ""
    status_reason = "" if status_reason.startswith(OURS) or code is not None else status_reason
    return ReplicaEnd(
        code,
        # Check only the start: other reasons quote the image, whose name may have that word.
        out_of_memory=reason.startswith("OutOfMemory"),
        outside=outside,
        start_error=reason if code is None and reason.startswith("Cannot") else "",
        preempted=lost,
        note=reason or ("" if lost else status_reason),
    )


def _replica(job: Mapping[str, Any]) -> Replica:
    container = job.get("container", {})
    attempts = job.get("attempts", [])
    phase = _PHASES.get(job["status"], Phase.WAITING)
    outside = stopped_outside(job)
    if phase is Phase.FAILED and not outside and (job.get("isTerminated") or job.get("isCancelled")):
        phase = Phase.STOPPED
    over = has_ended(job)
    last = attempts[-1] if attempts and over else {}
    merged = {**last.get("container", {}), **container}
    return Replica(
        phase=phase,
        end=_end_of(merged, job.get("statusReason") or "", outside) if over else NO_END,
        started=_seconds(last.get("startedAt") or job.get("startedAt")),
        ended=_seconds(job.get("stoppedAt")) if over else None,
        restarts=max(0, len(attempts) - (1 if over or _has_last(job, container, attempts) else 0)),
        logs=_logs(job, container, attempts, over=over),
    )


def _has_last(job: Mapping[str, Any], container: Mapping[str, Any], attempts: Any) -> bool:
    """Return whether the last attempt has already ended although the job, whose state lags, is still RUNNING."""
    current = container.get("logStreamName")
    return bool(
        job["status"] == "RUNNING"
        and current
        and attempts
        and attempts[-1]["container"].get("logStreamName") == current
    )


def log_group(job: Mapping[str, Any]) -> LogGroup:
    """Return the log group of a job, or of its first node."""
    ranges = job.get("nodeProperties", {}).get("nodeRangeProperties", [])
    container = job.get("container") or (ranges[0].get("container", {}) if ranges else {})
    options = container.get("logConfiguration", {}).get("options", {})
    return LogGroup(options.get("awslogs-group", _DEFAULT_GROUP), options.get("awslogs-region"))


def _logs(job: Mapping[str, Any], container: Mapping[str, Any], attempts: Any, *, over: bool) -> list[AttemptLog]:
    group = log_group({"container": container})
    found = [
        AttemptLog(
            group,
            stream,
            _seconds(attempt.get("stoppedAt")),
            _end_of(attempt["container"], attempt.get("statusReason") or ""),
        )
        for attempt in attempts
        if (stream := attempt.get("container", {}).get("logStreamName"))
    ]
    current = container.get("logStreamName")
    if current and current not in {one.stream for one in found}:
        ended_at = _seconds(job.get("stoppedAt")) if over else None
        found.append(AttemptLog(group, current, ended_at, _end_of(container, job.get("statusReason") or "")))
    return found


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None


_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def _console(region: str) -> str:
    host = next((host for prefix, host in _CONSOLES.items() if region.startswith(prefix)), "console.aws.amazon.com")
    return f"https://{host}"


def job_page(region: str, job: Mapping[str, Any]) -> str:
    """Return the address of a job's page."""
    return f"{_console(region)}/batch/home?region={region}#jobs/detail/{job['jobId']}"


def other_pages(region: str, job: Mapping[str, Any]) -> dict[str, str]:
    """Return title to address of further pages: definition, queue, and the log of all replicas and attempts."""
    batch = f"{_console(region)}/batch/home?region={region}"
    definition = str(job["jobDefinition"])
    group = log_group(job)
    # The console encodes the part after `#` twice, with `$` for `%`. Streams are named after their definition.
    name, stream = (quote(quote(text, safe=""), safe="").replace("%", "$") for text in (group.name, _name(definition)))
    logs = f"{_console(region)}/cloudwatch/home?region={group.region or region}"
    return {
        "job definition": f"{batch}#job-definition/detail/{definition}",
        "queue": f"{batch}#queues/detail/{job['jobQueue']}",
        "log": f"{logs}#logsV2:log-groups/log-group/{name}$3FlogStreamNameFilter$3D{stream}",
    }


def _name(definition: str) -> str:
    return definition.rpartition("/")[2].partition(":")[0]
