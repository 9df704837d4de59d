"""Logs of pods, read on from a cursor: a read asks for what the node has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_launch.schedulers._kit.open_answers import OpenAnswers
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, NotStartedError, chunks
from airflow_provider_launch.schedulers.kubernetes.log_lines import LineReader, split
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CHUNK_BYTES = 1024 * 1024
RESUMED_LINES = 20_000
"""The place to go on is first searched in so many last lines of a log: a flood has many more in few seconds."""
CURSOR_KEYS = ("last", "done")
_GAP = "[launch] the node has begun a new log file, so lines may be missing here\n"


@dataclass
class Chunk:
    """Some lines of one pod."""

    lines: list[LogLine]
    cursor: dict[str, Any]


class _Source(NamedTuple):
    """Whose log is read."""

    pod: str
    container: str


class _How(Enum):
    """How the reading of an answer ended."""

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


class LogReader:
    """Reads logs of pods; keeps a few answers open between two reads, so that a long log is read once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: OpenAnswers[_Answer] = OpenAnswers()

    def close(self) -> None:
        """Drop the open answers."""
        self._open.close()

    def read(
        self,
        pod: str,
        uid: str,
        cursor: Mapping[str, Any],
        *,
        complete: bool,
        settles_in_s: float = 0.0,
        container: str = CONTAINER,
    ) -> Chunk:
        """Return the next lines.

        Args:
            pod: its name.
            uid: its uid.
            cursor: of an earlier chunk of the pod; empty: from the first line on.
            complete: the program had ended before this call.
            settles_in_s: how long its node may still add lines then.
            container: whose log it is.

        Raises:
            NotFoundError: there is no such pod.
        """
        cursor = {name: cursor[name] for name in CURSOR_KEYS if name in cursor}
        source = _Source(pod, container)
        answer = self._open.take(f"{uid}/{container}", cursor)
        settles_in_s = settles_in_s if complete else 0.0
        lines: list[LogLine] = []
        try:
            if answer is None:
                if complete and self._is_all(source, cursor, settles_in_s):
                    return Chunk([], {**cursor, "done": True})
                tail = RESUMED_LINES if cursor else None
                answer = self._ask(source, LineReader(cursor), tail=tail, complete=complete)
            how = self._take(source, answer, lines)
            if how is _How.ENDED and answer.reader.seeking and answer.reader.first is not None:
                answer, how = self._elsewhere(source, cursor, lines, complete=complete)
            done = how is _How.ENDED and answer.complete and complete and not lines
            if done and (answer.reader.pending or settles_in_s):
                # What the program left in its pipes is copied when its end is known already. And a node that is busy
                # may cut its answer off, which still seems whole: only when two of them agree is this the last line.
                time.sleep(settles_in_s)
                last, answer = answer, self._ask(source, LineReader(cursor), complete=True)
                how = self._take(source, answer, lines)
                done = how is _How.ENDED and not lines and answer.reader.pending == last.reader.pending
                if done:
                    lines += answer.reader.rest()
        except NotStartedError:
            return Chunk([], cursor)
        after = answer.reader.cursor()
        if done:
            after["done"] = True
        if how is _How.ENDED:
            answer.response.release_conn()
        elif how is _How.MORE:
            self._open.keep(f"{uid}/{container}", after, answer)
        return Chunk(lines, after)

    def _is_all(self, source: _Source, cursor: dict[str, Any], settles_in_s: float) -> bool:
        """Return whether the log of a program that has ended goes no further than a place: two lines are asked for."""
        if not cursor or not self._is_last(source, cursor):
            return False
        if not settles_in_s:
            return True
        # What the program left in its pipes is copied when its end is known already.
        time.sleep(settles_in_s)
        return self._is_last(source, cursor)

    def _is_last(self, source: _Source, cursor: dict[str, Any]) -> bool:
        answer = self._ask(source, LineReader({}), tail=2, complete=True)
        lines: list[LogLine] = []
        how = self._take(source, answer, lines)
        if how is _How.ENDED:
            answer.response.release_conn()
        if len({line.time for line in lines}) < len(lines):
            return False  # there may be more of that time, and some of them like the last
        return not answer.reader.pending and answer.reader.cursor() == cursor

    def _elsewhere(
        self, source: _Source, cursor: Mapping[str, Any], lines: list[LogLine], *, complete: bool
    ) -> tuple[_Answer, _How]:
        """Go on where the line from which to go on is not where it was: most likely in no file any more."""
        for whole in (False, True):
            answer = self._ask(source, LineReader(cursor, whole=whole), complete=complete)
            how = self._take(source, answer, lines)
            if how is not _How.ENDED or not answer.reader.seeking:
                return answer, how
        if answer.reader.cut_off:
            raise SchedulerUnavailableError(f"the log of pod {source.pod} was cut off; the same call may succeed later")
        lines.append(LogLine(_GAP, Stream.COMBINED))
        answer = self._ask(source, LineReader({}), complete=complete)
        return answer, self._take(source, answer, lines)

    def _ask(self, source: _Source, reader: LineReader, *, tail: int | None = None, complete: bool) -> _Answer:
        response = self._cluster.log(source.pod, source.container, reader.since, tail=tail)
        return _Answer(response, split(chunks(response)), reader, complete)

    def _take(self, source: _Source, answer: _Answer, lines: list[LogLine]) -> _How:
        from urllib3.exceptions import HTTPError

        try:
            return _How.MORE if answer.reader.take(answer.texts, lines, CHUNK_BYTES) else _How.ENDED
        except (HTTPError, OSError) as error:
            answer.response.close()
            # What came before it counts: the next read goes on there.
            if not lines:
                raise SchedulerUnavailableError(f"the log of pod {source.pod} was cut off: {error}") from error
            return _How.CUT
