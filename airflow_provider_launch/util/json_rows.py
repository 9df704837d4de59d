"""Yield the objects of a long JSON array one by one while it is received.

A list of a thousand apps is megabytes of text and even more of objects: as one document, all of it would be in memory
at once, and no other thread would run while it is parsed.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MAX_ROW, _SHOWN = 16 * 1024 * 1024, 300
_BETWEEN = re.compile(r"[\s,]*")
_decode = json.JSONDecoder().raw_decode


def json_rows(
    chunks: Iterable[bytes], on_skipped: Callable[[str], object] = lambda _beginning: None
) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array `[{...}, {...}]` in UTF-8, whose pieces are cut anywhere.

    An object of more than 16 MB is skipped, so that it neither fills the memory nor hides the others; `on_skipped` gets
    its start. A ValueError at the end means that the text is incomplete, or not such a document.
    """
    text_of = codecs.getincrementaldecoder("utf-8")().decode
    rows = _Rows(on_skipped)
    # A long object is parsed again only when its text has doubled.
    parts, size, tried = [""], 0, 0
    for chunk in chunks:
        parts.append(text_of(chunk))
        size += len(parts[-1])
        if size >= min(2 * tried, _MAX_ROW + 1):
            yield from rows.read("".join(parts))
            parts, size, tried = [rows.rest], len(rows.rest), len(rows.rest)
    yield from rows.read("".join([*parts, text_of(b"", final=True)]))
    rows.check_end()


class _Rows:
    """The objects of an array, read from pieces of its text."""

    def __init__(self, on_skipped: Callable[[str], object]) -> None:
        self._on_skipped = on_skipped
        self._has_started = False
        self._skipped: _Skipped | None = None
        self.rest = ""
        """Text after the last object that was read."""

    def read(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the objects in the rest and in the new text."""
        self.rest, at = text, 0
        if not self._has_started:
            self._has_started = text.lstrip()[:1] == "["
            at = text.find("[") + 1
        while self._has_started and text.startswith("{", at := self._next_object(text, at)):
            try:
                row, at = _decode(text, at)
            except ValueError:
                if len(text) - at <= _MAX_ROW:
                    break  # incomplete: wait for the next piece
                self._on_skipped(text[at : at + _SHOWN])
                self._skipped = _Skipped()
            except RecursionError:
                raise ValueError("an object is nested too deeply") from None
            else:
                yield row
        if self._has_started:
            self.rest = text[at:]
        elif len(text) > _MAX_ROW:
            self.check_end()

    def _next_object(self, text: str, at: int) -> int:
        """Return the start of the next object, after one that is skipped; the end of the text if that is incomplete."""
        if self._skipped is not None:
            if (at := self._skipped.end_in(text, at)) < 0:
                return len(text)
            self._skipped = None
        found = _BETWEEN.match(text, at)
        return found.end() if found else at

    def check_end(self) -> None:
        """Raise `ValueError` if the text was not a complete array."""
        if not self._has_started or self._skipped is not None or self.rest.strip() != "]":
            raise ValueError(f"not a complete JSON array of objects: it ends in {self.rest.strip()[-100:]!r}")


class _Skipped:
    """An object that is too large: only its end is searched for, and its text is dropped."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_text = self._is_escaped = False

    def end_in(self, piece: str, at: int) -> int:
        """Return where the object ends in its next piece; -1 if it continues."""
        while at < len(piece):
            if self._is_escaped:
                at, self._is_escaped = at + 1, False
            elif self._is_in_text:
                # Not a regex: a repeating pattern keeps each character that it has passed.
                quote = piece.find('"', at)
                part = piece[at : quote if quote >= 0 else len(piece)]
                self._is_escaped = (len(part) - len(part.rstrip("\\"))) % 2 == 1
                if quote < 0:
                    return -1
                at = quote
                if not self._is_escaped:
                    at, self._is_in_text = quote + 1, False
            else:
                at = _end(_NO_TEXT, piece, at)
                self._is_in_text = piece.startswith('"', at)
                self._depth += piece.startswith("{", at) - piece.startswith("}", at)
                at += 1
                if self._depth == 0 and piece[at - 1 : at] == "}":
                    return at
        return -1


_NO_TEXT = re.compile(r'[^"{}]*')


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
