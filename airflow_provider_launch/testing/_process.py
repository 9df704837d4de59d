"""Client for a scheduler in another process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_END_TIMEOUT_S = 30.0
_CALL_TIMEOUT_S = 240.0  # pytest-timeout, where there is one, mostly allows 300 s for a test


class OtherProcessError(Exception):
    """The call failed in the other process; `kind` is the class of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class OtherProcess:
    """Calls a scheduler in another process, one call at a time.

    `factory` is `package.module:function`, called with a session name and the `params`, plain JSON.
    """

    def __init__(self, factory: str, params: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.other_process", factory, json.dumps(params)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # The factory may be in a test module that only this process can import.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a call without waiting for its answer, to kill the process during the call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process without cleanup, like a worker that is out of memory."""
        self._process.kill()
        self._process.wait()

    def call(self, command: str, **arguments: Any) -> Any:
        """Return the answer as plain JSON.

        Commands and answers:
            describe(app_id): `AppStatus.to_json()`, or None.
            cancel(app_id), delete(app_id): None.
            list(): ids.
            schedule(app, cfg, app_id): the id; `app` in the format of `app_to_dict`.
            read_logs(app_id, role, k, cursor, stream): `{"lines": [[text, stream, time, attempt]], "cursor": ...}`.
            log_iter(app_id, role, k): lines as texts.
            status(handle), stop(handle), log_lines(handle, role, k): the calls of a `Runner`, by handle.
            wait(handle, timeout_s): like status, after the app has ended.

        Raises:
            OtherProcessError: the scheduler raised.
        """
        self.send(command, **arguments)
        assert self._process.stdout is not None
        # One answer at a time, each on one line, so that no data stays in a buffer that `select` cannot see.
        ready, _, _ = select.select([self._process.stdout], [], [], _CALL_TIMEOUT_S)
        assert ready, f"{command!r} has not been answered within {_CALL_TIMEOUT_S:g} s"
        line = self._process.stdout.readline()
        assert line, f"the other process died with exit code {self._process.wait(_END_TIMEOUT_S)}"
        answer = json.loads(line)
        if "error" in answer:
            raise OtherProcessError(answer["error"], answer["message"])
        return answer["answer"]

    def close(self) -> None:
        """End the process; can be repeated."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
