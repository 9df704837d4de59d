"""Lines out of a pod's log, by an exact position: pure.

The log is a file that only grows, and a read gives its lines with a time of `since` or later, in the order of the file.
The times are not in order, because stdout and stderr are copied by two threads, so "everything after the last time"
would lose lines. A position is the last line delivered, by its time in nanoseconds, its checksum, and how many like it
there were at that time: CRI-O gives one time to all that it takes out of a pipe at once. A read begins some seconds
before it and drops what precedes that very line. Where it is missing, the file is another one: it was rotated.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_provider_launch.schedulers.logs import LONGEST_LINE, LogLine, Stream

MARGIN_S = 5
"""How far before the last line a read begins: more than the streams are ever apart, or a clock steps back."""
_NS = 1_000_000_000
STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")


class LineSplitter:
    """Lines of an answer as its pieces come; of a longer line pieces of `LONGEST_LINE`, from its first byte on."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        """Text after the last line or piece."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Return lines with their line feed, and pieces of longer ones without."""
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
    """Yield the same as `LineSplitter`; text after the last line or piece comes at the end, without a line feed."""
    splitter = LineSplitter()
    for piece in pieces:
        yield from splitter.feed(piece)
    if rest := splitter.rest:
        yield rest


class LineReader:
    """Lines of one answer.

    Args:
        cursor: what an earlier reader gave; empty: from the first line on.
        whole: search for the place in all of the file.
    """

    def __init__(self, cursor: Mapping[str, Any], *, whole: bool = False) -> None:
        self._whole = whole
        last = cursor.get("last")
        self._last: tuple[int, int, int] | None = (last[0], last[1], last[2]) if last else None
        self._time: int | None = None
        self._alike: dict[int, int] = {}
        self.seeking = self._last is not None
        """The place from which to go on is not found yet."""
        self.first: int | None = None
        """Time of the first line of the answer, in nanoseconds."""
        self.pending = b""
        """Text without its line feed."""
        self.within = False
        """The last text was a piece of a line that goes on, so the next one has no time of its own."""
        self._within_since: int | None = None
        self._seconds: dict[tuple[bytes, bytes], int] = {}

    @property
    def since(self) -> str | None:
        """The second from which on the server is asked for lines; None: from the first one on."""
        if self._last is None or self._whole:
            return None
        return f"{datetime.fromtimestamp(self._last[0] // _NS - MARGIN_S, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def cut_off(self) -> bool:
        """Whether the answer was begun before the place that it does not have: then it is the same file, cut off."""
        return self._last is not None and self.first is not None and self.first < self._last[0] - MARGIN_S * _NS

    def cursor(self) -> dict[str, Any]:
        """Return the position after the last line delivered."""
        return {} if self._last is None else {"last": list(self._last)}

    def take(self, texts: Iterator[bytes], lines: list[LogLine], limit: int) -> bool:
        """Add the lines of the answer, until they have so many bytes; False: the answer ended before."""
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
        """Deliver text after the last line feed: nothing follows."""
        text, self.pending = self.pending, b""
        if text and (line := self._line(text)) is not None:
            yield line

    def _line(self, text: bytes) -> LogLine | None:
        time = self._within_since
        # The text of a piece is the program's, and may look like a time.
        stamp = None if self.within else STAMP.match(text)
        self.within = not text.endswith(b"\n")
        if stamp is not None:
            time, text = self._ns(stamp), text[stamp.end() :]
        self._within_since = time if self.within else None
        if time is None:
            return None  # the rest of a long line that began before the answer, and was delivered
        if self.first is None:
            self.first = time
        if time != self._time:
            self._time, self._alike = time, {}
        checksum = zlib.crc32(text)
        nth = self._alike[checksum] = self._alike.get(checksum, 0) + 1
        place = time, checksum, nth
        if self.seeking:
            self.seeking = place != self._last
            return None
        self._last = place
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
