"""Parses the engine's log frames into lines, from an exact position on, without I/O.

The engine copies stdout and stderr in two threads, so its log is not ordered by time, and "everything after the last
time" would lose lines. A position is the last delivered frame of each stream: (time in ns, ordinal among frames of that
time). A read starts some seconds before the newest time seen, and drops everything up to that frame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from airflow_provider_launch.schedulers.docker.containers import epoch_ns
from airflow_provider_launch.schedulers.logs import LONGEST_LINE, LogLine, Stream
from airflow_provider_launch.util.untrusted import UntrustedError

MARGIN_NS = 5_000_000_000
"""A read starts this long before the newest time: longer than the lag between the streams, or a step of the clock."""
_MAX_PENDING_BYTES = 16 * 1024 * 1024
_FRAME_BYTES = 400
"""Memory of a pending frame in addition to its text: a program may write millions of empty lines."""
_HEADER = 8
_LONGEST_FRAME = 1024 * 1024
"""Longer frames are split, because some engines send a whole line as one frame of up to 4 GB."""
_SYSTEM_ERROR = 3
"""The stream on which the engine reports a read error, without a time."""
_NS = 1_000_000_000
_SECOND = 19  # characters of 2026-01-31T12:00:00

Position = tuple[int, int]
"""Time of a frame in nanoseconds, and its number among the frames of that time, from 1."""


Frame = tuple[str, int, bytes]
"""Stream, time in nanoseconds, text: a line, or a piece of a line longer than 16 KiB; only the last piece ends in a
line feed. A plain tuple, because creating a named one takes as long as all other work on a frame."""


class FrameParser:
    """Parses a response into frames; a frame of more than a megabyte is split into several."""

    __slots__ = ("_left", "_need", "_parts", "_seconds", "_size", "_stream", "_time")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size, self._need = 0, _HEADER
        self._left = self._time = 0
        """Remaining bytes of a frame that is delivered in parts, and its time."""
        self._stream = ""
        self._seconds: dict[bytes, int] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:  # noqa: C901 - a call per frame would double its cost
        """Yield the frames that these bytes complete; the iterator must be exhausted.

        An UntrustedError means that the engine cannot read this log, whose file may be damaged.
        """
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._need:
            return  # the pieces of a frame are joined only once
        seconds = self._seconds
        data = b"".join(self._parts) if len(self._parts) > 1 else chunk
        at, size = 0, len(data)
        while True:
            if self._left:
                self._need = min(self._left, _LONGEST_FRAME)
                if size - at < self._need:
                    break
                yield self._stream, self._time, data[at : at + self._need]
                self._left -= self._need
                at += self._need
                continue
            if size - at < _HEADER:
                self._need = _HEADER
                break
            length = int.from_bytes(data[at + 4 : at + 8], "big")
            end = at + _HEADER + (length if length < _LONGEST_FRAME else _LONGEST_FRAME)  # noqa: FURB136 - the same
            if end > size:
                self._need = end - at
                break
            stamp, _, text = data[at + _HEADER : end].partition(b" ")
            second = stamp[:_SECOND]
            base = seconds.get(second)
            if base is None:
                if data[at] == _SYSTEM_ERROR:
                    raise UntrustedError(data[at + _HEADER : end][:1000].decode("utf-8", "replace").strip())
                if len(seconds) > 1000:  # noqa: PLR2004 - a cache, of any size
                    seconds.clear()
                base = seconds[second] = epoch_ns(second.decode("ascii") + "Z")
            digits = stamp[_SECOND + 1 : -1][:9]
            # Docker's times are in UTC; other engines write their time zone.
            time = base + int(digits.ljust(9, b"0") or 0) if stamp.endswith(b"Z") else epoch_ns(stamp.decode("ascii"))
            stream = "stderr" if data[at] == 2 else "stdout"  # noqa: PLR2004 - the engine's number
            yield stream, time, text
            at = end
            if length > _LONGEST_FRAME:
                self._left, self._stream, self._time = length - _LONGEST_FRAME, stream, time
        self._parts, self._size = [data[at:]], size - at


def frames_in(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Return the frames of a response; an unfinished frame at its end is dropped."""
    parser = FrameParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


