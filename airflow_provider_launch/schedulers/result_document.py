"""The JSON document that an app hands back."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError

__all__ = ["RESULT_LIMIT_BYTES", "parse_result"]

RESULT_LIMIT_BYTES = 4096
DEEPEST = 100
"""Levels of lists and objects: JSON parsers on the way to the next task refuse more, each at another depth."""


def parse_result(data: bytes, size: int) -> JsonValue:
    """Return the document.

    Args:
        data: what the app wrote, or at least its first `RESULT_LIMIT_BYTES`.
        size: bytes that the app wrote.

    Raises:
        InvalidAppError: it is larger than 4 KB, no JSON, or JSON that no database stores; another run of the app would
            hand back no better one.
    """
    if size > RESULT_LIMIT_BYTES:
        raise InvalidAppError(
            f"the result has {size} bytes, at most {RESULT_LIMIT_BYTES} are handed back; "
            f"store it elsewhere and write its address to LAUNCH_RESULT_PATH"
        )
    try:
        result: JsonValue = json.loads(data, parse_constant=_refuse_constant)
        _check(result, 0)
    except (ValueError, RecursionError) as error:
        why = f"nested more than {DEEPEST} levels deep" if isinstance(error, RecursionError) else error
        raise InvalidAppError(
            f"the result is no JSON that can be stored: {why}; write one JSON document to LAUNCH_RESULT_PATH"
        ) from error
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check(value: JsonValue, depth: int) -> None:
    """Refuse what Python's parser takes and Airflow's store or database does not."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large for a float")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**300:
        # Also: Python refuses to print an integer of more than 4300 digits.
        raise ValueError("a number is too large")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_text(name)
            _check(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _check(each, depth + 1)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError(r"a text holds \u0000, which PostgreSQL stores in no JSON")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("a text holds half of a surrogate pair")
