"""Reads the lines of one replica from its append-only log files, with an exact cursor.

The cursor is `{"at": [app attempt, replica attempt], "stdout": [inode, offset, scanned, index], "stderr": [...]}`.
`offset` is the end of the last line that was delivered. There is no line feed between `offset` and `scanned`, so a long
line that grows slowly is not searched again. `index` is a position in the index of times, if there is one.

The index is a file next to the logs. Its entries are `time bytes-of-stdout bytes-of-stderr`: the sizes of the logs at
that time. One is written only when a log has grown: at short intervals in the first seconds, so that lines of short
apps can be ordered, and later twice a second at most. A line gets the time of the first entry that covers its end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from operator import itemgetter
from typing import Any, Protocol

from airflow_provider_launch.schedulers._kit.attempt_logs import Attempt, AttemptRead, read_attempts
from airflow_provider_launch.schedulers.logs import (
    LONGEST_LINE,
    MOST_LINES,
    JsonValue,
    LogChunk,
    LogLine,
    Stream,
    split_lines,
)

CHUNK_BYTES = 256 * 1024
FIRST_BYTES = 16 * 1024
"""Size of the first read of the index: enough for minutes of output."""
_MOST_BYTES = 16 * 1024 * 1024
"""Maximum read of the index per call: a week of output. An app can write into it; then its lines get wrong times."""
_MOST_ENTRIES = 1_000_000
"""Maximum entries per call, also of a week; a file of line feeds would take seconds of CPU in each call."""
_LONGEST = 100
"""Maximum length of an entry."""
_ENTRY = re.compile(rb"([0-9]{1,11}(?:\.[0-9]{0,9})?) ([0-9]{1,18}) ([0-9]{1,18})\r?")
_COLUMN = {Stream.STDOUT: 1, Stream.STDERR: 2}


class IndexFile(Protocol):
    """A file that only grows, such as the index of one attempt."""

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

    Lines that it does not cover get `modified`, the time of the last write of the log. `position` is that of an earlier
    call, or 0; `ends` are the end offsets of the lines.
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
        count = CHUNK_BYTES
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


_UNFINISHED_BYTES = 4096
_ORDER = (Stream.STDOUT, Stream.STDERR)
_LAST = float("inf")


class LogFile(IndexFile, Protocol):
    """A log, which only grows."""

    @property
    def inode(self) -> int:
        """Return its inode number: another number means another file."""
        ...

    @property
    def modified(self) -> float:
        """Return the time of the last write, in epoch seconds."""
        ...


OpenLog = Callable[[tuple[int, int], Stream], AbstractContextManager[LogFile | None]]
"""Opens the log of an attempt; None if there is none yet."""
OpenIndex = Callable[[tuple[int, int]], AbstractContextManager[IndexFile | None]]
"""Opens the index of times of an attempt; None if there is none."""


def read_chunk(
    attempts: Sequence[tuple[int, int]],
    cursor: JsonValue,
    streams: Stream | None,
    *,
    open_log: OpenLog,
    is_complete: Callable[[int], bool],
    open_index: OpenIndex | None = None,
) -> LogChunk:
    """Return the next lines of one replica, whose `attempts` are pairs of app attempt and replica attempt.

    `is_complete` returns whether the log of the attempt with this index is complete, and is called before its files are
    read. Lines of a backend without `open_index` have no time.
    """
    wanted = _ORDER if streams in {None, Stream.COMBINED} else (streams,)

    def read_one(attempt: Attempt[tuple[int, int]], state: Mapping[str, Any]) -> AttemptRead:
        # Checked before the read, so that no line is missed.
        complete = attempt.is_over or is_complete(attempt.number)
        after = dict(state)
        lines: list[tuple[float, LogLine]] = []
        is_exhausted = True
        # The index is opened before the logs, so that the logs contain all lines that it covers.
        with open_index(attempt.source) if open_index else contextlib.nullcontext() as index:
            for stream in wanted:
                with open_log(attempt.source, stream) as file:
                    if file is not None:
                        position = state.get(stream.value)
                        found, after[stream.value], at_end = _read_file(file, stream, position, index, complete)
                        lines += [(at, LogLine(text, stream, time, attempt.number)) for text, time, at in found]
                        is_exhausted = is_exhausted and at_end
        lines.sort(key=itemgetter(0))
        return AttemptRead([line for _, line in lines], after, continues=complete and is_exhausted)

    each = [
        Attempt(at, {"at": list(at)}, number, has_log=True, is_over=number < len(attempts) - 1)
        for number, at in enumerate(attempts)
    ]
    return read_attempts(each, cursor if isinstance(cursor, dict) else {}, read_one)


def position_in(cursor: JsonValue, at: tuple[int, int], stream: Stream) -> int:
    """Return the offset at which the next read of this file starts."""
    if isinstance(cursor, dict) and list(cursor.get("at") or []) == list(at) and (found := cursor.get(stream.value)):
        return _parts(found)[1]
    return 0


def index_position_in(cursor: JsonValue, at: tuple[int, int], streams: Sequence[Stream]) -> int:
    """Return the offset at which the next read of the index of times starts."""
    if not isinstance(cursor, dict) or list(cursor.get("at") or []) != list(at):
        return 0
    return min((_parts(cursor.get(one.value))[3] for one in streams), default=0)


def unfinished_text(file: LogFile, offset: int) -> str:
    """Return the end of the text after the last line, which ends at `offset`; empty if there are unread lines."""
    start = max(offset, file.size - _UNFINISHED_BYTES)
    data = file.read(start, file.size - start)
    return "" if b"\n" in data else data.decode("utf-8", "ignore")


def _read_file(
    file: LogFile, stream: Stream, position: Any, index: IndexFile | None, complete: bool
) -> tuple[list[tuple[str, float | None, float]], Any, bool]:
    """Return whole lines (with `complete` also an unfinished last one), the new position, whether all was read.

    Each line has its time, and the key by which the lines of both streams are sorted.
    """
    inode, offset, scanned, at = _parts(position)
    if inode != file.inode:
        # The file was replaced: the offsets belong to the old one.
        offset = scanned = at = 0
    end = _end_of_lines(file, offset, max(scanned, offset), complete=complete)
    lines: list[tuple[str, float | None, float]] = []
    if end > offset:
        data = file.read(offset, end - offset)
        texts = split_lines(data.decode("utf-8", "replace"))
        if index is None:
            lines = [(text, None, _LAST) for text in texts]
        else:
            times, at, covered = line_times(index, stream, at, line_ends(data, offset), file.modified)
            # The other lines have no final time, so a later read may merge the two streams in another order.
            keys = [*times[:covered], *[_LAST] * (len(texts) - covered)]
            lines = [*zip(texts, times, keys, strict=True)]
        scanned = end
    else:
        scanned = file.size
    is_exhausted = end >= file.size
    if index is not None and is_exhausted:
        # Later lines are in later entries, so skip the rest: an idle stream need not read the entries of the other.
        at = index.size
    return lines, [file.inode, end, scanned, at], is_exhausted


def _parts(position: Any) -> tuple[int, int, int, int]:
    """Return inode, offset, scanned and index of a position; it may be None, or of a release without an index."""
    inode, offset, scanned, *rest = position or (0, 0, 0)
    return int(inode), int(offset), int(scanned), int(rest[0]) if rest else 0


def _end_of_lines(file: LogFile, offset: int, scanned: int, *, complete: bool) -> int:
    """Return the end of the last whole line in the next `CHUNK_BYTES`, or of the first line if it is longer."""
    # There is no line feed before `scanned`.
    position = scanned
    while position < file.size:
        block = file.read(position, min(CHUNK_BYTES, file.size - position))
        found = block.rfind(b"\n")
        if found >= 0:
            return position + _end_of_first(block, found)
        position += len(block)
        if not block:
            break
        if position - offset >= LONGEST_LINE:
            return position
    return position if complete else offset


def _end_of_first(block: bytes, last: int) -> int:
    """Return the end of the last line of a block that ends at `last`; of its first lines, if there are too many."""
    if block.count(b"\n", 0, last) < MOST_LINES:
        return last + 1
    return sum(len(line) + 1 for line in block.split(b"\n", MOST_LINES)[:MOST_LINES])


class _File:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self.inode, self.size, self.modified = status.st_ino, status.st_size, status.st_mtime

    def read(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0 and (part := os.pread(self._fd, count, offset)):
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)


@contextlib.contextmanager
def open_file(path: str, root: str | None = None) -> Iterator[LogFile | None]:
    """Open a file of a file system that is mounted here; None if there is no regular file.

    The app may have replaced the file, so a FIFO must not block the reader and a link must not redirect it. With
    `root`, no directory below it may be a link either; without it, the app sees the same files as this process.
    """
    *folders, name = path.split("/") if root else [path]
    try:
        with contextlib.ExitStack() as above:
            at = None
            for folder in [root, *folders] if root else []:
                links = 0 if at is None else os.O_NOFOLLOW
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | links | os.O_CLOEXEC, dir_fd=at)
                above.callback(os.close, at)
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket; ENOTDIR: a directory was replaced by something else.
        absent = {errno.ENOENT, errno.ELOOP, errno.ENXIO, *([errno.ENOTDIR] if root else [])}
        if error.errno not in absent:
            raise
        yield None
        return
    try:
        yield _File(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)
