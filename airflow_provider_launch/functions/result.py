"""The result document of a function, read by the launcher."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from airflow_provider_launch.functions.program import LARGEST_RESULT
from airflow_provider_launch.schedulers.result_document import check_result, with_null
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import inflate, one_line, parse_json


def value_of(document: Any) -> Any:
    """Return the value that the function has returned.

    Args:
        document: the result of the app: `{value}`, `{packed}` or `{refused}`.

    Raises:
        InvalidAppError: the function returned a value that cannot be a result, or none of these documents.
    """
    if isinstance(document, dict):
        if isinstance(refused := document.get("refused"), str):
            raise InvalidAppError(one_line(refused))
        if "value" in document:
            return document["value"]
        if isinstance(packed := document.get("packed"), str):
            return _unpacked(packed)
    raise InvalidAppError(
        "the function has returned no value, although its process succeeded: it was left by os._exit or exec, or it "
        "wrote to LAUNCH_RESULT_PATH; return the value"
    )


def values_of(documents: Iterable[Any], most_bytes: int) -> list[Any]:
    """Return the values of all replicas, see `value_of`.

    Raises:
        InvalidAppError: as `value_of`, or they have more than `most_bytes` bytes together as JSON.
    """
    values, size = [], 0
    for document in documents:
        value = value_of(document)
        # A packed value has a thousandth of the size.
        size += len(json.dumps(value, separators=(",", ":"))) + 1
        if size > most_bytes:
            raise InvalidAppError(
                f"the values of the replicas have more than {most_bytes} bytes together, which Airflow would store as "
                f"one XCom; let each replica return less, or use gather=False"
            )
        values.append(value)
    return values


def _unpacked(text: str) -> Any:
    try:
        written = parse_json(inflate(base64.b85decode(text), LARGEST_RESULT), LARGEST_RESULT, is_finite=False)
    except ValueError as error:
        raise InvalidAppError(f"the packed value of the function cannot be read: {error}") from error
    # Under the name that a value has which is not packed, for the warning.
    document: Any = with_null({"value": written})
    check_result(document)
    return document["value"]
