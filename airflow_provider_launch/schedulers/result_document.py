"""The JSON document that an app hands back."""

from __future__ import annotations

import json

from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError

__all__ = ["RESULT_LIMIT_BYTES", "parse_result"]

RESULT_LIMIT_BYTES = 4096


def parse_result(data: bytes, size: int) -> JsonValue:
    """Return the document.

    Args:
        data: what the app wrote, or at least its first `RESULT_LIMIT_BYTES`.
        size: bytes that the app wrote.

    Raises:
        InvalidAppError: it is larger than 4 KB, or no JSON; another run of the app would hand back no better one.
    """
    if size > RESULT_LIMIT_BYTES:
        raise InvalidAppError(
            f"the result has {size} bytes, at most {RESULT_LIMIT_BYTES} are handed back; "
            f"store it elsewhere and write its address to LAUNCH_RESULT_PATH"
        )
    try:
        result: JsonValue = json.loads(data)
    except ValueError as error:
        raise InvalidAppError(
            f"the result is no JSON: {error}; write one JSON document to LAUNCH_RESULT_PATH"
        ) from error
    return result
