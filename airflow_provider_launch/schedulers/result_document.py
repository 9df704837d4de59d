"""The JSON document that an app returns as its result."""

from __future__ import annotations

import logging
import math

from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import LARGEST_INT, UntrustedError, one_line, parse_json

log = logging.getLogger(__name__)

RESULT_LIMIT_BYTES = 4096
XCOM_PATH = "/airflow/xcom/return.json"
"""Where images for KubernetesPodOperator write their result; in containers it is read, too."""
RESERVED_KEYS = frozenset({"__classname__", "__id__", "__type", "__var"})
"""Keys that mark serialized objects in an XCom. Airflow refuses to store them, or creates an object of the named class
when the XCom is read, so an app could choose the class."""


def parse_result(data: bytes, size: int, limit: int = RESULT_LIMIT_BYTES) -> JsonValue:
    """Return the document; None if the file is empty.

    NaN and Infinity become null, with a warning: the metric of a training that diverged is an ordinary result.

    Args:
        data: the file, or at least its first `limit` bytes.
        size: size of the file in bytes.
        limit: maximum size in bytes; Kubernetes has an option for more than the 4 KB of every scheduler.

    Raises:
        InvalidAppError: it is larger than the limit, not valid JSON, or JSON that Airflow cannot store; a retry would
            not help.
    """
    if size > limit:
        raise InvalidAppError(
            f"the result has {size} bytes, the limit is {limit}; "
            f"write it to a volume or an object store, such as S3, and its address to LAUNCH_RESULT_PATH"
        )
    if not data.strip():
        return None
    try:
        # A reader may pass more than the limit.
        written: JsonValue = parse_json(data, len(data), is_finite=False)
    except UntrustedError as error:
        raise _unstorable(str(error)) from error
    result = with_null(written)
    check_result(result)
    return result


def with_null(value: JsonValue) -> JsonValue:
    """Return the document with null for each number that JSON does not have; one warning names the first of them."""
    places: list[str] = []
    changed = _with_null(value, "", places)
    if places:
        more = f" and in {len(places) - 1} more places" if len(places) > 1 else ""
        where = one_line(f"at {places[0]!r}{more}" if places[0] else "as its only value")
        log.warning("the result has NaN or Infinity %s, which JSON does not have: null is stored instead", where)
    return changed


def _with_null(value: JsonValue, path: str, places: list[str]) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        places.append(path)
        return None
    if isinstance(value, dict):
        return {name: _with_null(each, _below(path, name), places) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_null(each, f"{path}[{number}]", places) for number, each in enumerate(value)]
    return value


def _below(path: str, name: str) -> str:
    return f"{path}.{name[:40]}" if path else name[:40]


def check_result(value: JsonValue, path: str = "") -> None:
    """Refuse values that Python's JSON parser accepts, but Airflow or its database cannot store.

    `path` is where this value is in the document.
    """
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _unstorable(f"{value} is not a JSON number; use null")
    elif isinstance(value, int):
        if abs(value) > LARGEST_INT:
            raise _unstorable("an integer has more than 64 bits")
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_key(name, path)
            check_result(each, _below(path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            check_result(each, f"{path}[{number}]")


def _check_key(name: str, path: str) -> None:
    _check_text(name)
    if name in RESERVED_KEYS:
        raise InvalidAppError(
            f"the result has the key {name!r}{f' in {path}' if path else ''}, which Airflow reserves in XComs; "
            f"write it under another name, or the whole document as one text"
        )


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _unstorable(r"a text contains \u0000, which PostgreSQL cannot store in JSON")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _unstorable("a text contains half of a surrogate pair")


def _unstorable(why: str) -> InvalidAppError:
    return InvalidAppError(f"the result cannot be stored: {why}; write one JSON document to LAUNCH_RESULT_PATH")