class _StreamReader:
    """One of the two streams within one response."""

    def __init__(self, name: str, start: Position | None, since: int) -> None:
        self.stream = Stream(name)
        self.position = start
        # If the last delivered frame is older than the response, all frames are new.
        self.skipping = start is not None and start[0] >= since
        self.found = not self.skipping
        self._time = -1
        self._ordinal = 0
        self._pending: list[tuple[Frame, Position]] = []
        self._pending_bytes = 0
        # Joined at once: other engines send pieces of any size, which would need fifty times the memory of their text.
        self._parts = bytearray()
        self._parts_time = 0

    @property
    def pending_since(self) -> int | None:
        """Time of the first frame that was read but not delivered."""
        times = [time for (_, time, _), _ in self._pending[:1]]
        if self._parts:
            times.append(self._parts_time)
        return min(times, default=None)

    def take(self, time: int, text: bytes, lines: list[LogLine]) -> None:
        """Add the line that this frame completes, or pending lines that are now known to be new."""
        self._ordinal = self._ordinal + 1 if time == self._time else 1
        self._time = time
        at = (time, self._ordinal)
        if not (self.skipping or self._parts) and text.endswith(b"\n"):
            # The usual case, without a generator, which would cost more than all other work.
            self.position = at
            lines.append(LogLine(text.decode("utf-8", "replace"), self.stream, time / _NS))
        else:
            lines.extend(self._take((self.stream, time, text), at))

    def _take(self, frame: Frame, at: Position) -> Iterator[LogLine]:
        if not self.skipping:
            yield from self._add(frame, at)
            return
        assert self.position is not None
        if at == self.position:
            # Pending frames have later times, but are before this one: the clock was set back.
            self.skipping = False
            self.found = True
            self._pending.clear()
        elif at > self.position:
            self._pending.append((frame, at))
            self._pending_bytes += len(frame[2]) + _FRAME_BYTES
            if self._pending_bytes > _MAX_PENDING_BYTES:
                yield from self.settle()

    def settle(self) -> Iterator[LogLine]:
        """Deliver pending frames, because the last delivered frame no longer exists: its log file was rotated away."""
        self.skipping = False
        pending, self._pending = self._pending, []
        for frame, at in pending:
            yield from self._add(frame, at)

    def rest(self) -> Iterator[LogLine]:
        """Deliver the text after the last line feed of a complete log."""
        if self._parts:
            yield self._line(self._parts_time)

    def _add(self, frame: Frame, at: Position) -> Iterator[LogLine]:
        _, time, text = frame
        if not self._parts:
            self._parts_time = time
        self._parts += text
        if text.endswith(b"\n") or len(self._parts) >= LONGEST_LINE:
            self.position = at
            yield self._line(time)

    def _line(self, time: int) -> LogLine:
        text = self._parts.decode("utf-8", "replace")
        self._parts = bytearray()
        return LogLine(text, self.stream, time / _NS)


class LineReader:
    """Builds lines from the frames of one response, which starts at `since`, in ns.

    `stdout` and `stderr` are the last delivered frames.
    """

    def __init__(self, stdout: Position | None, stderr: Position | None, since: int) -> None:
        self._streams = {name: _StreamReader(name, at, since) for name, at in (("stdout", stdout), ("stderr", stderr))}

    def found(self) -> bool:
        """Return whether the position of the cursor was found."""
        return all(reader.found for reader in self._streams.values())

    def gave_up(self) -> bool:
        """Return whether frames were delivered although the position was not found, because it was rotated away."""
        return any(not (reader.found or reader.skipping) for reader in self._streams.values())

    @property
    def pending_since(self) -> int | None:
        """Time of the first frame that was read but not delivered: a piece of an unfinished line."""
        times = [reader.pending_since for reader in self._streams.values()]
        return min((time for time in times if time is not None), default=None)

    def position(self, stream: str) -> Position | None:
        """Return the last delivered frame of a stream."""
        return self._streams[stream].position

    def take(
        self, frames: Iterable[Frame], lines: list[LogLine], limit: int = sys.maxsize, most: int = sys.maxsize
    ) -> bool:
        """Add lines until they have `limit` characters or are `most`; return False if the frames end before that."""
        readers = self._streams
        size = count = 0
        for stream, time, text in frames:
            readers[stream].take(time, text, lines)
            if (new := len(lines) - count) > 0:
                # Not the length of the frame, which may be only the last piece of a long line.
                size += len(lines[-1].text) if new == 1 else sum(len(line.text) for line in lines[count:])
                count += new
                if size >= limit or count >= most:
                    return True
        return False

    def end(self, *, complete: bool) -> Iterator[LogLine]:
        """Return the lines that the end of the response completes; with `complete` the log is complete."""
        for reader in self._streams.values():
            yield from reader.settle()
            if complete:
                yield from reader.rest()
