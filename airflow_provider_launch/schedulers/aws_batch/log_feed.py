"""Reads many log streams with few requests: one FilterLogEvents for up to 100 streams.

Its events have ids, so that none is lost or repeated, not even a late one.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.client import Aws, NotFoundError
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

_STREAMS = 100
_FEW = 2
_KEPT_S = 90.0
"""Seconds that an unread stream is kept; a quiet stream is read by its follower every 30 s."""
_LATE_MS = 200
"""A late event may be this much older than the newest event of its stream."""
_IDS, _MOST_IDS = 2000, 10_000
"""Number of ids in a position: those of a whole millisecond are kept beyond the first limit, up to the second."""
_LEAST_S, _MOST_S = 2.0, 10.0
_STRETCH = 8.0
_EVENTS = 20_000
"""Maximum number of events that one round reads ahead."""
_FULL = 5_000
_EVENT_BYTES = 200
"""Memory of an event in addition to its text, of up to 1 MB."""
_BYTES, _FULL_BYTES = 16 * 1024 * 1024, 1024 * 1024
"""Maximum memory of the events that one round reads ahead, and of unread events of a stream that is read ahead."""
_SIMILAR_MS = 60_000
_TURN_S = 0.5

Event = Mapping[str, Any]
State = dict[str, Any]


@dataclass(eq=False)
class _Stream:
    """One stream, from the position of its reader on."""

    group: LogGroup
    name: str
    newest: int
    floor: int
    """All events before this time were delivered."""
    seen: dict[str, int]
    """Id to time of each delivered event from the floor on."""
    unknown: int
    """Number of events at `newest` that were delivered without an id."""
    given: State = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    size: int = 0
    """Memory of the events in bytes."""
    asked_at: float = -math.inf
    wanted_at: float = -math.inf
    read_to: int = 0
    """Position reached by an unfinished round."""

    @classmethod
    def at(cls, group: LogGroup, name: str, state: State) -> _Stream:
        seen = {key: ms for ms, key in state["i"][-_MOST_IDS:]}
        unknown = 0 if seen else state.get("n", 0)
        return cls(group, name, state["m"], state["f"], seen, unknown, dict(state))

    @property
    def start(self) -> int:
        return max(self.floor, self.read_to - _LATE_MS)

    def add(self, event: Event) -> int:
        """Add an event that was not delivered yet, and return its memory."""
        at, key = event["timestamp"], f"{zlib.crc32(str(event['eventId']).encode()):08x}"
        if at < self.floor or key in self.seen:
            return 0
        self.seen[key] = at
        if self.unknown and at == self.newest:
            # Delivered by GetLogEvents, which has no ids.
            self.unknown -= at == self.newest
            return 0
        self.events.append(event)
        size = len(event["message"]) + _EVENT_BYTES
        self.size += size
        self.newest = max(self.newest, at)
        return size

    def state(self) -> State:
        """Return the position after all events that were read."""
        self.floor = max(self.floor, self.newest - _LATE_MS)
        if len(self.seen) > _IDS:
            # Keep all ids of a millisecond or none.
            times = sorted(self.seen.values())
            self.floor = max(self.floor, times[-_IDS])
            if len(times) >= _MOST_IDS and times[-_MOST_IDS] >= self.floor:
                # A program has written so much at this time that later events of the same time are left out.
                self.floor += 1
        self.seen = {key: at for key, at in self.seen.items() if at >= self.floor}
        known = [[at, key] for key, at in self.seen.items()]
        position: State = {"m": self.newest, "f": self.floor, "i": known}
        return {**position, "n": self.unknown} if self.unknown else position


class LogFeed:
    """Reads ahead for all followed streams of a scheduler.

    Position in a stream: `m` time of the newest delivered event, `f` time from which on late events may come, `i` time
    and id of delivered events since `f`, `n` number of events at `m` that were delivered without an id.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._lock = threading.Lock()
        self._round = threading.Lock()
        self._streams: dict[tuple[LogGroup, str], _Stream] = {}
        self._readers: dict[tuple[LogGroup, str], float] = {}
        self._cleaned_at = 0.0
        self._stretch = 1.0

    def is_shared(self, group: LogGroup, name: str) -> bool:
        """Note that an unfinished stream is read, and return whether there are many."""
        now = time.monotonic()
        with self._lock:
            self._readers[group, name] = now
            if now - self._cleaned_at > _KEPT_S / 10:
                self._cleaned_at = now
                self._readers = {key: at for key, at in self._readers.items() if now - at < _KEPT_S}
                self._streams = {key: one for key, one in self._streams.items() if now - one.wanted_at < _KEPT_S}
            return self.has_many

    @property
    def has_many(self) -> bool:
        """Whether many streams are followed."""
        return len(self._readers) > _FEW

    def join(self, group: LogGroup, name: str, position: State) -> None:
        """Add a stream that was just read up to this position to the next rounds."""
        now = time.monotonic()
        stream = _Stream.at(group, name, position)
        stream.asked_at = stream.wanted_at = now
        with self._lock:
            self._streams[group, name] = stream

    def take(self, group: LogGroup, name: str, position: State, *, is_over: bool) -> tuple[list[Event], State]:
        """Return events after a position of this class, and the position after them.

        A stream with `is_over` is complete, so it is read now; else the answer may be some seconds old.

        Raises:
            DeniedError: FilterLogEvents is not allowed.
        """
        began = time.monotonic()
        with self._lock:
            stream = self._streams.get((group, name))
            if stream is None or stream.given != position:
                # A new object, because a running round may still add events to the old one.
                stream = self._streams[group, name] = _Stream.at(group, name, position)
            stream.wanted_at = began
            events = stream.events
        if not events and (is_over or began - stream.asked_at >= self._interval_s()):
            self._ask_for(stream, began, is_over=is_over)
        with self._lock:
            events, stream.events, stream.size = stream.events, [], 0
            stream.given = stream.state()
            return events, dict(stream.given)

    def _interval_s(self) -> float:
        return min(max(_LEAST_S, len(self._streams) / _STREAMS), _MOST_S) * self._stretch

    def _ask_for(self, stream: _Stream, began: float, *, is_over: bool) -> None:
        if not self._round.acquire(timeout=-1 if is_over else _TURN_S):
            return
        try:
            if stream.asked_at >= began or stream.events:
                return  # the previous round has read it
            members = self._members(stream)
            asked_at = time.monotonic()
            try:
                is_end = self._ask(members)
                self._stretch = max(1.0, self._stretch * 0.8)
            except SchedulerUnavailableError as error:
                if getattr(error, "status", 0) != 429:  # noqa: PLR2004 - Too Many Requests
                    raise
                self._stretch, is_end = min(2 * self._stretch, _STRETCH), True
            for one in members:
                one.asked_at = asked_at if is_end else -math.inf
        finally:
            self._round.release()

    def _members(self, stream: _Stream) -> list[_Stream]:
        """Return the stream and other due streams of similar age; a much older one would make others be read again."""
        now = time.monotonic()
        now_ms = self._aws.now() * 1000
        half_s = self._interval_s() / 2
        age = now_ms - stream.newest

        def is_similar(one: _Stream) -> bool:
            other = now_ms - one.newest
            return max(age, other) <= 2 * max(0.0, min(age, other)) + _SIMILAR_MS

        with self._lock:
            due = [
                one
                for one in self._streams.values()
                if one is not stream
                and one.group == stream.group
                and now - one.asked_at >= half_s
                and now - one.wanted_at < _KEPT_S
                and len(one.events) < _FULL
                and one.size < _FULL_BYTES
                and is_similar(one)
            ]
        due.sort(key=lambda one: one.asked_at)
        return [stream, *due[: _STREAMS - 1]]

    def _ask(self, members: Sequence[_Stream]) -> bool:
        """Read the streams to the end; return False if there was too much."""
        by_name = {one.name: one for one in members}
        where: dict[str, Any] = {"startTime": min(one.start for one in members)}
        count = size = 0
        while True:
            try:
                page = self._aws.filter_events(members[0].group, [*by_name], **where)
            except NotFoundError:
                # One of the streams was deleted; AWS does not report which one.
                if len(members) == 1:
                    return True
                half = len(members) // 2
                return all([self._ask(members[:half]), self._ask(members[half:])])
            with self._lock:
                for event in page["events"]:
                    # Without events that are read again, so that each round gets further.
                    size += by_name[event["logStreamName"]].add(event)
            count += len(page["events"])
            token = page.get("nextToken")
            if not token:
                return True
            if (count >= _EVENTS or size >= _BYTES) and page["events"]:
                # Events of all streams come in the order of their times.
                for one in members:
                    one.read_to = page["events"][-1]["timestamp"]
                return False
            where["nextToken"] = token
