"""Reads the logs of pods from a cursor on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_launch.schedulers._kit.attempt_logs import OpenAnswers
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, NotStartedError, chunks
from airflow_provider_launch.schedulers.kubernetes.log_lines import LineReader, split
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CHUNK_BYTES = 1024 * 1024
RESUMED_LINES = 20_000
"""The position is first searched in this many last lines, because a few seconds of a flood have many more."""
CURSOR_KEYS = ("last", "done")
_GAP = "[launch] the node has started a new log file, so lines may be missing here\n"


@dataclass
class Chunk:
    """Some lines of one pod, and the cursor after them."""

    lines: list[LogLine]
    cursor: dict[str, Any]


class _Source(NamedTuple):
    """The container whose log is read."""

    pod: str
    container: str


class _How(Enum):
    """How the reading of an answer ended."""

    MORE = "more"
    ENDED = "ended"
    CUT = "cut"


@dataclass
class _Answer:
    """An answer that was partly read."""

    response: BaseHTTPResponse
    texts: Iterator[bytes]
    reader: LineReader
    complete: bool
    """Whether the program had ended before the request; else the answer may lack later lines."""


class LogReader:
    """Reads logs of pods; keeps some answers open between reads, so that a long log is read once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: OpenAnswers[_Answer] = OpenAnswers()

    def close(self) -> None:
        """Close the open answers."""
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
        """Return the next lines after a cursor of the pod.

        With `complete` the program had ended before this call; the node may still add lines for `settles_in_s`.

        Raises:
            NotFoundError: the pod does not exist.
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
                # The node may copy the rest of the pipes after it reports the end. A busy node may also cut an answer
                # off without an error. So the end of the log counts only if two answers agree.
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
        """Return whether the log of an ended program ends at the cursor; requests only two lines."""
        if not cursor or not self._is_last(source, cursor):
            return False
        if not settles_in_s:
            return True
        # The node may copy the rest of the pipes after it reports the end.
        time.sleep(settles_in_s)
        return self._is_last(source, cursor)

    def _is_last(self, source: _Source, cursor: dict[str, Any]) -> bool:
        answer = self._ask(source, LineReader({}), tail=2, complete=True)
        lines: list[LogLine] = []
        how = self._take(source, answer, lines)
        if how is _How.ENDED:
            answer.response.release_conn()
        if len({line.time for line in lines}) < len(lines):
            return False  # there may be more lines of that time, some equal to the last
        return not answer.reader.pending and answer.reader.cursor() == cursor

    def _elsewhere(
        self, source: _Source, cursor: Mapping[str, Any], lines: list[LogLine], *, complete: bool
    ) -> tuple[_Answer, _How]:
        """Continue if the line at the cursor was not found where expected; most likely its file was rotated."""
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
            # The lines before the error count: the next read continues after them.
            if not lines:
                raise SchedulerUnavailableError(f"the log of pod {source.pod} was cut off: {error}") from error
            return _How.CUT
