"""The objects of a long JSON array, one after the other while it comes in.

A list of a thousand apps is megabytes of text and more of objects: as one document all of it is in memory at once, and
no other thread runs while it is parsed.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["json_rows"]

_MAX_ROW = 16 * 1024 * 1024
_BETWEEN = re.compile(r"[\s,]*")
_decode = json.JSONDecoder().raw_decode


def json_rows(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array.

    Args:
        chunks: pieces of a UTF-8 document `[{...}, {...}]`, cut anywhere.

    Raises:
        ValueError: at the end, if it is no such document, or not all of it.
    """
    text_of = codecs.getincrementaldecoder("utf-8")().decode
    text, at, began = "", 0, False
    for chunk in chunks:
        text, at = text[at:] + text_of(chunk), 0
        if not began:
            began = text.lstrip()[:1] == "["
            at = text.find("[") + 1 if began else 0
        while began and text.startswith("{", at := _after(text, at)):
            try:
                row, at = _decode(text, at)
            except ValueError:
                break  # the rest of it comes with the next piece
            except RecursionError:
                raise ValueError("an object is nested too deeply") from None
            yield row
        if len(text) - at > _MAX_ROW:
            raise ValueError(f"an object has more than {_MAX_ROW} letters")
    rest = text[at:].strip()
    if not began or rest != "]":
        raise ValueError(f"no JSON array of objects, or cut off: it ends in {rest[-100:]!r}")


def _after(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at
