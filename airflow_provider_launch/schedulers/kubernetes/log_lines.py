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

from airflow_provider_launch.schedulers.logs import LogLine, Stream

__all__ = ["MARGIN_S", "STAMP", "LineReader", "split"]

MARGIN_S = 5
"""How far before the last line a read begins: more than the streams are ever apart, or a clock steps back."""
_NS = 1_000_000_000
STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")


def split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their line feed; text after the last one comes at the end, without."""
    parts: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        parts.append(first)
        for text in rest:
            yield b"".join(parts) + b"\n"
            parts = [text]
    if rest_of_all := b"".join(parts):
        yield rest_of_all


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
            if not text.endswith(b"\n"):
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
        stamp = STAMP.match(text)
        if stamp is None:
            return None  # the rest of a long line that began before the answer, and was delivered
        time, text = self._ns(stamp), text[stamp.end() :]
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
