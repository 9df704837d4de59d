"""Logs of pods, read on from a cursor.

A read asks for what the node has. Who comes back again and again to where the last read has ended gets an answer that
stays open and goes on while the program writes, for a few pods at once: it costs no requests, and no rotation of the
log files takes a line from it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.kubernetes.client import Cluster, NotStartedError, chunks
from airflow_provider_launch.schedulers.kubernetes.live_log import LiveLog
from airflow_provider_launch.schedulers.kubernetes.log_lines import LineReader, split
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

__all__ = ["Chunk", "LogReader"]

CHUNK_BYTES = 1024 * 1024
_OPEN_ANSWERS = 16
_LIVE_LOGS = 8
"""Of so many pods the logs are followed: each costs a connection and a thread."""
_RETURNS, _KNOWN_READERS = 3, 1000
"""How often a reader must come back until its pod's log is followed."""
_ABANDONED_S, _SEEK_S = 60.0, 1.0
_RESUMED_LINES = 20_000
"""Of so many lines at the end of a log the place to go on is looked for first: a flood has many more in few seconds."""
_KEYS = ("last", "done")
_GAP = "[launch] the node has begun a new log file, so lines may be missing here\n"


@dataclass
class Chunk:
    """Some lines of one pod."""

    lines: list[LogLine]
    cursor: dict[str, Any]
    live: bool = False
    """The container runs, and nothing more has come."""


class _How(Enum):
    """How a look at an answer ended."""

    MORE = "more"
    ENDED = "ended"
    CUT = "cut"


@dataclass
class _Answer:
    """An answer of which a part was read."""

    response: BaseHTTPResponse
    texts: Iterator[bytes]
    reader: LineReader
    complete: bool
    """The program had ended before it was asked for; otherwise it ends where the log ended then."""
    leads: bool = False
    """It is of the first replica of a role."""

    @property
    def live(self) -> LiveLog | None:
        """The texts, if they go on while the program writes."""
        return self.texts if isinstance(self.texts, LiveLog) else None

    def close(self) -> None:
        """Take nothing more."""
        if self.live is not None:
            self.live.close()
        else:
            self.response.close()


