"""Reads the log of one container by a cursor, chunk by chunk.

The cursor of a container is `{"stdout": [time, ordinal], "stderr": [...], "newest": time}`, times in ns of the engine's
clock. `"pending": true`: there are pieces of an unfinished line before the position. `"done": true`: all was read.
`"fast": true`: much was written between the last two reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.attempt_logs import OpenAnswers
from airflow_provider_launch.schedulers.docker.log_frames import MARGIN_NS, Frame, LineReader, frames_in
from airflow_provider_launch.schedulers.logs import LINE_BYTES, MOST_LINES, LogLine, Stream
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError

if TYPE_CHECKING:
    from requests import Response

    from airflow_provider_launch.schedulers.docker.engine import Engine

CHUNK_BYTES = 64 * 1024
"""Not larger, because the lines of a larger chunk would survive a garbage collection, and then each collection scans
all objects of Airflow."""
TAILS = tuple(500 * 2**n for n in range(13))
"""Tails, in frames, that are searched for the position before the whole margin is read. The engine finds the end of a
log fast, but reads all of it to find a time."""
FAST_FRAMES = 4_000
"""Shortest tail for a container that writes fast."""
STEP_FRAMES = 500
_STEP_BYTES = 16 * 1024 * 1024
"""Maximum bytes of the frames that are read together, because other engines send frames of a megabyte."""
NARROW_FRAMES = 8_000
"""Maximum number of frames read before the requested position; otherwise a shorter tail is tried."""
MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Maximum memory of lines kept during a search for the position; they are one chunk when the position is found."""
_SKEW_NS = 1_000_000_000
"""Longer than the maximum lag between the streams in the log file."""
CURSOR_KEYS = ("stdout", "stderr", "newest", "pending", "fast")
_GAP = "[launch] the engine has dropped lines before they were read; they were here\n"
_NS = 1_000_000_000


@dataclass
class Chunk:
    """Some lines of one container."""

    lines: list[LogLine]
    cursor: dict[str, Any]
    at_end: bool
    """All lines up to the time of the request were read."""
    partial: bool
    """There is text without a line feed at the end."""


@dataclass
class _Answer:
    """A response that was read in part."""

    response: Response
    frames: Iterator[Frame]
    reader: LineReader
    complete: bool
    """The container had ended before the request; otherwise the response ends at the end of the log at that time."""
    delivered: int = 0
    """Number of lines so far."""
    first: Frame | None = None
    """The first frame, if the position was searched for."""
    lines: list[LogLine] = field(default_factory=list)
    """Lines read during the search for the position."""
    has_gap: bool = False
    """Missing lines were reported."""


