"""A scheduler in a process of its own: what a triggerer sees of an app that a worker launched.

`python -m airflow_provider_launch.testing.other_process FACTORY PARAMS_JSON` reads one JSON request per line and
writes one JSON answer per line. Every request is served by a scheduler made for it, so nothing is kept in memory.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.api import Scheduler, Stream
from airflow_provider_launch.specs.app_dict import app_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["OtherProcess", "OtherProcessError"]

_END_TIMEOUT_S = 30.0


class OtherProcessError(Exception):
    """The call failed over there; `kind` is the class of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class OtherProcess:
    """Calls a scheduler in another process, one call after the other.

    Args:
        factory: `package.module:function`, called with a session name and the params.
        params: plain JSON for the factory.
    """

    def __init__(self, factory: str, params: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, factory, json.dumps(params)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # The factory may stand in a test module that only this process knows how to find.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def kill(self) -> None:
        """Let the process die without a word, as a worker does that is out of memory."""
        self._process.kill()
        self._process.wait()

    def call(self, command: str, **arguments: Any) -> Any:
        """Return the answer as plain JSON.

        Commands and answers:
            describe(app_id): `AppStatus.to_json()`, or None.
            cancel(app_id), delete(app_id): None.
            list(): ids.
            schedule(app, cfg, app_id): the id; `app` as of `app_to_dict`.
            read_logs(app_id, role, k, cursor, stream): `{"lines": [[text, stream, time, attempt]], "cursor": ...}`.
            log_iter(app_id, role, k): lines as texts.

        Raises:
            OtherProcessError: the scheduler raised.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the other process died with exit code {process.wait(_END_TIMEOUT_S)}"
        answer = json.loads(line)
        if "error" in answer:
            raise OtherProcessError(answer["error"], answer["message"])
        return answer["answer"]

    def close(self) -> None:
        """End the process; may be repeated."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(factory: str, params: str) -> None:
    """Serve until the input ends."""
    create: Callable[..., Scheduler[Any]] = pkgutil.resolve_name(factory)
    for line in sys.stdin:
        request = json.loads(line)
        scheduler = create("other", **json.loads(params))
        try:
            answer = {"answer": _COMMANDS[request.pop("command")](scheduler, **request)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller shall see it
            answer = {"error": type(error).__name__, "message": str(error)}
        finally:
            scheduler.close()
        print(json.dumps(answer), flush=True)  # noqa: T201 - this is the answer


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
    return [*scheduler.log_iter(app_id, role, k)]


_COMMANDS: dict[str, Callable[..., Any]] = {
    "describe": _describe,
    "cancel": lambda scheduler, app_id: scheduler.cancel(app_id),
    "delete": lambda scheduler, app_id: scheduler.delete(app_id),
    "list": _list,
    "schedule": _schedule,
    "read_logs": _read_logs,
    "log_iter": _log_iter,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
