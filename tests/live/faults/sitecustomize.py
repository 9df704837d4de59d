"""Makes a triggerer of the tests get wrong answers about states, as long as `$LAUNCH_TEST_FAULTS/fault` names which.

Python imports it at its start from the first folder of its path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

_FOLDER = Path(os.environ["LAUNCH_TEST_FAULTS"])
_ANSWERS: dict[str, tuple[int, bytes, str]] = {
    "500": (500, b'{"detail": "Internal Server Error"}', "application/json"),
    "404": (404, b"<html>Not Found</html>", "text/html"),
    "empty": (200, b'{"task_states": {}}', "application/json"),
    "nothing": (200, b"", "application/json"),
}
_send = httpx.Client._send_single_request


def _send_or_fail(client: httpx.Client, request: httpx.Request) -> httpx.Response:
    path = request.url.path
    if path.endswith("/task-instances/states") or ("/dag-runs/" in path and path.endswith("/state")):
        try:
            fault = (_FOLDER / "fault").read_text()
        except OSError:
            return _send(client, request)
        with (_FOLDER / "asked").open("a") as file:
            file.write("x")
        status, content, kind = _ANSWERS[fault]
        return httpx.Response(status, headers={"content-type": kind}, content=content, request=request)
    return _send(client, request)


patched: Any = httpx.Client
patched._send_single_request = _send_or_fail
