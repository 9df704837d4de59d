"""Builds the status of an app from the files of its supervisor, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import signal_name
from airflow_provider_launch.schedulers.responses import PHASE_STATES, DescribeAppResponse, app_response
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import one_line

_HOST_CHARS = 255
_MOST_ATTEMPTS = 2**31 - 1
_LATEST = 2**36
"""Epoch seconds in the year 4147; a larger time cannot be shown as a date."""
_STATES = {phase.value: state for phase, state in PHASE_STATES.items()}
LIMITS_NOT_ENFORCED = "cpu and memMB are not enforced by local processes"


def response_from(
    app_id: str,
    document: Mapping[str, Any],
    state: Mapping[str, Any] | None,
    app: AppDef,
    *,
    limits: str = LIMITS_NOT_ENFORCED,
) -> DescribeAppResponse:
    """Return the response for one app, from `app.json` and `state.json`.

    `state` is None until the first supervisor has written it; `limits` is a note for the metadata.
    """
    replicas: dict[str, list[ReplicaStatus]] = {}
    # Once for all replicas, because a program may have written a long one.
    host = one_line(state["host"], _HOST_CHARS) if state else ""
    if state is None:
        response = app_response(
            app_id, AppState.PENDING, msg="waits for its supervisor", restarts=0, replicas=replicas, app=app
        )
    else:
        replicas.update((role.name, []) for role in app.roles)
        if len(state["replicas"]) > (most := sum(role.num_replicas for role in app.roles)):
            # The program of the app has written them; each would cost memory and time in every poll.
            raise ValueError(f"the state has {len(state['replicas'])} replicas, the app {most}")
        counts = {role.name: role.num_replicas for role in app.roles}
        for replica in state["replicas"]:
            _refuse_replica(replica, counts)
            replicas[replica["role"]].append(_replica(replica, state, host))
        restarts = _count(state["app_attempt"]) + sum(replica["attempt"] for replica in state["replicas"])
        msg = state["msg"] or NONE
        response = app_response(
            app_id, AppState[state["state"]], msg=msg, restarts=restarts, replicas=replicas, app=app
        )
    response.metadata = {**document["request"]["metadata"], **({"limits": limits} if limits else {})}
    return response


def rebooted(state: Mapping[str, Any] | None, app: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the final state of an app whose host was rebooted while it ran."""
    latest = state or {"app_attempt": 0, "replicas": [], "ports": {}, "host": app["host"], "boot_id": app["boot_id"]}
    replicas = [
        {**replica, "phase": Phase.FAILED.value, "end": now, "lost": True}
        if replica["phase"] in {Phase.RUNNING.value, Phase.WAITING.value}
        else replica
        for replica in latest["replicas"]
    ]
    message = f"host {app['host']} was rebooted while the app ran"
    return {**latest, "state": "FAILED", "final": True, "msg": message, "replicas": replicas}


def ended(
    state: Mapping[str, Any] | None, app: Mapping[str, Any], word: str, message: str, now: float
) -> dict[str, Any]:
    """Return the final state of an app whose supervisor has ended without it, or never started."""
    phase = Phase.STOPPED if word == "CANCELLED" else Phase.FAILED
    latest = rebooted(state, app, now)
    found = {(replica["role"], replica["id"]): replica for replica in latest["replicas"]}
    waiting = {"attempt": 0, "code": None, "signal": None, "start": None, "end": None, "lost": None, "outside": None}
    replicas = [
        # A replica that never started was not killed.
        {"role": role["name"], "id": k, "phase": Phase.STOPPED.value, **waiting}
        if (role["name"], k) not in found
        else {**found[role["name"], k], "phase": phase.value}
        if found[role["name"], k].get("end") == now
        else found[role["name"], k]
        for role in app["request"]["roles"]
        for k in range(len(role["replicas"]))
    ]
    return {**latest, "state": word, "msg": message, "replicas": replicas}


def foreign_host(app: Mapping[str, Any], here: str) -> str:
    """Return the message that the processes of the app cannot be seen or ended from this host."""
    return f"launched on host {app['host']}, this is {here}: its processes can be seen and ended only there"


def _refuse_replica(replica: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Refuse numbers that no supervisor writes; their sums would not fit into a database."""
    if not 0 <= replica["id"] < counts[replica["role"]]:
        raise ValueError(f"the state has replica {replica['id']}, the role {counts[replica['role']]}")
    _count(replica["attempt"])


def _count(attempts: int) -> int:
    if not 0 <= attempts <= _MOST_ATTEMPTS:
        raise ValueError(f"{attempts} is not a number of attempts")
    return attempts


def _replica(replica: Mapping[str, Any], state: Mapping[str, Any], host: str) -> ReplicaStatus:
    return ReplicaStatus(
        id=replica["id"],
        state=_STATES.get(replica["phase"], AppState.UNKNOWN),
        role=replica["role"],
        hostname=host,
        exit_code=replica["code"],
        start_time=_seconds(replica["start"]),
        end_time=_seconds(replica["end"]),
        # Counts restarts of the replica and of the whole app.
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
    if moment is None:
        return None
    if not 0 <= moment <= _LATEST:
        raise ValueError(f"{moment} is not a moment")
    return int(moment)
