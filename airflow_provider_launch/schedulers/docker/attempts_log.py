"""The log of a replica: the logs of the containers of all its attempts, one after the other, read and followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from airflow_provider_launch.schedulers._kit.attempt_logs import Attempt, AttemptRead, read_attempts, unread_attempts
from airflow_provider_launch.schedulers.api import LogChunk, Stream
from airflow_provider_launch.schedulers.docker.containers import App, Container, Plan
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.log_frames import Frame, FrameParser
from airflow_provider_launch.schedulers.docker.log_reader import (
    CURSOR_KEYS,
    Chunk,
    LogReader,
    cursor_after,
    is_before,
    positions_in,
    reader_from,
    since_of,
)
from airflow_provider_launch.schedulers.log_streams import LogStream, PositionLostError
from airflow_provider_launch.schedulers.logs import LINE_BYTES, LogLine

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.docker.engine import Engine
    from airflow_provider_launch.util.http_answer import HttpAnswer

_TAIL, _TAIL_FACTOR, _TAIL_MAX = 1000, 8, 512_000
"""Tail, in frames, that is searched for the position, because the engine finds the end of a log faster than a time. If
the position is not found, the next tail for this log is longer."""
_KEPT_TAILS = 1000
_MOST_EARLY = 4 * 1024 * 1024
"""Maximum memory of lines of one stream before the position of the other one is found."""


class FrameLines:
    """Parses a followed log into lines from `cursor` on, see `LineParser`.

    With `is_whole` the response has the whole log since the time of `since`, and not only a tail.
    """

    def __init__(self, cursor: Mapping[str, Any], *, is_whole: bool) -> None:
        since, self.since = since_of(cursor)
        self.starts_late = False
        """The response starts among frames with the time of the position, which cannot be distinguished."""
        self._before = cursor
        self._is_whole = is_whole
        self._frames = FrameParser()
        self._reader = reader_from(cursor, since)
        self._newest: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._is_positioned = self._reader.found()
        self._early: list[LogLine] = []
        self._early_size = 0

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete."""
        lines: list[LogLine] = []
        self._reader.take(self._ordered(self._frames.feed(data)), lines)
        return lines if self._is_positioned else self._positioned(lines)

    def is_positioned(self) -> bool:
        """Whether the position of the cursor was reached."""
        return self._is_positioned

    def cursor(self) -> dict[str, Any]:
        """Return the cursor after the last line returned."""
        return cursor_after(self._before, self._reader)

    def refusal(self) -> str:
        """Return nothing, because the engine reports refusals as errors."""
        return ""

    def _positioned(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the lines so far if the positions of both streams were reached, none before."""
        self._early += lines
        self._early_size += sum(len(line.text) + LINE_BYTES for line in lines)
        if self._reader.gave_up() or self._early_size > _MOST_EARLY:
            raise PositionLostError
        if not self._reader.found():
            return []
        if not self._is_whole and not is_before(self._starts, positions_in(self._before)):
            self.starts_late = True
            raise PositionLostError
        self._is_positioned = True
        lines, self._early = self._early, []
        return lines

    def _ordered(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield frames until one is older than an earlier one, because the engine repeats lines after a rotation."""
        newest = self._newest
        for frame in frames:
            stream, time, _ = frame
            if self._is_positioned:
                if time < newest.get(stream, 0):
                    raise PositionLostError
            else:
                # Not checked before the position, because the clock may have been set back.
                self._starts.setdefault(stream, time)
            newest[stream] = time
            yield frame


class LogStreams:
    """Opens followed logs of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tails: LRUCache[str, int | None] = LRUCache(_KEPT_TAILS)
        self._mutex = threading.Lock()

    def open(self, container: str, cursor: Mapping[str, Any]) -> tuple[HttpAnswer, FrameLines] | None:
        """Open the log of a container at a cursor; None if the connection has no sockets."""
        tail = self._tail(container) if cursor.get("newest") is not None and not cursor.get("pending") else None
        parser = FrameLines(cursor, is_whole=tail is None)
        answer = self._engine.follow_logs(container, parser.since, tail)
        return None if answer is None else (answer, parser)

    def widen(self, container: str, parser: FrameLines) -> None:
        """Use a longer tail the next time, because the parser has not found the position."""
        with self._mutex:
            tail = self._tails.get(container, _TAIL)
            # A log that starts at the position is probably short.
            is_last = tail is None or tail >= _TAIL_MAX or parser.starts_late
            self._tails[container] = None if is_last or tail is None else tail * _TAIL_FACTOR

    def _tail(self, container: str) -> int | None:
        with self._mutex:
            return self._tails.get(container, _TAIL)


class AttemptsLog:
    """Reads logs of the apps of one engine. A cursor is that of one container, plus `"at"` for the attempt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = LogReader(engine)
        self._streams = LogStreams(engine)

    def close(self) -> None:
        """Close the cached open responses."""
        self._reader.close()

    def read(
        self, app: App, role_name: str, k: int, state: dict[str, Any], streams: Stream | None
    ) -> tuple[LogChunk, bool]:
        """Return the next lines of a replica, and whether the result is final even with an old list of containers."""
        attempts = _attempts(app, role_name, k)
        is_certain = bool(attempts and state.get("done"))

        def read_one(attempt: Attempt[Container], state: Mapping[str, Any]) -> AttemptRead:
            nonlocal is_certain
            chunk = self._read_some(attempt.source, state, streams)
            is_certain = not chunk.partial
            return AttemptRead(chunk.lines, chunk.cursor)

        chunk = read_attempts(attempts, state, read_one)
        return chunk, is_certain and _is_only(app, role_name)

    def stream(
        self, app: App, role_name: str, k: int, state: Mapping[str, Any], only: Stream | None
    ) -> LogStream | None:
        """Return a stream of the attempt of the cursor, if that attempt still runs."""
        # The rest of an earlier attempt is read first.
        attempt = next(unread_attempts(_attempts(app, role_name, k), state), None)
        return None if attempt is None or not attempt.source.live else self._stream_of(attempt, state, only)

    def _stream_of(
        self, attempt: Attempt[Container], state: Mapping[str, Any], only: Stream | None
    ) -> LogStream | None:
        container = attempt.source
        cursor = {name: state[name] for name in CURSOR_KEYS if name in state} if attempt.has(state) else {}
        opened = self._streams.open(container.id, cursor)
        if opened is None:
            return None
        answer, parser = opened
        wire = self._engine.wire
        return LogStream(
            answer,
            parser,
            host=wire.url,
            cursor_of=lambda after: {**attempt.key, **after} if after else attempt.key,
            attempt=attempt.number,
            only=None if only is Stream.COMBINED else only,
            is_remote=not wire.url.startswith("unix:"),
            on_lost=lambda: self._streams.widen(container.id, parser),
        )

    def _read_some(self, container: Container, state: Mapping[str, Any], streams: Stream | None) -> Chunk:
        """Return lines of the wanted stream; an empty chunk means that there are none."""
        while True:
            chunk = self._reader.read(container.id, state, complete=not container.live)
            if streams not in {None, Stream.COMBINED}:
                chunk.lines = [line for line in chunk.lines if line.stream in {streams, Stream.COMBINED}]
            # There may be megabytes of the other stream before the next line.
            if chunk.lines or chunk.at_end:
                return chunk
            state = chunk.cursor


def _attempts(app: App, role_name: str, k: int) -> list[Attempt[Container]]:
    return [
        Attempt(
            container,
            _start_of(container.app_attempt, container.attempt),
            number,
            has_log=not container.unstarted,
            is_over=not container.live and not container.unstarted,
        )
        for number, container in enumerate(app.attempts.get((role_name, k), []))
    ]


@lru_cache(maxsize=64)
def _start_of(app_attempt: int, attempt: int) -> dict[str, Any]:
    # Shared, because a cursor is never changed and many idle apps have the same one.
    return {"at": [app_attempt, attempt]}


def _is_only(app: App, role_name: str) -> bool:
    """Return whether a replica of this role can never have a second attempt."""
    policies = Plan.of(app).policies
    restarts = any(policy.policy == "APPLICATION" and policy.max_retries for policy in policies.values())
    return not restarts and not policies[role_name].max_retries
