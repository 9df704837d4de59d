"""Parse text, numbers and documents that a program, an image or an engine wrote.

Such data must not stop a process that serves other apps: by its size, its depth, very long numbers, or characters
that a database rejects. An error of this module concerns one app, never its engine.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any, NoReturn

DEEPEST = 100
"""Levels of lists and objects; JSON parsers on the way to the next task have different, unknown limits."""
LARGEST_INT = 2**63 - 1
"""Databases, and the messages between Airflow's processes, accept integers of 64 bits."""
MOST_CHARS = 4096
"""Maximum characters of a message about one app or replica."""
_UNSTORABLE = re.compile("[\ud800-\udfff]")
"""PostgreSQL does not store NUL in JSON, and UTF-8 cannot encode halves of surrogate pairs."""
_LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_INT = re.compile(r"-?[0-9]{1,19}\Z")


class UntrustedError(ValueError):
    """A program, an image or an engine wrote data that cannot be used; the message has the reason."""


def clean_text(text: str) -> str:
    """Return the text with U+FFFD for each character that databases reject."""
    # A file of NUL costs nothing to write, and the expression needs ten times as long for it.
    return _UNSTORABLE.sub("\ufffd", text.replace("\0", "\ufffd"))


def one_line(text: str, most: int = MOST_CHARS) -> str:
    """Return the text as one line of at most `most` characters, without those that databases reject.

    A message with a program's text in it would otherwise fill the log and the database at each change.
    """
    if len(text) <= most and text.isprintable():
        return text
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return _LINE_ENDS.sub(" ", clean_text(cut)).strip()


def clean_json(value: Any) -> Any:
    """Return a copy of the document with clean texts and keys, and only numbers that JSON allows.

    An integer beyond 64 bits becomes the nearest one of 64 bits; a float that is not finite becomes None.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_json(name): clean_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(each) for each in value]
    if isinstance(value, int) and not -LARGEST_INT <= value <= LARGEST_INT:
        return LARGEST_INT if value > 0 else -LARGEST_INT
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def parse_int(text: str, low: int = 0, high: int = LARGEST_INT) -> int:
    """Return the number; raise UntrustedError if it is not a decimal integer from `low` to `high`."""
    if not _INT.match(text):
        raise UntrustedError(f"{text[:40]!r} is not an integer of at most 19 digits")
    number = int(text)
    if not low <= number <= high:
        raise UntrustedError(f"{number} is not between {low} and {high}")
    return number


def parse_json(data: str | bytes, max_bytes: int, max_depth: int = DEEPEST, *, is_finite: bool = True) -> Any:
    """Return a JSON document of bounded size and depth, with finite numbers and integers of at most 64 bits.

    Without `is_finite` NaN and Infinity, which Python's `json.dumps` writes, are floats instead of refused.

    Raises:
        UntrustedError: it is too large, too deep, or not a valid document.
    """
    if len(data) > max_bytes:
        raise UntrustedError(f"the document has more than {max_bytes} bytes")
    try:
        value = json.loads(
            data,
            parse_constant=_refuse_constant if is_finite else float,
            parse_int=_json_int,
            parse_float=_json_float if is_finite else float,
        )
        _refuse_depth(value, max_depth)
    except RecursionError:
        raise UntrustedError(f"the document is nested more than {max_depth} levels deep") from None
    except UntrustedError:
        raise
    except ValueError as error:
        raise UntrustedError(f"the document is not JSON: {str(error)[:200]}") from error
    return value


class OversizedError(UntrustedError):
    """A document is larger, or its lists and objects have more items, than it can need."""


def refuse_parts(data: str | bytes, most: int) -> None:
    """Refuse JSON whose lists and objects have more items than it can need, before it is parsed.

    Each item takes fifty times the memory of its text. Marks within texts count as well, so `most` must be generous.
    """
    data = data.encode() if isinstance(data, str) else data
    parts = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if parts > most:
        raise OversizedError(f"the document has about {parts} parts, the limit is {most}")


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Return the decompressed data of zlib or gzip; refuse damaged, truncated or larger data."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        inflated = inflater.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise UntrustedError(f"the data cannot be decompressed: {error}") from error
    if len(inflated) > max_bytes:
        raise UntrustedError(f"the decompressed data has more than {max_bytes} bytes")
    if not inflater.eof:
        raise UntrustedError("the compressed data is truncated")
    return inflated


def _refuse_constant(name: str) -> NoReturn:
    raise UntrustedError(f"{name} is not a JSON number; use null")


def _json_int(text: str) -> int:
    return parse_int(text, -LARGEST_INT)


def _json_float(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise UntrustedError("a number is too large for a float")
    return number


def _refuse_depth(value: Any, levels: int) -> None:
    """Check the depth without recursion, which a deep document would exhaust."""
    level = [value]
    while level := [child for each in level if isinstance(each, (dict, list)) for child in _children(each)]:
        levels -= 1
        if levels < 0:
            raise RecursionError


def _children(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
