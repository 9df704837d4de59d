"""How an app ended, as plain data for XCom and as text for the reader of a failed task."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_launch._task.folds import unfolded
from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, Scheduler, has_own
from airflow_provider_launch.schedulers.result_document import check_result
from airflow_provider_launch.schedulers.signals import signal_in, signal_name
from airflow_provider_launch.specs.error_reply import ErrorReply
from airflow_provider_launch.specs.errors import AppFailedError, InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.roles import MAX_REPLICAS, Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import clean_json, clean_text

MOST_RESULTS_BYTES = 2 * 1024 * 1024
"""Of all replicas together: 200 bytes for each of ten thousand."""
_KILLED = 128 + signal.SIGKILL
_ERROR_LINES, _ERROR_CHARS = 20, 1000


def as_xcom(
    handle: str, response: DescribeAppResponse | None, result: Any = None, *, roles: Sequence[Role] = ()
) -> dict[str, Any]:
    """Return `{handle, state, attempts, roles: {name: [exit codes]}, result}` as plain JSON.

    Exit codes stand at the place of their replica, None where there is none (yet).

    Args:
        handle: names the app.
        response: what the scheduler reports. None: it was not asked yet.
        result: what the app handed back.
        roles: the roles as launched; used where the scheduler shows none.

    Raises:
        InvalidAppError: the app handed back what Airflow cannot store.
    """
    # Also of a scheduler that does not use `parse_result`.
    check_result(result)
    codes: dict[str, list[int | None]] = {role.name: [None] * role.num_replicas for role in roles}
    for status in response.roles_statuses if response else ():
        known = codes.setdefault(status.role, [])
        for replica in status.replicas:
            # A plug-in may report any number.
            if 0 <= replica.id < MAX_REPLICAS:
                known.extend([None] * (replica.id + 1 - len(known)))
                known[replica.id] = replica.exit_code
    value = {
        "handle": handle,
        "state": str(response.state if response else AppState.SUBMITTED),
        "attempts": 1 + max(0, response.num_restarts if response else 0),
        "roles": codes,
        "result": result,
    }
    cleaned: dict[str, Any] = clean_json(value)
    return cleaned


def check_all_results(scheduler: Scheduler[Any], results: str) -> None:
    """Refuse the results of all replicas where the scheduler hands back one.

    Raises:
        UnsupportedError: it cannot.
    """
    if results == "all" and not (Capability.RESULT in scheduler.capabilities and has_own(scheduler, "iter_results")):
        raise UnsupportedError(
            f"scheduler {scheduler.backend!r} does not hand back a result of each replica; leave results='all' out"
        )


def result_of(scheduler: Scheduler[Any], app_id: str, results: str) -> Any:
    """Return what the app hands back: the first document, or a list of those of all replicas.

    Raises:
        InvalidAppError: all of them together are too large to be handed to another task.
    """
    if Capability.RESULT not in scheduler.capabilities:
        return None
    if results != "all":
        return scheduler.result(app_id)
    found, size = [], 0
    for document in scheduler.iter_results(app_id):
        size += len(json.dumps(document, separators=(",", ":"))) + 1
        if size > MOST_RESULTS_BYTES:
            raise InvalidAppError(
                f"the results of the replicas have more than {MOST_RESULTS_BYTES} bytes together, which Airflow would "
                f"store as one XCom; let each of them write less, or use results='first'"
            )
        found.append(document)
    return found


def handle_of(value: object) -> str:
    """Return the handle out of a text or out of what `as_xcom` gives."""
    found = value.get("handle") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else ""


def first_failed(response: DescribeAppResponse) -> ReplicaStatus | None:
    """Return the replica that failed first, else the first one that was cancelled, None if the status names none."""
    replicas = [replica for status in response.roles_statuses for replica in status.replicas]
    for state in (AppState.FAILED, AppState.CANCELLED):
        found = [replica for replica in replicas if replica.state == state]
        if found:
            # The one that the scheduler names, else the first in time: the others are mostly those which were stopped
            # because of it.
            named = [replica for replica in found if f"{replica.role}/{replica.id} " in response.msg]
            return min(named or found, key=lambda replica: (replica.end_time is None, replica.end_time or 0))
    return None


def failure(handle: str, response: DescribeAppResponse, tails: Mapping[str, Sequence[str]]) -> AppFailedError:
    """Return the error for an app that did not succeed: what ended it, and its last lines.

    Args:
        handle: names the app.
        response: the terminal state.
        tails: the last lines by `role/replica`.
    """
    replica = first_failed(response)
    reasons = [] if replica is None else [_replica_text(replica)]
    msg = response.msg if response.msg not in ("", NONE) else ""
    # A scheduler often repeats the same in its message; otherwise that is the cause, and the replica's end the
    # effect: a time limit, a cancellation.
    if msg and (replica is None or (msg != replica.reason and f"{replica.role}/{replica.id}" not in msg)):
        reasons.insert(0, msg)
    # The cause first: a log view cuts long lines, and a handle is long.
    ended = f"app {handle} {response.state}"
    parts = [unfolded(f"{'; '.join(reasons)}; {ended}") if reasons else ended]
    if written := _written(replica, response):
        parts.append(f"\n{f'{replica.role}/{replica.id}' if replica else 'the app'} wrote to its error file:")
        parts.extend(f"\n  {unfolded(line)}" for line in written)
    if replica is not None and (tail := tails.get(f"{replica.role}/{replica.id}")):
        parts.append(f"\nlast lines of {replica.role}/{replica.id}:")
        parts.extend(f"\n  {unfolded(line)}" for line in tail)
    return AppFailedError(response.to_status(), "".join(parts))


def _written(replica: ReplicaStatus | None, response: DescribeAppResponse) -> list[str]:
    """Return the lines that the replica wrote to `TORCHELASTIC_ERROR_FILE` before it failed."""
    text = replica.structured_error_msg if replica else response.structured_error_msg
    if text in ("", NONE):
        return []
    reply = ErrorReply.parse(text)
    lines = (reply.error_text if reply else clean_text(text)).splitlines()
    shown = [line[:_ERROR_CHARS] for line in lines if line.strip()]
    return [
        *shown[:_ERROR_LINES],
        *([f"... {len(shown) - _ERROR_LINES} more lines"] if len(shown) > _ERROR_LINES else []),
    ]


def _replica_text(replica: ReplicaStatus) -> str:
    text = f"role {replica.role!r} replica {replica.id}"
    details = [f"attempt {replica.num_restarts}"] if replica.num_restarts is not None else []
    if replica.hostname and replica.hostname != NONE:
        details.append(f"on {replica.hostname}")
    if details:
        text += f" ({', '.join(details)})"
    text += f" {_ending(replica)}"
    reason = replica.reason or replica.error_msg
    # What ended it is named once.
    return f"{text}: {reason}" if reason and reason not in text else text


def _ending(replica: ReplicaStatus) -> str:
    code = replica.exit_code
    if code is None:
        return f"ended as {replica.state}"
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    name = signal_in(code)
    hint = "; its memory may have run out" if code == _KILLED else ""
    return f"exited with code {code}" + (f" ({name}{hint})" if name else "")
