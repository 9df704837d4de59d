"""Times of the lines of an append-only log, from an index file next to it.

An entry of the index is `time bytes-of-stdout bytes-of-stderr`: the sizes of the logs at that time. It is written only
when a log has grown: at short intervals in the first seconds, so that lines of short apps can be ordered, and later
twice a second at most. A line of a log gets the time of the first entry that covers its end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from airflow_provider_launch.schedulers.logs import Stream

FIRST_BYTES = 16 * 1024
"""Size of the first read of the index: enough for minutes of output."""
_BLOCK_BYTES = 256 * 1024
_MOST_BYTES = 16 * 1024 * 1024
"""Maximum read of the index per call: a week of output. An app can write into it; then its lines get wrong times."""
_MOST_ENTRIES = 1_000_000
"""Maximum entries per call, also of a week; a file of line feeds would take seconds of CPU in each call."""
_LONGEST = 100
"""Maximum length of an entry."""
_ENTRY = re.compile(rb"([0-9]{1,11}(?:\.[0-9]{0,9})?) ([0-9]{1,18}) ([0-9]{1,18})\r?")
_COLUMN = {Stream.STDOUT: 1, Stream.STDERR: 2}


class IndexFile(Protocol):
    """The index of one attempt; it only grows."""

    @property
    def size(self) -> int:
        """Return its size in bytes when it was opened."""
        ...

    def read(self, offset: int, count: int) -> bytes:
        """Return these bytes; fewer only at the end of the file."""
        ...


def line_ends(data: bytes, offset: int) -> list[int]:
    """Return the end offset of each line in `data`, which starts at `offset` in its file."""
    parts = data.split(b"\n")
    last = parts.pop()
    ends = list(accumulate((len(part) + 1 for part in parts), initial=offset))[1:]
    return [*ends, offset + len(data)] if last else ends


def line_times(
    index: IndexFile, stream: Stream, position: int, ends: Sequence[int], modified: float
) -> tuple[list[float], int, int]:
    """Return the time of each line, the position in the index for later lines, and how many lines the index covers.

    Args:
        index: the index of the attempt.
        stream: the log.
        position: position in the index from an earlier call, or 0.
        ends: end offsets of the lines, in order.
        modified: time of the last write of the log: the time of lines that the index does not cover yet.
    """
    times: list[float] = []
    newest = 0.0
    for time, size, start in _entries(index, _COLUMN[stream], position):
        # The clock of a node may be set back.
        newest = max(newest, time)
        position = start
        times += [newest] * (bisect_right(ends, size) - len(times))
        if len(times) == len(ends):
            break
    return times + [max(newest, modified)] * (len(ends) - len(times)), position, len(times)


def _entries(index: IndexFile, column: int, position: int) -> Iterator[tuple[float, int, int]]:
    """Yield time, size of one log, and start offset of each entry from `position` on."""
    # The position may be inside an entry. Its rest is skipped, because the next entry covers the same lines.
    at = max(0, position - 1)
    is_partial, rest, count = position > 0, b"", FIRST_BYTES
    until, left = at + _MOST_BYTES, _MOST_ENTRIES
    while at + len(rest) < min(index.size, until):
        block = index.read(at + len(rest), min(count, index.size - at - len(rest)))
        if not block:
            return
        count = _BLOCK_BYTES
        *lines, rest = (rest + block).split(b"\n")
        for line in lines[:left]:
            found = None if is_partial or len(line) > _LONGEST else _ENTRY.fullmatch(line)
            if found:
                yield float(found[1]), int(found[column + 1]), at
            is_partial = False
            at += len(line) + 1
        left -= len(lines)
        if left <= 0:
            return
        if len(rest) > _LONGEST:
            at, rest, is_partial = at + len(rest), b"", True
