"""Reading the log of one container by a cursor, chunk by chunk.

The cursor of a container is `{"stdout": [time, ordinal], "stderr": [...], "newest": time}`, times in ns of the engine's
clock; with `"pending": true` pieces of an unfinished line stand before the place, with `"done": true` all was read,
with `"fast": true` much was written between the last two reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.open_answers import OpenAnswers
from airflow_provider_launch.schedulers.docker.log_frames import (
    MARGIN_NS,
    Frame,
    LineReader,
    frames_in,
)
from airflow_provider_launch.schedulers.logs import LONGEST_LINE, LogLine, Stream
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError

if TYPE_CHECKING:
    from requests import Response

    from airflow_provider_launch.schedulers.docker.engine import Engine

CHUNK_BYTES = 64 * 1024
"""Not more: the lines of a larger chunk outlive a round of the garbage collector, which then reads through all of
Airflow's objects again and again."""
TAILS = tuple(500 * 2**n for n in range(13))
"""Frames from the end in which the place is searched for before the whole margin is read: the engine finds the end of a
log backwards and fast, but reads through all of it to find a time."""
FAST_FRAMES = 4_000
"""What writes fast has written so much again."""
STEP_FRAMES = 500
NARROW_FRAMES = 8_000
"""So many frames before the place may be read in vain; else a shorter tail is asked for, of which one frame is read."""
MAX_KEPT_CHARS = 1024 * 1024
"""How much text a search for the place may hold, which is delivered as one chunk when the place is found."""
_SKEW_NS = 1_000_000_000
"""More than a stream is ever late in the file, compared with the other."""
CURSOR_KEYS = ("stdout", "stderr", "newest", "pending", "fast")
_GAP = "[launch] the engine has dropped lines before they were read; they were here\n"
_NS = 1_000_000_000


@dataclass
class Chunk:
    """Some lines of one container."""

    lines: list[LogLine]
    cursor: dict[str, Any]
    at_end: bool
    """All that the engine had when it was asked."""
    partial: bool
    """There is text without its line feed."""


@dataclass
class _Answer:
    """An answer of which a part was read."""

    response: Response
    frames: Iterator[Frame]
    reader: LineReader
    complete: bool
    """The container had ended before it was asked for; otherwise it ends where the log ended then."""
    brought: int = 0
    """Lines so far."""
    first: Frame | None = None
    """The first frame, where the place was searched for."""
    lines: list[LogLine] = field(default_factory=list)
    """Read while the place was searched for."""
    has_gap: bool = False
    """It was reported that lines are missing."""


