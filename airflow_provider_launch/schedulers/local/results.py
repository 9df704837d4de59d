"""Reads the JSON document that an app returns as its result."""

from __future__ import annotations

import os

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular
from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.specs.errors import InvalidAppError


def read_result(app_dir: str, role_dir: str, k: int) -> JsonValue:
    """Return the result of a replica of the first role from its last attempt; None: it wrote none.

    Raises:
        InvalidAppError: it is larger than 4 KB, not valid JSON, or not a regular file.
    """
    attempts = layout.attempts_of(app_dir, role_dir, k)
    if not attempts:
        return None
    path = f"{layout.attempt_dir(app_dir, attempts[-1][0], role_dir, k, attempts[-1][1])}/result"
    try:
        with open_regular(path) as file:
            data = file.read(RESULT_LIMIT_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    except NotRegularError as error:
        raise InvalidAppError(
            "the result is not a regular file; write one JSON document to LAUNCH_RESULT_PATH"
        ) from error
    return parse_result(data, size)
