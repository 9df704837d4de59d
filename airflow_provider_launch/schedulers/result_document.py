"""The JSON document that an app hands back."""

from __future__ import annotations

import math

from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import LARGEST_INT, UntrustedError, parse_json

RESULT_LIMIT_BYTES = 4096
RESERVED_KEYS = frozenset({"__classname__", "__id__", "__type", "__var"})
"""With these Airflow marks objects in an XCom: it refuses to store them, or makes an object of them where one reads
it, so that a program would choose which."""


def parse_result(data: bytes, size: int) -> JsonValue:
    """Return the document; None: the file is empty, as that of a program that printed nothing into it.

    Args:
        data: what the app wrote, or at least its first `RESULT_LIMIT_BYTES`.
        size: bytes that the app wrote.

    Raises:
        InvalidAppError: it is larger than 4 KB, not JSON, or JSON that Airflow cannot store; another run of the app
            would hand back the same.
    """
    if size > RESULT_LIMIT_BYTES:
        raise InvalidAppError(
            f"the result has {size} bytes, at most {RESULT_LIMIT_BYTES} are handed back; "
            f"store it elsewhere and write its address to LAUNCH_RESULT_PATH"
        )
    if not data.strip():
        return None
    try:
        # A reader may give more bytes than those that count.
        result: JsonValue = parse_json(data, len(data))
    except UntrustedError as error:
        raise _unstorable(str(error)) from error
    check_result(result)
    return result


def check_result(value: JsonValue, path: str = "") -> None:
    """Refuse what Python's parser takes, and Airflow's store or its database does not.

    Args:
        value: a document of a program, however it was read.
        path: where in the document it stands.

    Raises:
        InvalidAppError: a text or a number cannot be stored, or a key is reserved.
    """
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _unstorable(f"{value} is not a number of JSON, which has null for it")
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
        raise _unstorable(r"a text holds \u0000, which PostgreSQL stores in no JSON")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _unstorable("a text holds half of a surrogate pair")


def _unstorable(why: str) -> InvalidAppError:
    return InvalidAppError(f"the result cannot be stored: {why}; write one JSON document to LAUNCH_RESULT_PATH")
