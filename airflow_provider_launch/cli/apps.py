"""The commands about apps that exist: status, describe, list, cancel, delete, sweep; states as text and JSON."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.cli.targets import Target, for_handle, for_launch
from airflow_provider_launch.specs.errors import InvalidAppError, UnknownAppException
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.untrusted import one_line

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.specs.statuses import ReplicaStatus

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_LOST = (AppState.FAILED, AppState.CANCELLED)
"""States after which the exit code is that of a failed app."""


def status(options: argparse.Namespace, output: Output) -> int:
    """Show the state of an app; the exit code is 1 if it failed or was cancelled."""
    with for_handle(options.handle, options.scheduler, options.connection) as target:
        response = _described(target, options.handle)
    if output.as_json:
        output.document(status_document(options.handle, response))
    else:
        output.data(state_text(response))
        output.table([*_replicas(response)])
        if response.ui_url:
            output.data(response.ui_url)
    return 1 if response.state in _LOST else 0


def _replicas(response: DescribeAppResponse) -> Iterator[dict[str, Any]]:
    for role in response.roles_statuses:
        for replica in role.replicas:
            yield {
                "replica": f"{role.role}/{replica.id}",
                "state": str(replica.state),
                "exit_code": replica.exit_code,
                "restarts": replica.num_restarts or None,
                "host": replica.hostname or None,
                "reason": one_line(replica.reason or "", 120) or None,
            }


def describe(options: argparse.Namespace, output: Output) -> int:
    """Show the app, or its request as the scheduler stores it, as JSON."""
    with for_handle(options.handle, options.scheduler, options.connection) as target:
        if options.native:
            info = target.runner.describe_native(options.handle)
            if info is None:
                _described(target, options.handle)
                raise InvalidAppError(f"scheduler {target.backend!r} stores no request of its apps; leave out --native")
            text = str(info)
            output.document({"handle": options.handle, "request": text}) if output.as_json else output.data(text)
            return 0
        app = target.runner.describe(options.handle)
    if app is None:
        raise UnknownAppException(options.handle)
    from airflow_provider_launch.specs.app_dict import app_to_dict

    shown = app_to_dict(app)
    if output.as_json:
        output.document(shown)
    else:
        import yaml

        output.data(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).rstrip("\n"))
    return 0


def list_apps(options: argparse.Namespace, output: Output) -> int:
    """List the apps of a scheduler, the newest last."""
    states = {_state(text) for text in options.state or ()}
    with for_launch(options.scheduler, options.connection) as target:
        found = target.runner.list(target.backend, **_owner(options))
    found = [app for app in found if not states or app.state in states]
    found.sort(key=lambda app: app.created_at or 0.0)
    if output.as_json:
        output.document(
            [
                {
                    "handle": app.app_handle,
                    "app_id": app.app_id,
                    "name": app.name,
                    "state": app.state.name,
                    "created_at": app.created_at,
                    "owner": dict(app.owner),
                }
                for app in found
            ]
        )
        return 0
    output.table(
        [
            {
                "handle": app.app_handle,
                "state": str(app.state),
                "created": _moment(app.created_at),
                "task": _task(app.owner),
            }
            for app in found
        ]
    )
    return 0


def cancel(options: argparse.Namespace, output: Output) -> int:
    """End apps, without waiting for their end."""

    def act(target: Target, handle: str, response: DescribeAppResponse) -> str:
        if is_terminal(response.state):
            return f"already ended as {response.state}"
        target.runner.cancel(handle)
        return "cancelled"

    return _each(options, output, act)


def delete(options: argparse.Namespace, output: Output) -> int:
    """Remove apps and their records."""

    def act(target: Target, handle: str, _response: DescribeAppResponse) -> str:
        target.runner.delete(handle)
        return "deleted"

    return _each(options, output, act)


def sweep(options: argparse.Namespace, output: Output) -> int:
    """Delete old apps, and print their handles."""
    older_than_s = parse_duration(options.older_than)
    with for_launch(options.scheduler, options.connection) as target:
        deleted = target.runner.sweep(target.backend, older_than_s, live=options.live, **_owner(options))
    if output.as_json:
        output.document(deleted)
    for handle in () if output.as_json else deleted:
        output.data(handle)
    output.note(f"{len(deleted)} apps deleted")
    return 0


def parse_duration(text: str) -> float:
    """Return the seconds of `90s`, `30m`, `12h` or `7d`; refuse other texts."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidAppError(f"{text!r} is not a time; write a number with s, m, h or d: 90s, 30m, 12h, 7d")
    return float(found[1]) * _UNITS[found[2]]


def _each(options: argparse.Namespace, output: Output, act: Callable[[Target, str, DescribeAppResponse], str]) -> int:
    """Act on each app, and show the results; one that does not exist does not keep the command from the others."""
    unknown: list[str] = []
    for handle in options.handles:
        with for_handle(handle, options.scheduler, options.connection) as target:
            response = target.scheduler.describe(parse_app_handle(handle).app_id)
            if response is None:
                unknown.append(handle)
                continue
            result = act(target, handle, response)
        if output.as_json:
            output.row({"handle": handle, "result": result})
        else:
            output.note(f"{handle}: {result}")
    if unknown:
        raise UnknownAppException(", ".join(unknown))
    return 0


def _described(target: Target, handle: str) -> DescribeAppResponse:
    found = target.scheduler.describe(parse_app_handle(handle).app_id)
    if found is None:
        raise UnknownAppException(handle)
    return found


def _owner(options: argparse.Namespace) -> dict[str, Any]:
    return {"dag_id": options.dag, "task_id": options.task, "run_id": options.run}


def _state(text: str) -> AppState:
    try:
        return AppState[text.upper()]
    except KeyError:
        names = ", ".join(state.name for state in AppState)
        raise InvalidAppError(f"{text!r} is not a state; there are {names}") from None


def _moment(epoch_s: float | None) -> str:
    return "" if epoch_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_s))


def _task(owner: Mapping[str, str]) -> str:
    return " ".join(owner[name] for name in ("dag_id", "task_id", "run_id") if owner.get(name))


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