class LogReader:
    """Reads logs of containers; keeps a few responses open between reads, so that a long log is read only once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: OpenAnswers[_Answer] = OpenAnswers()

    def close(self) -> None:
        """Close the open responses."""
        self._open.close()

    def read(self, container: str, cursor: Mapping[str, Any], *, complete: bool) -> Chunk:
        """Return the next lines from a cursor on, which is empty at the first line.

        With `complete` the container had ended before this call, so its log is complete.

        Raises:
            NotFoundError: the container does not exist.
        """
        cursor = {name: cursor[name] for name in CURSOR_KEYS if name in cursor}
        answer = self._open.take(container, cursor)
        if answer is None:
            answer = self._ask(container, cursor, complete=complete)
        lines, answer.lines = answer.lines, []
        at_end = cut_off = False
        try:
            at_end = not answer.reader.take(answer.frames, lines, CHUNK_BYTES, MOST_LINES)
            if at_end:
                lines += answer.reader.end(complete=complete and answer.complete)
        except (OSError, ValueError) as error:
            # Errors of urllib3 and requests are OSErrors. Lines before the error are delivered.
            cut_off = True
            answer.response.close()
            if not lines:
                raise _cut_off(f"the log of container {container[:12]}", error) from error
        if answer.reader.gave_up() and not answer.has_gap and lines:
            # The log file with the position was rotated away, with the lines that followed it.
            answer.has_gap = True
            lines.insert(0, LogLine(_GAP, Stream.COMBINED, lines[0].time))
        after = cursor_after(cursor, answer.reader)
        answer.delivered += len(lines)
        partial = answer.reader.pending_since is not None
        if at_end:
            answer.response.close()
            if answer.delivered > TAILS[0]:
                after["fast"] = True
            at_end = answer.complete or not complete
            if complete and at_end:
                after["done"] = True
        elif not cut_off:
            self._open.keep(container, after, answer)
        return Chunk(lines, after, at_end, partial)

    def _ask(self, container: str, cursor: Mapping[str, Any], *, complete: bool) -> _Answer:
        if cursor.get("newest") is None or cursor.get("pending"):
            return self._answer(container, cursor, None, complete=complete)
        fewest = FAST_FRAMES if cursor.get("fast") else 0
        first: Frame | None = None
        short, narrows = 0, True
        for tail in (tail for tail in TAILS if tail >= fewest):
            answer = self._answer(container, cursor, tail, complete=complete)
            if not _starts_late(answer, cursor, tail):
                # Do not narrow again after a narrowed response did not contain the position.
                if narrows:
                    answer = self._narrowed(answer, container, cursor, short, tail)
                if self._reaches(answer, cursor, tail):
                    return answer
                narrows = False
            answer.response.close()
            if answer.first == first:
                break  # the log is not longer: the position was rotated away
            first, short = answer.first, tail
        return self._answer(container, cursor, None, complete=complete)

    def _narrowed(self, answer: _Answer, container: str, cursor: Mapping[str, Any], short: int, tail: int) -> _Answer:
        """Return a response that starts shortly before the position.

        `answer` starts before it and is closed if another one is returned; it has `tail` frames, and a tail of `short`
        frames starts after the position.
        """
        positions = positions_in(cursor)
        while positions and tail - short > NARROW_FRAMES:
            middle = (short + tail) // 2
            narrower = self._answer(container, cursor, middle, complete=answer.complete)
            _read_ahead(narrower, 1)
            if narrower.first and is_before({narrower.first[0]: narrower.first[1]}, positions):
                answer.response.close()
                answer, tail = narrower, middle
            else:
                narrower.response.close()
                short = middle
        return answer

    def _answer(self, container: str, cursor: Mapping[str, Any], tail: int | None, *, complete: bool) -> _Answer:
        since, text = since_of(cursor)
        response = self._engine.logs(container, text, tail)
        return _Answer(response, frames_in(_chunks(response)), reader_from(cursor, since), complete)

    def _reaches(self, answer: _Answer, cursor: Mapping[str, Any], tail: int) -> bool:
        """Read up to the position of the cursor; return False if the tail is too short."""
        positions = positions_in(cursor)
        starts: dict[str, int] = {}
        read = kept = size = 0
        while (wanted := min(STEP_FRAMES, tail - read)) > 0:
            step, is_over = _next_frames(answer, wanted)
            read += len(step)
            for stream, time, _ in step:
                starts.setdefault(stream, time)
            answer.reader.take(step, answer.lines)
            size += sum(len(line.text) + LINE_BYTES for line in answer.lines[kept:])
            kept = len(answer.lines)
            if is_over or (positions and is_before(starts, positions) and answer.reader.found()):
                return True
            if size > MAX_KEPT_BYTES:
                return False
        return False


def cursor_after(before: Mapping[str, Any], reader: LineReader) -> dict[str, Any]:
    """Return the cursor after the lines delivered by a reader that started at `before`."""
    after: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        if (position := reader.position(name)) is not None:
            after[name] = list(position)
    # Only delivered frames count; text without a line feed is read again.
    delivered = [after[name][0] for name in after]
    if delivered:
        newest = max([before.get("newest") or 0, *delivered])
        pending = reader.pending_since
        # The next read must start before the first piece of an unfinished line.
        after["newest"] = newest if pending is None else min(newest, pending)
        if pending is not None:
            after["pending"] = True
    return after


def _next_frames(answer: _Answer, number: int) -> tuple[list[Frame], bool]:
    """Return the next frames, up to `number` and about `_STEP_BYTES`, and whether the response has fewer."""
    step: list[Frame] = []
    size = 0
    try:
        while len(step) < number and size < _STEP_BYTES:
            if (frame := next(answer.frames, None)) is None:
                return step, True
            step.append(frame)
            size += len(frame[2])
    except (OSError, ValueError) as error:
        answer.response.close()
        raise _cut_off("a log", error) from error
    return step, False


def _cut_off(what: str, error: Exception) -> SchedulerUnavailableError:
    # Only errors of the transport are an outage; a damaged frame comes from the container or its log driver.
    kind = SchedulerUnavailableError if isinstance(error, OSError) else AppUnavailableError
    return kind(f"{what} was cut off: {error}")


def positions_in(cursor: Mapping[str, Any]) -> dict[str, int]:
    """Return the time of the last delivered frame of each stream, if a response can contain it."""
    since = max(0, cursor["newest"] - MARGIN_NS)
    times = {name: cursor[name][0] for name in ("stdout", "stderr") if cursor.get(name)}
    return {name: time for name, time in times.items() if time >= since}


def _starts_late(answer: _Answer, cursor: Mapping[str, Any], tail: int) -> bool:
    """Return whether a tail is too short; its first frame usually shows it, so a wrong guess costs little."""
    # A short tail may be the whole log.
    is_whole = _read_ahead(answer, tail if tail <= TAILS[0] else 1)
    positions = positions_in(cursor)
    return not is_whole and bool(positions) and answer.first is not None and answer.first[1] > min(positions.values())


def _read_ahead(answer: _Answer, number: int) -> bool:
    """Read up to `number` frames without consuming them, and return whether there are fewer."""
    step, is_over = _next_frames(answer, number)
    answer.frames = chain(step, answer.frames)
    answer.first = next(iter(step), None)
    return is_over


def is_before(starts: Mapping[str, int], positions: Mapping[str, int]) -> bool:
    """Return whether a response starts before the positions, and not among frames with the same time.

    Frames with the same time are distinguished by their ordinal, which is counted from the start of the response.
    """
    early = min(starts.values()) + _SKEW_NS
    return all(starts.get(name, time) < time or early < time for name, time in positions.items())


def since_of(cursor: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return where a response for this cursor must start: in nanoseconds, and as the engine's parameter."""
    newest = cursor.get("newest")
    since = 0 if newest is None else max(0, newest - MARGIN_NS)
    # Not a float, which would lose the nanoseconds.
    return since, None if newest is None else f"{since // _NS}.{since % _NS:09d}"


def reader_from(cursor: Mapping[str, Any], since: int) -> LineReader:
    """Return a reader for a response that starts at `since`, from the cursor on."""
    at = {name: (cursor[name][0], cursor[name][1]) if cursor.get(name) else None for name in ("stdout", "stderr")}
    return LineReader(at["stdout"], at["stderr"], since)


def _chunks(response: Response) -> Iterator[bytes]:
    chunks: Iterator[bytes] = response.iter_content(65536)
    return chunks