class LogReader:
    """Reads logs of containers; keeps a few answers open between two reads, so that a long log is read once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: OpenAnswers[_Answer] = OpenAnswers()

    def close(self) -> None:
        """Drop the open answers."""
        self._open.close()

    def read(self, container: str, cursor: Mapping[str, Any], *, complete: bool) -> Chunk:
        """Return the next lines.

        Args:
            container: its id.
            cursor: of an earlier chunk of the container; empty: from the first line on.
            complete: the container had ended before this call, so nothing is added any more.

        Raises:
            NotFoundError: there is no such container.
        """
        cursor = {name: cursor[name] for name in CURSOR_KEYS if name in cursor}
        answer = self._open.take(container, cursor)
        if answer is None:
            answer = self._ask(container, cursor, complete=complete)
        lines, answer.lines = answer.lines, []
        at_end = cut_off = False
        try:
            at_end = not answer.reader.take(answer.frames, lines, CHUNK_BYTES)
            if at_end:
                lines += answer.reader.end(complete=complete and answer.complete)
        except (OSError, ValueError) as error:
            # urllib3's and requests' errors are OSErrors. What came before it counts.
            cut_off = True
            answer.response.close()
            if not lines:
                raise _cut_off(f"the log of container {container[:12]}", error) from error
        if answer.reader.gave_up() and not answer.has_gap and lines:
            # Its log files have a size: those with the place, and what followed it, are not there any more.
            answer.has_gap = True
            lines.insert(0, LogLine(_GAP, Stream.COMBINED, lines[0].time))
        after = cursor_after(cursor, answer.reader)
        answer.brought += len(lines)
        partial = answer.reader.pending_since is not None
        if at_end:
            answer.response.close()
            if answer.brought > TAILS[0]:
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
            if not _begins_late(answer, cursor, tail):
                # What a narrower one did not reach is not searched for there again.
                if narrows:
                    answer = self._narrowed(answer, container, cursor, short, tail)
                if self._reaches(answer, cursor, tail):
                    return answer
                narrows = False
            answer.response.close()
            if answer.first == first:
                break  # there is no more: the place was rotated away
            first, short = answer.first, tail
        return self._answer(container, cursor, None, complete=complete)

    def _narrowed(self, answer: _Answer, container: str, cursor: Mapping[str, Any], short: int, tail: int) -> _Answer:
        """Return an answer that begins not much before the place.

        Args:
            answer: which begins before it; closed if it is not the one returned.
            container: its id.
            cursor: the place.
            short: a tail of so many frames begins after it.
            tail: so many are in the answer.
        """
        places = places_in(cursor)
        while places and tail - short > NARROW_FRAMES:
            middle = (short + tail) // 2
            narrower = self._answer(container, cursor, middle, complete=answer.complete)
            _read_ahead(narrower, 1)
            if narrower.first and is_before({narrower.first[0]: narrower.first[1]}, places):
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
        """Read up to the place from which to go on; False: the tail is too short."""
        places = places_in(cursor)
        begins: dict[str, int] = {}
        read = kept = chars = 0
        while (wanted := min(STEP_FRAMES, tail - read)) > 0:
            step = _next_frames(answer, wanted)
            read += len(step)
            for stream, time, _ in step:
                begins.setdefault(stream, time)
            answer.reader.take(step, answer.lines, wanted * LONGEST_LINE)
            chars += sum(len(line.text) for line in answer.lines[kept:])
            kept = len(answer.lines)
            if len(step) < wanted or (places and is_before(begins, places) and answer.reader.found()):
                return True
            if chars > MAX_KEPT_CHARS:
                return False
        return False


def cursor_after(before: Mapping[str, Any], reader: LineReader) -> dict[str, Any]:
    """Return the place after what a reader has delivered that went on from `before`."""
    after: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        if (position := reader.position(name)) is not None:
            after[name] = list(position)
    # Only what was delivered counts: text without its line feed is read again.
    delivered = [after[name][0] for name in after]
    if delivered:
        newest = max([before.get("newest") or 0, *delivered])
        pending = reader.pending_since
        # A piece of a line has the time of its first piece: the next read must begin before it.
        after["newest"] = newest if pending is None else min(newest, pending)
        if pending is not None:
            after["pending"] = True
    return after


def _next_frames(answer: _Answer, number: int) -> list[Frame]:
    """Return so many frames, or those that are left."""
    try:
        return list(islice(answer.frames, number))
    except (OSError, ValueError) as error:
        answer.response.close()
        raise _cut_off("a log", error) from error


def _cut_off(what: str, error: Exception) -> SchedulerUnavailableError:
    # A frame that is damaged comes from the container or its log driver; only errors of the transport are an outage.
    kind = SchedulerUnavailableError if isinstance(error, OSError) else AppUnavailableError
    return kind(f"{what} was cut off: {error}")


def places_in(cursor: Mapping[str, Any]) -> dict[str, int]:
    """Return the time of the last frame delivered of each stream, where an answer can have it."""
    since = max(0, cursor["newest"] - MARGIN_NS)
    known = {name: cursor[name][0] for name in ("stdout", "stderr") if cursor.get(name)}
    return {name: time for name, time in known.items() if time >= since}


def _begins_late(answer: _Answer, cursor: Mapping[str, Any], tail: int) -> bool:
    """Return whether a tail is too short, which its first frame mostly shows: so asking for too few costs little."""
    # A short one may be all that there is.
    wanted = tail if tail <= TAILS[0] else 1
    is_whole = _read_ahead(answer, wanted) < wanted
    places = places_in(cursor)
    return not is_whole and bool(places) and answer.first is not None and answer.first[1] > min(places.values())


def _read_ahead(answer: _Answer, number: int) -> int:
    """Read so many frames without taking them, and return how many there are."""
    step = _next_frames(answer, number)
    answer.frames = chain(step, answer.frames)
    answer.first = next(iter(step), None)
    return len(step)


def is_before(begins: Mapping[str, int], places: Mapping[str, int]) -> bool:
    """Return whether an answer begins before the places, and not among frames of their times.

    Frames of one time are distinguished by their number, which is counted anew in each answer.
    """
    early = min(begins.values()) + _SKEW_NS
    return all(begins.get(name, place) < place or early < place for name, place in places.items())


def since_of(cursor: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return where an answer must begin that goes on from a place: in nanoseconds, and as the engine takes it."""
    newest = cursor.get("newest")
    since = 0 if newest is None else max(0, newest - MARGIN_NS)
    # Not a float: it would lose the nanoseconds.
    return since, None if newest is None else f"{since // _NS}.{since % _NS:09d}"


def reader_from(cursor: Mapping[str, Any], since: int) -> LineReader:
    """Return what reads an answer that begins at `since`, from a place on."""
    at = {name: (cursor[name][0], cursor[name][1]) if cursor.get(name) else None for name in ("stdout", "stderr")}
    return LineReader(at["stdout"], at["stderr"], since)


def _chunks(response: Response) -> Iterator[bytes]:
    chunks: Iterator[bytes] = response.iter_content(65536)
    return chunks
