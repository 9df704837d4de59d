"""The JSON document that an app hands back."""

from __future__ import annotations

import json
import os

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import LaunchError

__all__ = ["read_result"]

LIMIT_BYTES = 4096


def read_result(app_dir: str, role_dir: str) -> JsonValue:
    """Return what replica 0 of the first role wrote in its last attempt; None: nothing.

    Raises:
        LaunchError: it is larger than 4 KB, or no JSON.
    """
    attempts = layout.attempts_of(app_dir, role_dir, 0)
    if not attempts:
        return None
    path = f"{layout.attempt_dir(app_dir, attempts[-1][0], role_dir, 0, attempts[-1][1])}/result"
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > LIMIT_BYTES:
        raise LaunchError(
            f"the result has {os.path.getsize(path)} bytes, at most {LIMIT_BYTES} are handed back; "
            f"store it elsewhere and write its address to LAUNCH_RESULT_PATH"
        )
    try:
        result: JsonValue = json.loads(data)
    except ValueError as error:
        raise LaunchError(f"the result is no JSON: {error}; write one JSON document to LAUNCH_RESULT_PATH") from error
    return result
