"""From what the supervisor wrote to what the launcher tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.schedulers.signals import signal_name
from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus

__all__ = ["STATES", "foreign_host", "rebooted", "response_from"]

STATES = {
    Phase.WAITING.value: AppState.PENDING,  # committed, its shim has not begun
    Phase.RUNNING.value: AppState.RUNNING,
    Phase.SUCCEEDED.value: AppState.SUCCEEDED,
    Phase.FAILED.value: AppState.FAILED,
    Phase.STOPPED.value: AppState.CANCELLED,  # ended by us, so its exit code says nothing about it
}
LIMITS_NOT_ENFORCED = "cpu and memMB are not enforced by local processes"


def response_from(
    app_id: str, app: Mapping[str, Any], state: Mapping[str, Any] | None, roles: Sequence[Role]
) -> DescribeAppResponse:
    """Return the answer for one app.

    Args:
        app_id: the app.
        app: `app.json`.
        state: `state.json`; None until the first supervisor has written it.
        roles: the roles as they were submitted.
    """
    metadata = {**app["request"]["metadata"], "limits": LIMITS_NOT_ENFORCED}
    if state is None:
        return DescribeAppResponse(
            app_id, AppState.PENDING, num_restarts=0, msg="waits for its supervisor", metadata=metadata, roles=[*roles]
        )
    by_role: dict[str, list[ReplicaStatus]] = {role.name: [] for role in roles}
    for replica in state["replicas"]:
        by_role[replica["role"]].append(_replica(replica, state))
    restarts = state["app_attempt"] + sum(replica["attempt"] for replica in state["replicas"])
    return DescribeAppResponse(
        app_id,
        AppState[state["state"]],
        num_restarts=restarts,
        msg=state["msg"] or NONE,
        metadata=metadata,
        roles_statuses=[RoleStatus(name, replicas) for name, replicas in by_role.items()],
        roles=[*roles],
    )


def rebooted(state: Mapping[str, Any] | None, app: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the final state of an app whose host was restarted while it ran: nothing of it can still run."""
    known = state or {"app_attempt": 0, "replicas": [], "ports": {}, "host": app["host"], "boot_id": app["boot_id"]}
    replicas = [
        {**replica, "phase": Phase.FAILED.value, "end": now, "lost": True}
        if replica["phase"] in {Phase.RUNNING.value, Phase.WAITING.value}
        else replica
        for replica in known["replicas"]
    ]
    message = f"host {app['host']} was rebooted while the app ran"
    return {**known, "state": "FAILED", "final": True, "msg": message, "replicas": replicas}


def foreign_host(app: Mapping[str, Any], here: str) -> str:
    """Return why the processes of the app cannot be seen or ended from here."""
    return f"launched on host {app['host']}, this is {here}: its processes can be seen and ended only there"


def _replica(replica: Mapping[str, Any], state: Mapping[str, Any]) -> ReplicaStatus:
    return ReplicaStatus(
        id=replica["id"],
        state=STATES.get(replica["phase"], AppState.UNKNOWN),
        role=replica["role"],
        hostname=state["host"],
        exit_code=replica["code"],
        start_time=_seconds(replica["start"]),
        end_time=_seconds(replica["end"]),
        # Attempts of the replica before this one, whether it or the whole app was restarted.
        num_restarts=state["app_attempt"] + replica["attempt"],
        reason=_reason(replica),
    )


def _reason(replica: Mapping[str, Any]) -> str | None:
    if replica["lost"]:
        return "killed from outside"
    if replica.get("outside"):  # not in records of earlier versions
        return "ended from outside"
    if replica["signal"]:
        return signal_name(replica["signal"])
    if replica["phase"] == Phase.STOPPED.value:
        return "stopped"
    return None


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
