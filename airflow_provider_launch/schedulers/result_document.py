"""The JSON document that an app returns as its result."""

from __future__ import annotations

import math

from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import LARGEST_INT, UntrustedError, parse_json

RESULT_LIMIT_BYTES = 4096
RESERVED_KEYS = frozenset({"__classname__", "__id__", "__type", "__var"})
"""Keys that mark serialized objects in an XCom. Airflow refuses to store them, or creates an object of the named class
when the XCom is read, so an app could choose the class."""


def parse_result(data: bytes, size: int) -> JsonValue:
    """Return the document; None if the file is empty.

    Args:
        data: the file, or at least its first `RESULT_LIMIT_BYTES`.
        size: size of the file in bytes.

    Raises:
        InvalidAppError: it is larger than 4 KB, not valid JSON, or JSON that Airflow cannot store; a retry would not
            help.
    """
    if size > RESULT_LIMIT_BYTES:
        raise InvalidAppError(
            f"the result has {size} bytes, the limit is {RESULT_LIMIT_BYTES}; "
            f"store it elsewhere and write its address to LAUNCH_RESULT_PATH"
        )
    if not data.strip():
        return None
    try:
        # A reader may pass more than `RESULT_LIMIT_BYTES` bytes.
        result: JsonValue = parse_json(data, len(data))
    except UntrustedError as error:
        raise _unstorable(str(error)) from error
    check_result(result)
    return result


def check_result(value: JsonValue, path: str = "") -> None:
    """Refuse values that Python's JSON parser accepts, but Airflow or its database cannot store.

    Args:
        value: a parsed document, or a part of one.
        path: where this part is in the document.

    Raises:
        InvalidAppError: a text or a number cannot be stored, or a key is reserved.
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
            check_result(each, f"{path}.{name[:40]}" if path else name[:40])
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
