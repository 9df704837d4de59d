"""Following the log of one container: frames as they come, from an exact place on."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.docker.log_frames import Frame, FrameParser
from airflow_provider_launch.schedulers.docker.log_reader import (
    cursor_after,
    is_before,
    places_in,
    reader_from,
    since_of,
)
from airflow_provider_launch.schedulers.log_streams import PositionLostError
from airflow_provider_launch.schedulers.logs import LogLine

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.docker.engine import Engine
    from airflow_provider_launch.util.http_answer import HttpAnswer

_TAIL, _TAIL_FACTOR, _TAIL_MAX = 1000, 8, 512_000
"""Frames before the end among which the place is searched for, as the engine finds the end of a log fast, and a time
slowly. For a log in which it was not among them, the next time among more."""
_KEPT_TAILS = 1000


class FrameLines:
    """Lines of a followed log, see `LineParser`.

    Args:
        cursor: of a read of the container; empty: from the first line on.
        is_whole: the answer has all that was written since the time of `since`, and not only the end of it.
    """

    def __init__(self, cursor: Mapping[str, Any], *, is_whole: bool) -> None:
        since, self.since = since_of(cursor)
        self.begins_late = False
        """The answer begins among frames of the time of the place, which cannot be distinguished then."""
        self._before = cursor
        self._is_whole = is_whole
        self._frames = FrameParser()
        self._reader = reader_from(cursor, since)
        self._newest: dict[str, int] = {}
        self._begins: dict[str, int] = {}
        self._is_placed = self._reader.found()
        self._early: list[LogLine] = []

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete."""
        lines: list[LogLine] = []
        self._reader.take(self._ordered(self._frames.feed(data)), lines, sys.maxsize)
        return lines if self._is_placed else self._placed(lines)

    def is_placed(self) -> bool:
        """Whether the place was met from which to go on."""
        return self._is_placed

    def cursor(self) -> dict[str, Any]:
        """Return the place after the last line returned."""
        return cursor_after(self._before, self._reader)

    def refusal(self) -> str:
        """Return nothing: the engine reports by an error what is the matter."""
        return ""

    def _placed(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the lines so far if the places of both streams were met, and none before."""
        self._early += lines
        if self._reader.gave_up():
            raise PositionLostError
        if not self._reader.found():
            return []
        if not self._is_whole and not is_before(self._begins, places_in(self._before)):
            self.begins_late = True
            raise PositionLostError
        self._is_placed = True
        lines, self._early = self._early, []
        return lines

    def _ordered(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield frames until one is older than one before it: when a log is rotated, the engine repeats some of it."""
        newest = self._newest
        for frame in frames:
            stream, time, _ = frame
            if self._is_placed:
                if time < newest.get(stream, 0):
                    raise PositionLostError
            else:
                # Before the place the order is that of the log, whose clock may have been set back.
                self._begins.setdefault(stream, time)
            newest[stream] = time
            yield frame


class LogStreams:
    """Opens followed logs of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tails: OrderedDict[str, int | None] = OrderedDict()
        self._mutex = threading.Lock()

    def open(self, container: str, cursor: Mapping[str, Any]) -> tuple[HttpAnswer, FrameLines] | None:
        """Return the log of a container from a place on; None: the connection has no sockets.

        Raises:
            OSError: there is no such answer.
        """
        tail = self._tail(container) if cursor.get("newest") is not None and not cursor.get("pending") else None
        parser = FrameLines(cursor, is_whole=tail is None)
        answer = self._engine.follow_logs(container, parser.since, tail)
        return None if answer is None else (answer, parser)

    def widen(self, container: str, parser: FrameLines) -> None:
        """Search for the place among more of the log the next time: the parser has not found it."""
        with self._mutex:
            tail = self._tails.pop(container, _TAIL)
            # A log that begins at the place is a short one, most likely.
            is_last = tail is None or tail >= _TAIL_MAX or parser.begins_late
            wider = None if is_last or tail is None else tail * _TAIL_FACTOR
            self._tails[container] = wider
            if len(self._tails) > _KEPT_TAILS:
                self._tails.popitem(last=False)

    def _tail(self, container: str) -> int | None:
        with self._mutex:
            return self._tails.get(container, _TAIL)
