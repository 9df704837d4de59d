"""Defects of log streams."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.log_streams import LogStream, StreamEnd
from airflow_provider_launch.schedulers.logs import JsonValue, LogChunk, LogLine, Stream
from airflow_provider_launch.specs.states import AppState
from tests.contract.broken.defects import Threads, caught_by


class _OneRead(LogStream):
    """A stream with the lines of one read, then silent until the connection ends."""

    def __init__(self, lines: list[LogLine], cursor: JsonValue) -> None:
        self._ours, self.peer = socket.socketpair()
        self._ours.setblocking(False)
        self._lines = lines
        self._cursor = cursor
        self.attempt, self.host, self.is_remote = 0, "here", False
        self.end, self.refusal = None, ""

    sock = property(lambda self: self._ours)
    cursor = property(lambda self: self._cursor)
    is_positioned = True

    def start(self) -> list[LogLine]:
        return self._lines

    def feed(self, data: bytes) -> list[LogLine]:
        if not data:
            self.end = StreamEnd.CUT
        return []

    def close(self) -> None:
        self._ours.close()


class Streaming(Threads):
    """The healthy scheduler of this module, whose streams send the lines that exist at their start."""

    behind: ClassVar[int] = 0
    """Number of lines that its streams skip at the start."""

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        chunk = self.read_logs(app_id, role_name, k, cursor, streams=streams)
        stream = _OneRead(chunk.lines[self.behind :], chunk.cursor)
        Threads.open_streams.append(stream.peer)
        return stream


@caught_by("test_silent_replicas_cost_almost_nothing", "test_a_tail_of_a_silent_replica_costs_almost_nothing")
class StreamsInNameOnly(Streaming):
    """Never returns a stream, and lists all apps for each read of a silent replica."""

    poll_interval_s: ClassVar[float] = 0.1

    def stream_log(self, *_: Any, **__: Any) -> None:
        return None

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        for _ in range(10):
            self._reached()
        return super().read_logs(*args, **kwargs)


@caught_by("test_waiting_replicas_cost_nothing")
class ShowsWaitingReplicasAsRunning(Threads):
    """Reports waiting replicas as RUNNING, so that their logs are read."""

    poll_interval_s: ClassVar[float] = 0.1

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        for response in filter(None, found.values()):
            response.state = AppState.RUNNING
            for role in response.roles_statuses:
                for replica in role.replicas:
                    replica.state = AppState.RUNNING
        return found

    def read_logs(self, *_: Any, **__: Any) -> LogChunk:
        for _number in range(10):
            self._reached()
        return LogChunk([], None)


@caught_by("test_a_stream_that_is_cut_again_and_again_loses_no_line")
class LosesALineAtEachCut(Streaming):
    """Its streams start one line after the requested position."""

    behind = 1
