"""Lines out of the engine's log frames, by an exact position: pure.

The engine copies stdout and stderr by two threads, so its log is not in the order of its timestamps, and "everything
after the last time" would lose lines. A position is the last frame delivered of each stream, (time in ns, ordinal among
frames of that time); a read begins some seconds before the newest time seen, and drops what precedes that very frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_launch.schedulers.docker.containers import epoch_ns
from airflow_provider_launch.schedulers.logs import LONGEST_LINE, LogLine, Stream

MARGIN_NS = 5_000_000_000
"""How far before the newest time a read begins: more than the streams are ever apart, or a clock steps back."""
_MAX_PENDING_BYTES = 4 * 1024 * 1024
_HEADER = 8
_LONGEST_FRAME = 1024 * 1024
"""Some engines send a whole line as one frame, which may state up to 4 GB."""
_SYSTEM_ERROR = 3
"""The stream by which the engine reports why it cannot read on, without a time."""
_NS = 1_000_000_000
_SECOND = 19  # characters of 2026-01-31T12:00:00

Position = tuple[int, int]
"""Time of a frame in nanoseconds, and its number among the frames of that time, from 1."""


Frame = tuple[str, int, bytes]
"""Stream, time in nanoseconds, text: a line, or a piece of one that is longer than 16 KiB; only the last piece ends in
a line feed. A plain tuple, because a named one takes as long to make as all else that is done to a frame."""


class FrameParser:
    """Frames of an answer as its pieces come; one of more than a megabyte in parts of that size, as several."""

    __slots__ = ("_left", "_need", "_parts", "_seconds", "_size", "_stream", "_time")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size, self._need = 0, _HEADER
        self._left = self._time = 0
        """What is to come of a frame that is delivered in parts, and its time."""
        self._stream = ""
        self._seconds: dict[bytes, int] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:  # noqa: C901 - a call for each frame would cost as much as it
        """Yield the frames that these bytes complete; all must be taken.

        Raises:
            OSError: the engine reports that it cannot read on.
        """
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._need:
            return  # joined once, however many pieces it comes in
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
                    raise OSError(data[at + _HEADER : end][:1000].decode("utf-8", "replace").strip())
                if len(seconds) > 1000:  # noqa: PLR2004 - a cache, of any size
                    seconds.clear()
                base = seconds[second] = epoch_ns(second.decode("ascii") + "Z")
            digits = stamp[_SECOND + 1 : -1][:9]
            # Docker's times are UTC; other engines write their zone.
            time = base + int(digits.ljust(9, b"0") or 0) if stamp.endswith(b"Z") else epoch_ns(stamp.decode("ascii"))
            stream = "stderr" if data[at] == 2 else "stdout"  # noqa: PLR2004 - the engine's number
            yield stream, time, text
            at = end
            if length > _LONGEST_FRAME:
                self._left, self._stream, self._time = length - _LONGEST_FRAME, stream, time
        self._parts, self._size = [data[at:]], size - at


def frames_in(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Return the frames of an answer; an unfinished one at its end is left out.

    Raises:
        OSError: the engine reports that it cannot read on.
    """
    parser = FrameParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


class _StreamReader:
    """One of the two streams within one answer."""

    def __init__(self, name: str, start: Position | None, since: int) -> None:
        self.stream = Stream(name)
        self.position = start
        # Where the last frame delivered is older than the answer, all of the answer is new.
        self.skipping = start is not None and start[0] >= since
        self.found = not self.skipping
        self._time = -1
        self._ordinal = 0
        self._pending: list[tuple[Frame, Position]] = []
        self._pending_bytes = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._parts_time = 0

    @property
    def pending_since(self) -> int | None:
        """Time of the first frame that is read and not delivered."""
        times = [time for (_, time, _), _ in self._pending[:1]]
        if self._parts:
            times.append(self._parts_time)
        return min(times, default=None)

    def take(self, time: int, text: bytes, lines: list[LogLine]) -> None:
        """Add the line that this frame completes, or the lines that it proves to be new."""
        self._ordinal = self._ordinal + 1 if time == self._time else 1
        self._time = time
        at = (time, self._ordinal)
        if not (self.skipping or self._parts) and text.endswith(b"\n"):
            # The usual case, for which a generator would cost more than all the rest.
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
            # What is pending is later by its time, but stands before: the clock was set back.
            self.skipping = False
            self.found = True
            self._pending.clear()
        elif at > self.position:
            self._pending.append((frame, at))
            self._pending_bytes += len(frame[2])
            if self._pending_bytes > _MAX_PENDING_BYTES:
                yield from self.settle()

    def settle(self) -> Iterator[LogLine]:
        """Deliver what is pending: the last frame delivered is not there any more, its log file was rotated away."""
        self.skipping = False
        pending, self._pending = self._pending, []
        for frame, at in pending:
            yield from self._add(frame, at)

    def rest(self) -> Iterator[LogLine]:
        """Deliver text after the last line feed: nothing follows."""
        if self._parts:
            yield self._line(self._parts_time)

    def _add(self, frame: Frame, at: Position) -> Iterator[LogLine]:
        _, time, text = frame
        if not self._parts:
            self._parts_time = time
        self._parts.append(text)
        self._parts_bytes += len(text)
        if text.endswith(b"\n") or self._parts_bytes >= LONGEST_LINE:
            self.position = at
            yield self._line(time)

    def _line(self, time: int) -> LogLine:
        text = b"".join(self._parts).decode("utf-8", "replace")
        self._parts.clear()
        self._parts_bytes = 0
        return LogLine(text, self.stream, time / _NS)


class LineReader:
    """Lines of one answer.

    Args:
        stdout: the last frame delivered of this stream.
        stderr: the same of the other.
        since: beginning of the answer, ns.
    """

    def __init__(self, stdout: Position | None, stderr: Position | None, since: int) -> None:
        self._streams = {name: _StreamReader(name, at, since) for name, at in (("stdout", stdout), ("stderr", stderr))}

    def found(self) -> bool:
        """Return whether the place was found from which to go on."""
        return all(reader.found for reader in self._streams.values())

    def gave_up(self) -> bool:
        """Return whether frames were delivered although the place was not found: it was rotated away."""
        return any(not (reader.found or reader.skipping) for reader in self._streams.values())

    @property
    def pending_since(self) -> int | None:
        """Time of the first frame that is read and not delivered: a piece of an unfinished line."""
        times = [reader.pending_since for reader in self._streams.values()]
        return min((time for time in times if time is not None), default=None)

    def position(self, stream: str) -> Position | None:
        """Return the last frame delivered of a stream."""
        return self._streams[stream].position

    def take(self, frames: Iterable[Frame], lines: list[LogLine], limit: int) -> bool:
        """Add the lines that frames complete, until they have so many characters; False: the frames ended before."""
        readers = self._streams
        size = count = 0
        for stream, time, text in frames:
            readers[stream].take(time, text, lines)
            if (new := len(lines) - count) > 0:
                # Not the length of the frame: of a long line it is the last piece only.
                size += len(lines[-1].text) if new == 1 else sum(len(line.text) for line in lines[count:])
                count += new
                if size >= limit:
                    return True
        return False

    def end(self, *, complete: bool) -> Iterator[LogLine]:
        """Return what the end of the answer completes.

        Args:
            complete: nothing is added to the log any more.
        """
        for reader in self._streams.values():
            yield from reader.settle()
            if complete:
                yield from reader.rest()
