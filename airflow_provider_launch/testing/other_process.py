"""Serves a scheduler in a separate process, like a triggerer that follows an app of a worker.

`python -m airflow_provider_launch.testing.other_process FACTORY PARAMS_JSON` reads one JSON request per line and
writes one JSON answer per line. Every request is served by a scheduler made for it, so nothing is kept in memory.
`_process.OtherProcess` is the client and documents the requests.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.runner.api import Runner
from airflow_provider_launch.schedulers.api import Scheduler, Stream
from airflow_provider_launch.specs.app_dict import app_from_dict
from airflow_provider_launch.testing._base import within, without_unknown_errors

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_S = 60.0
_PAUSE_S = 1.0


def main(factory: str, params: str) -> None:
    """Serve until the input ends."""
    # Output of the scheduler or of its programs must not mix with answers: redirect it to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    create: Callable[..., Scheduler[Any]] = pkgutil.resolve_name(factory)
    for line in sys.stdin:
        request = json.loads(line)
        scheduler = without_unknown_errors(create("other", **json.loads(params)))
        try:
            answer = {"answer": _COMMANDS[request.pop("command")](scheduler, **request)}
        except Exception as error:  # noqa: BLE001 - all errors are sent to the caller
            answer = {"error": type(error).__name__, "message": str(error)}
        finally:
            scheduler.close()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _describe(scheduler: Scheduler[Any], app_id: str) -> dict[str, Any] | None:
    found = scheduler.describe(app_id)
    return found.to_status().to_json() if found else None


def _list(scheduler: Scheduler[Any]) -> list[str]:
    return [row.app_id for row in scheduler.list()]


def _schedule(scheduler: Scheduler[Any], app: dict[str, Any], cfg: dict[str, Any], app_id: str) -> str:
    return scheduler.schedule(scheduler.submit_dryrun(app_from_dict(app), cfg, app_id=app_id))


def _read_logs(
    scheduler: Scheduler[Any], app_id: str, role: str, k: int = 0, cursor: Any = None, stream: str | None = None
) -> dict[str, Any]:
    chunk = scheduler.read_logs(app_id, role, k, cursor, streams=Stream(stream) if stream else None)
    lines = [[line.text, line.stream.value, line.time, line.attempt] for line in chunk.lines]
    return {"lines": lines, "cursor": chunk.cursor}


def _log_iter(scheduler: Scheduler[Any], app_id: str, role: str, k: int = 0) -> list[str]:
    return [*within(scheduler.log_iter(app_id, role, k), _READ_S, f"the log of {role}/{k} of {app_id}")]


def _by_handle(scheduler: Scheduler[Any]) -> Runner:
    return Runner("other", {scheduler.backend: lambda *_, **__: scheduler})


def _status(scheduler: Scheduler[Any], handle: str) -> dict[str, Any] | None:
    found = _by_handle(scheduler).status(handle)
    return found.to_json() if found else None


def _wait(scheduler: Scheduler[Any], handle: str, timeout_s: float) -> dict[str, Any] | None:
    found = _by_handle(scheduler).wait(handle, min(scheduler.poll_interval_s, _PAUSE_S), timeout=timeout_s)
    return found.to_json() if found else None


def _log_lines(scheduler: Scheduler[Any], handle: str, role: str, k: int = 0) -> list[str]:
    return [*within(_by_handle(scheduler).log_lines(handle, role, k), _READ_S, f"the log of {role}/{k} of {handle}")]


_COMMANDS: dict[str, Callable[..., Any]] = {
    "describe": _describe,
    "cancel": lambda scheduler, app_id: scheduler.cancel(app_id),
    "delete": lambda scheduler, app_id: scheduler.delete(app_id),
    "list": _list,
    "schedule": _schedule,
    "read_logs": _read_logs,
    "log_iter": _log_iter,
    "status": _status,
    "wait": _wait,
    "stop": lambda scheduler, handle: _by_handle(scheduler).cancel(handle),
    "log_lines": _log_lines,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
