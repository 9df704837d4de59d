"""The outcome of an app: plain data for XCom, and the error message of a failed task."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_launch._task.tracebacks import error_in
from airflow_provider_launch.schedulers._kit.endings import signal_in, signal_name
from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, Scheduler, has_own
from airflow_provider_launch.schedulers.result_document import check_result, with_null
from airflow_provider_launch.specs.errors import AppFailedError, InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.failures import ErrorReply, in_order_of_failure, is_consequence
from airflow_provider_launch.specs.roles import MAX_REPLICAS, Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.strings import unfolded
from airflow_provider_launch.util.untrusted import clean_json, clean_text, one_line

MOST_RESULTS_BYTES = 2 * 1024 * 1024
"""Limit for the results of all replicas together: 200 bytes each for ten thousand replicas."""
_KILLED = 128 + signal.SIGKILL
_ERROR_LINES, _ERROR_CHARS = 20, 1000
_SHOWN_OTHERS = 3


def as_xcom(
    handle: str,
    response: DescribeAppResponse | None,
    result: Any = None,
    *,
    roles: Sequence[Role] = (),
    error: str = "",
) -> dict[str, Any]:
    """Return `{handle, state, attempts, roles: {name: [exit codes]}, result}` as plain JSON.

    Exit codes are indexed by replica; None if there is none (yet). An app that did not succeed also has `error`.

    Args:
        handle: names the app.
        response: the status. None: not polled yet.
        result: the result of the app.
        roles: the roles as launched, for schedulers that do not report them.
        error: why it did not succeed, in one line.

    Raises:
        InvalidAppError: Airflow cannot store the result.
    """
    # Check again, because the scheduler may not use `parse_result`.
    result = with_null(result)
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
        **({"error": error} if error else {}),
    }
    cleaned: dict[str, Any] = clean_json(value)
    return cleaned


def check_all_results(scheduler: Scheduler[Any], results: str) -> None:
    """Refuse `results="all"` if the scheduler returns only one result.

    Raises:
        UnsupportedError: the scheduler cannot return all results.
    """
    if results == "all" and not (Capability.RESULT in scheduler.capabilities and has_own(scheduler, "iter_results")):
        raise UnsupportedError(
            f"scheduler {scheduler.backend!r} cannot return a result for each replica; leave results='all' out"
        )


def result_of(scheduler: Scheduler[Any], app_id: str, results: str) -> Any:
    """Return the result of the app: the first document, or a list with those of all replicas.

    Raises:
        InvalidAppError: together they are too large for an XCom.
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
    """Return the handle from a text or from a value of `as_xcom`."""
    found = value.get("handle") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else ""


def first_failed(
    response: DescribeAppResponse, last_lines: Mapping[str, Sequence[str]] | None = None
) -> ReplicaStatus | None:
    """Return the replica that made the app fail, else the first cancelled one; None if the status has no such replica.

    Args:
        response: the terminal state.
        last_lines: the last lines by `role/replica`, as far as they are known.
    """
    return next(iter(failed_replicas(response, last_lines)), None)


def failed_replicas(
    response: DescribeAppResponse, last_lines: Mapping[str, Sequence[str]] | None = None
) -> list[ReplicaStatus]:
    """Return the failed replicas, the one that made the app fail first; else the cancelled ones, as they ended."""
    if failed := _in_order_of_failure(response, last_lines):
        return failed
    cancelled = [replica for replica in _replicas(response) if replica.state == AppState.CANCELLED]
    named = [replica for replica in cancelled if f"{replica.role}/{replica.id} " in response.msg]
    return sorted(named or cancelled, key=lambda replica: (replica.end_time is None, replica.end_time or 0))


def _in_order_of_failure(
    response: DescribeAppResponse, last_lines: Mapping[str, Sequence[str]] | None
) -> list[ReplicaStatus]:
    return in_order_of_failure(_replicas(response), response.msg, last_lines)


def _replicas(response: DescribeAppResponse) -> list[ReplicaStatus]:
    return [replica for status in response.roles_statuses for replica in status.replicas]


