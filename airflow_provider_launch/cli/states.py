"""The state of an app as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.util.untrusted import one_line

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse
    from airflow_provider_launch.specs.statuses import ReplicaStatus


def state_text(response: DescribeAppResponse) -> str:
    """Return the state with what belongs to it: how many replicas run, and the reason."""
    running, total = response.running_of()
    parts = [f"{running} of {total} running"] if 0 < running < total and not is_terminal(response.state) else []
    if message := _given(response.msg):
        parts.append(one_line(message))
    details = ", ".join(parts)
    return f"{response.state} ({details})" if details else str(response.state)


def status_document(handle: str, response: DescribeAppResponse) -> dict[str, Any]:
    """Return the status as plain JSON; absent values are null, and times are epoch seconds."""
    return {
        "handle": handle,
        "state": response.state.name,
        "message": _given(response.msg),
        "restarts": max(0, response.num_restarts),
        "url": response.ui_url,
        "roles": [
            {"role": role.role, "replicas": [_replica(replica) for replica in role.replicas]}
            for role in response.roles_statuses
        ],
        "metadata": dict(response.metadata),
    }


def _replica(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "replica": replica.id,
        "state": replica.state.name,
        "exit_code": replica.exit_code,
        "restarts": replica.num_restarts or 0,
        "host": _given(replica.hostname),
        "started_at": replica.start_time,
        "ended_at": replica.end_time,
        "reason": replica.reason,
        "error": _given(replica.structured_error_msg),
    }


def _given(text: str | None) -> str | None:
    return None if text in (None, "", NONE) else text