class LogReader:
    """Reads logs of pods; keeps a few answers open between two reads, so that a long log is read once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: OrderedDict[tuple[str, str], _Answer] = OrderedDict()
        self._returns: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._mutex = threading.Lock()

    def close(self) -> None:
        """Drop the open answers."""
        with self._mutex:
            answers = list(self._open.values())
            self._open.clear()
        for answer in answers:
            answer.close()

    def read(
        self,
        pod: str,
        uid: str,
        cursor: Mapping[str, Any],
        *,
        complete: bool,
        settles_in_s: float = 0.0,
        leads: bool = False,
    ) -> Chunk:
        """Return the next lines.

        Args:
            pod: its name.
            uid: its uid.
            cursor: of an earlier chunk of the pod; empty: from the first line on.
            complete: the program had ended before this call.
            settles_in_s: how long its node may still add lines then.
            leads: it is the first replica of its role, whose log is followed before those of others.

        Raises:
            NotFoundError: there is no such pod.
        """
        cursor = {name: cursor[name] for name in _KEYS if name in cursor}
        returned = self._came_back(uid, cursor)
        with self._mutex:
            answer = self._open.pop((uid, json.dumps(cursor)), None)
        chunk = None
        if answer is not None and answer.live is not None:
            chunk, answer = self._read_live(uid, answer, answer.live, complete=complete), None
        if chunk is None:
            settles_in_s = settles_in_s if complete else 0.0
            chunk, at_end = self._read_now(pod, uid, cursor, answer, settles_in_s, complete=complete)
            if at_end and returned and not complete:
                self._follow(pod, uid, chunk.cursor, leads=leads)
        with self._mutex:
            if uid in self._returns:
                self._returns[uid] = (json.dumps(chunk.cursor), self._returns[uid][1])
        return chunk

    def _read_now(
        self,
        pod: str,
        uid: str,
        cursor: dict[str, Any],
        answer: _Answer | None,
        settles_in_s: float,
        *,
        complete: bool,
    ) -> tuple[Chunk, bool]:
        """Return what the node has now, and whether that is all."""
        lines: list[LogLine] = []
        try:
            if answer is None:
                if complete and self._is_all(pod, cursor, settles_in_s):
                    return Chunk([], {**cursor, "done": True}), True
                tail = _RESUMED_LINES if cursor else None
                answer = self._ask(pod, LineReader(cursor), tail=tail, complete=complete)
            how = self._take(pod, answer, lines)
            if how is _How.ENDED and answer.reader.seeking and answer.reader.first is not None:
                answer, how = self._elsewhere(pod, cursor, lines, complete=complete)
            done = how is _How.ENDED and answer.complete and complete and not lines
            if done and (answer.reader.pending or settles_in_s):
                # What the program left in its pipes is copied when its end is known already. And a node that is busy
                # may cut its answer off, which still looks whole: only when two of them agree is this the last line.
                time.sleep(settles_in_s)
                last, answer = answer, self._ask(pod, LineReader(cursor), complete=True)
                how = self._take(pod, answer, lines)
                done = how is _How.ENDED and not lines and answer.reader.pending == last.reader.pending
                if done:
                    lines += answer.reader.rest()
        except NotStartedError:
            return Chunk([], cursor), False
        after = answer.reader.cursor()
        if done:
            after["done"] = True
        if how is _How.ENDED:
            answer.response.release_conn()
        elif how is _How.MORE:
            self._keep(uid, after, answer)
        return Chunk(lines, after), how is _How.ENDED

    def _is_all(self, pod: str, cursor: dict[str, Any], settles_in_s: float) -> bool:
        """Tell whether the log of a program that has ended goes no further than a place: two lines are asked for."""
        if not cursor or not self._is_last(pod, cursor):
            return False
        if not settles_in_s:
            return True
        # What the program left in its pipes is copied when its end is known already.
        time.sleep(settles_in_s)
        return self._is_last(pod, cursor)

    def _is_last(self, pod: str, cursor: dict[str, Any]) -> bool:
        answer = self._ask(pod, LineReader({}), tail=2, complete=True)
        lines: list[LogLine] = []
        how = self._take(pod, answer, lines)
        if how is _How.ENDED:
            answer.response.release_conn()
        if len({line.time for line in lines}) < len(lines):
            return False  # there may be more of that time, and some of them like the last
        return not answer.reader.pending and answer.reader.cursor() == cursor

    # ---- followed logs -----------------------------------------------------------------------------------------------

    def _came_back(self, uid: str, cursor: Mapping[str, Any]) -> bool:
        """Tell whether the reader has come back often enough to where it was; a single look is not followed."""
        with self._mutex:
            last, count = self._returns.pop(uid, ("", 0))
            count = count + 1 if last == json.dumps(cursor) else 0
            self._returns[uid] = ("", count)
            if len(self._returns) > _KNOWN_READERS:
                self._returns.popitem(last=False)
        return count >= _RETURNS

    def _follow(self, pod: str, uid: str, cursor: dict[str, Any], *, leads: bool) -> None:
        """Open an answer that goes on from there, if there are not too many, or one gives way."""
        with self._mutex:
            live = {key: answer for key, answer in self._open.items() if answer.live is not None}
            dropped = [key for key, one in live.items() if one.live and time.monotonic() - one.live.used > _ABANDONED_S]
            is_full = len(live) - len(dropped) >= _LIVE_LOGS
            if is_full and leads:
                others = [key for key, one in live.items() if not one.leads and key not in dropped]
                dropped += others[:1]
                is_full = not others
            answers = [self._open.pop(key) for key in dropped]
        for old in answers:
            old.close()
        if is_full:
            return
        reader = LineReader(cursor)
        try:
            tail = _RESUMED_LINES if cursor else None
            response = self._cluster.log(pod, CONTAINER, reader.since, tail=tail, follow=True)
        except LaunchError:
            return  # the next read says what is the matter
        self._keep(uid, cursor, _Answer(response, LiveLog(response), reader, complete=False, leads=leads))

    def _read_live(self, uid: str, answer: _Answer, live: LiveLog, *, complete: bool) -> Chunk | None:
        """Return the lines that have come; None: this answer is of no more use."""
        lines: list[LogLine] = []
        began = time.monotonic()
        while True:
            more = answer.reader.take(live, lines, CHUNK_BYTES)
            # It begins before the place where it is to go on, and it ends soon after the program.
            expected = answer.reader.seeking or (complete and not lines)
            if more or live.ended or not expected or time.monotonic() - began > _SEEK_S:
                break
            live.wait(_SEEK_S)
        useless = live.ended or expected
        if not lines and useless:
            answer.close()
            return None
        after = answer.reader.cursor()
        if useless and not more:
            answer.close()
        else:
            self._keep(uid, after, answer)
        return Chunk(lines, after, live=not lines)

    def _elsewhere(
        self, pod: str, cursor: Mapping[str, Any], lines: list[LogLine], *, complete: bool
    ) -> tuple[_Answer, _How]:
        """Go on where the line from which to go on is not where it was: most likely in no file any more."""
        for whole in (False, True):
            answer = self._ask(pod, LineReader(cursor, whole=whole), complete=complete)
            how = self._take(pod, answer, lines)
            if how is not _How.ENDED or not answer.reader.seeking:
                return answer, how
        if answer.reader.cut_off:
            raise SchedulerUnavailableError(f"the log of pod {pod} was cut off; the same call may succeed later")
        lines.append(LogLine(_GAP, Stream.COMBINED))
        answer = self._ask(pod, LineReader({}), complete=complete)
        return answer, self._take(pod, answer, lines)

    def _ask(self, pod: str, reader: LineReader, *, tail: int | None = None, complete: bool) -> _Answer:
        response = self._cluster.log(pod, CONTAINER, reader.since, tail=tail)
        return _Answer(response, split(chunks(response)), reader, complete)

    def _take(self, pod: str, answer: _Answer, lines: list[LogLine]) -> _How:
        from urllib3.exceptions import HTTPError

        try:
            return _How.MORE if answer.reader.take(answer.texts, lines, CHUNK_BYTES) else _How.ENDED
        except (HTTPError, OSError) as error:
            answer.response.close()
            # What came before it counts: the next read goes on there.
            if not lines:
                raise SchedulerUnavailableError(f"the log of pod {pod} was cut off: {error}") from error
            return _How.CUT

    def _keep(self, uid: str, cursor: Mapping[str, Any], answer: _Answer) -> None:
        key = (uid, json.dumps(cursor))
        with self._mutex:
            # Of two readers at one place the later answer serves both.
            dropped = [self._open.pop(key)] if key in self._open else []
            self._open[key] = answer
            if len(self._open) > _OPEN_ANSWERS:
                dropped.append(self._open.popitem(last=False)[1])
        for old in dropped:
            old.close()