def failure(
    handle: str,
    response: DescribeAppResponse,
    tails: Mapping[str, Sequence[str]],
    masked: Callable[[str], str] = str,
) -> AppFailedError:
    """Return the error for an app that did not succeed, with the cause and its last lines.

    Args:
        handle: names the app.
        response: the terminal state.
        tails: the last lines by `role/replica`.
        masked: returns a text without its secrets.
    """
    failed = failed_replicas(response, tails)
    replica = failed[0] if failed else None
    reasons = [] if replica is None else [_replica_text(replica)]
    msg = response.msg if response.msg not in ("", NONE) else ""
    # If the message does not just repeat the end of a replica, it is the cause: a time limit, a cancellation.
    if msg and not any(_is_about(msg, one) for one in failed):
        reasons.insert(0, msg)
    if response.state == AppState.FAILED and len(failed) > 1:
        reasons.append(_others_text(failed[1:], tails))
    # The cause first: a log view cuts long lines, and a handle is long.
    ended = f"app {handle} {response.state}"
    parts = [unfolded(f"{'; '.join(reasons)}; {ended}") if reasons else ended]
    if written := _written(replica, response, masked):
        parts.append(f"\n{f'{replica.role}/{replica.id}' if replica else 'the app'} wrote to its error file:")
        parts.extend(f"\n  {unfolded(line)}" for line in written)
    if replica is not None and (tail := tails.get(f"{replica.role}/{replica.id}")):
        parts.append(f"\nlast lines of {replica.role}/{replica.id}:")
        parts.extend(f"\n  {unfolded(line)}" for line in tail)
    return AppFailedError(response.to_status(), masked("".join(parts)))


def error_line(
    response: DescribeAppResponse, tails: Mapping[str, Sequence[str]], masked: Callable[[str], str] = str
) -> str:
    """Return why the app did not succeed, as one line of limited length: for a task that compares several apps.

    `trainer/1: ValueError: loss is NaN`, or `trainer/1 exited with code 137 (SIGKILL; its memory may have run out)`.

    Args:
        response: the terminal state.
        tails: the last lines by `role/replica`.
        masked: returns a text without its secrets.
    """

    def line(text: str) -> str:
        # Masked before it is cut.
        return one_line(masked(text), _ERROR_CHARS)

    replica = first_failed(response, tails)
    msg = response.msg if response.msg not in ("", NONE) else ""
    if replica is None:
        return line(msg or str(response.state))
    name = f"{replica.role}/{replica.id}"
    # The message of the scheduler may be about a consequence, which ended first; then it stopped the cause.
    failed = _in_order_of_failure(response, tails)
    if not failed or (msg and not any(_is_about(msg, one) for one in failed)):
        return line(msg or f"{name} ended as {replica.state}")
    written = _written(replica, response, masked)
    error = written[0] if written else error_in(tails.get(name, ()))
    return line(f"{name}: {error}" if error else f"{name} {_ending_with_reason(replica)}")


def _is_about(msg: str, replica: ReplicaStatus) -> bool:
    """Return whether the scheduler's message is about the failure of this replica, and not about the whole app."""
    return msg == replica.reason or (replica.state == AppState.FAILED and f"{replica.role}/{replica.id}" in msg)


def _others_text(others: Sequence[ReplicaStatus], tails: Mapping[str, Sequence[str]]) -> str:
    """Return the replicas that failed later, with a mark on those that only lost their peers."""
    texts = []
    for one in others[:_SHOWN_OTHERS]:
        name = f"{one.role}/{one.id}"
        mark = " (a consequence: it lost its peers)" if is_consequence(one, tails.get(name, ())) else ""
        texts.append(f"{name} {_ending(one)}{mark}")
    more = f", and {len(others) - _SHOWN_OTHERS} more" if len(others) > _SHOWN_OTHERS else ""
    return f"after it: {', '.join(texts)}{more}"


def _written(replica: ReplicaStatus | None, response: DescribeAppResponse, masked: Callable[[str], str]) -> list[str]:
    """Return the lines that the replica wrote to `TORCHELASTIC_ERROR_FILE` before it failed."""
    text = replica.structured_error_msg if replica else response.structured_error_msg
    if text in ("", NONE):
        return []
    reply = ErrorReply.parse(text)
    lines = masked(reply.error_text if reply else clean_text(text)).splitlines()
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
    return f"{text} {_ending_with_reason(replica)}"


def _ending_with_reason(replica: ReplicaStatus) -> str:
    text, reason = _ending(replica), replica.reason or replica.error_msg
    # Name the reason only once.
    return f"{text}: {reason}" if reason and reason not in text else text


def _ending(replica: ReplicaStatus) -> str:
    code = replica.exit_code
    if code is None:
        return f"ended as {replica.state}"
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    name = signal_in(code)
    was_stopped = replica.state == AppState.CANCELLED
    hint = "; its memory may have run out" if code == _KILLED and not was_stopped else ""
    text = f"exited with code {code}" + (f" ({name}{hint})" if name else "")
    return f"{text} when the launcher stopped it" if was_stopped else text
