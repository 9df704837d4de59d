"""Parses the lines of a pod's log and finds an exact position in them, without I/O.

A log is a file that only grows. A read returns the lines from time `since` on, in the order of the file. Times are not
in order, because two threads copy stdout and stderr, so "all lines after the last time" would lose lines. A position is
the last delivered line: its time in nanoseconds, its checksum, and its number among equal lines of that time, because
CRI-O gives one time to all lines of one read from a pipe. A read starts some seconds before the position and drops all
lines up to it. If the line is missing, the file was rotated.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_provider_launch.schedulers.logs import LONGEST_LINE, LogLine, Stream

MARGIN_S = 5
"""Seconds by which a read starts before the last line: more than the streams diverge, or a clock steps back."""
_NS = 1_000_000_000
STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")


class LineSplitter:
    """Splits the pieces of an answer into lines, and longer lines into pieces of `LONGEST_LINE` bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        """The text after the last complete line or piece."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Return complete lines with their line feed, and pieces of longer lines without one."""
        first, *others = data.split(b"\n")
        found = self._add(first)
        for text in others:
            found.append(self.rest + b"\n")
            self._parts, self._size = [], 0
            found += self._add(text)
        return found

    def _add(self, text: bytes) -> list[bytes]:
        self._parts.append(text)
        self._size += len(text)
        if self._size < LONGEST_LINE:
            return []
        whole = self.rest
        cut = self._size - self._size % LONGEST_LINE
        self._parts, self._size = [whole[cut:]], self._size - cut
        return [whole[at : at + LONGEST_LINE] for at in range(0, cut, LONGEST_LINE)]


def split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines and pieces of `LineSplitter`, then the rest without a line feed."""
    splitter = LineSplitter()
    for piece in pieces:
        yield from splitter.feed(piece)
    if rest := splitter.rest:
        yield rest


class LineReader:
    """Reads the lines of one answer after a cursor, which it searches in the whole file if `whole` is set."""

    def __init__(self, cursor: Mapping[str, Any], *, whole: bool = False) -> None:
        self._whole = whole
        last = cursor.get("last")
        self._last: tuple[int, int, int] | None = (last[0], last[1], last[2]) if last else None
        self._time: int | None = None
        self._equal_lines: dict[int, int] = {}
        self.seeking = self._last is not None
        """Whether the position to continue from is still searched for."""
        self.first: int | None = None
        """Time of the first line of the answer, in nanoseconds."""
        self.pending = b""
        """The last text, which has no line feed yet."""
        self.within = False
        """Whether the last text was a piece of an unfinished line, so that the next text has no time."""
        self._within_since: int | None = None
        self._seconds: dict[tuple[bytes, bytes], int] = {}

    @property
    def since(self) -> str | None:
        """The time to request lines from, in whole seconds; None for all lines."""
        if self._last is None or self._whole:
            return None
        return f"{datetime.fromtimestamp(self._last[0] // _NS - MARGIN_S, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def cut_off(self) -> bool:
        """Whether the answer starts before the position but does not reach it: the same file, cut off."""
        return self._last is not None and self.first is not None and self.first < self._last[0] - MARGIN_S * _NS

    def cursor(self) -> dict[str, Any]:
        """Return the position after the last line delivered."""
        return {} if self._last is None else {"last": list(self._last)}

    def take(self, texts: Iterator[bytes], lines: list[LogLine], limit: int) -> bool:
        """Add lines of the answer up to `limit` bytes; return False if the answer ended before that."""
        size = 0
        for text in texts:
            if not text.endswith(b"\n") and len(text) < LONGEST_LINE:
                self.pending = text  # the last one
            elif (line := self._line(text)) is not None:
                lines.append(line)
                size += len(text)
                if size >= limit:
                    return True
        return False

    def rest(self) -> Iterator[LogLine]:
        """Yield the text after the last line feed, once nothing can follow."""
        text, self.pending = self.pending, b""
        if text and (line := self._line(text)) is not None:
            yield line

    def _line(self, text: bytes) -> LogLine | None:
        time = self._within_since
        # The text of a piece comes from the program and may look like a time.
        stamp = None if self.within else STAMP.match(text)
        self.within = not text.endswith(b"\n")
        if stamp is not None:
            time, text = self._ns(stamp), text[stamp.end() :]
        self._within_since = time if self.within else None
        if time is None:
            return None  # the rest of a long line that was delivered before
        if self.first is None:
            self.first = time
        if time != self._time:
            self._time, self._equal_lines = time, {}
        checksum = zlib.crc32(text)
        nth = self._equal_lines[checksum] = self._equal_lines.get(checksum, 0) + 1
        position = time, checksum, nth
        if self.seeking:
            self.seeking = position != self._last
            return None
        self._last = position
        return LogLine(text.decode("utf-8", "replace"), Stream.COMBINED, time / _NS)

    def _ns(self, stamp: re.Match[bytes]) -> int:
        second = (stamp[1], stamp[3])
        base = self._seconds.get(second)
        if base is None:
            if len(self._seconds) > 1000:  # noqa: PLR2004 - a cache, of any size
                self._seconds.clear()
            text = (stamp[1] + stamp[3].replace(b"Z", b"+00:00")).decode("ascii")
            base = self._seconds[second] = int(datetime.fromisoformat(text).timestamp())
        return base * _NS + int((stamp[2] or b"0").ljust(9, b"0"))
