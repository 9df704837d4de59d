"""The scheduler in memory with log streams: each is a pair of sockets that a test can cut."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any

from airflow_provider_launch.schedulers.log_streams import LogStream
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.util.http_answer import Body, HttpAnswer
from tests.support.fake_scheduler import FakeEngine, FakeScheduler

_LAST = b"0\r\n\r\n"


class FakeStream:
    """The engine's side of one stream: sends each line of a replica, and then the end of its program."""

    def __init__(self, engine: StreamingEngine, app_id: str, role: str, k: int, cursor: int) -> None:
        self._engine = engine
        self._app_id, self._role, self._k = app_id, role, k
        self._begin = self._sent = cursor
        self._sock, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._end: bytes | None = None
        self.is_over = threading.Event()
        """True if the program has ended or one side has closed the stream."""
        threading.Thread(target=self._serve, daemon=True).start()

    def opened(self, only: Stream | None) -> LogStream:
        """Return the socket of the reader."""
        answer = HttpAnswer(self._theirs, Body(chunked=True), b"")
        only = None if only is Stream.COMBINED else only
        return LogStream(
            answer, _Rows(self._begin), host="fake", cursor_of=lambda cursor: cursor["line"], only=only, is_remote=False
        )

    def cut(self) -> None:
        """Cut the connection."""
        self._finish(b"")

    def refuse(self, reason: str) -> None:
        """Send the reason why the log cannot be followed, instead of lines."""
        self._finish(_chunk([{"refused": reason}]) + _LAST)

    def _finish(self, end: bytes) -> None:
        with self._engine.changed:
            self._end = end
            self._engine.changed.notify_all()
        assert self.is_over.wait(30)

    def _serve(self) -> None:
        with self._sock, suppress(OSError):
            while (rows := self._next()) is not None:
                self._sock.sendall(_chunk(rows))
            self._sock.sendall(self._end or b"")
        self.is_over.set()

    def _next(self) -> list[Any] | None:
        """Wait for lines; None at the end."""
        with self._engine.changed:
            while self._end is None:
                app = self._engine.apps[self._app_id]
                if lines := app.lines.get((self._role, self._k), [])[self._sent :]:
                    self._sent += len(lines)
                    return [[line.text, line.stream.value, line.time, line.attempt] for line in lines]
                if is_terminal(app.state) or (self._role, self._k) in app.exit_codes:
                    self._end = _LAST
                self._engine.changed.wait(0 if self._end else 30)
            return None


def _chunk(rows: list[Any]) -> bytes:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Rows:
    """Lines with their numbers as positions."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._rest = b""
        self._refusal = ""

    def feed(self, data: bytes) -> list[LogLine]:
        *rows, self._rest = (self._rest + data).split(b"\n")
        lines = []
        for row in map(json.loads, rows):
            if isinstance(row, dict):
                self._refusal = row["refused"]
                continue
            text, stream, time, attempt = row
            lines.append(LogLine(text, Stream(stream), time, attempt))
        self._line += len(lines)
        return lines

    def is_positioned(self) -> bool:
        return True

    def cursor(self) -> dict[str, Any]:
        return {"line": self._line}

    def refusal(self) -> str:
        return self._refusal


class StreamingEngine(FakeEngine):
    """Records the opened streams in order."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition(self.lock)
        self.opened: list[FakeStream] = []

    def state(self, *args: Any, **how: Any) -> None:
        with self.changed:
            super().state(*args, **how)
            self.changed.notify_all()

    def write(self, *args: Any, **how: Any) -> None:
        with self.changed:
            super().write(*args, **how)
            self.changed.notify_all()


class StreamingScheduler(FakeScheduler):
    """A scheduler with streams."""

    engine: StreamingEngine

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: Any = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        stream = FakeStream(self.engine, app_id, role_name, k, cursor or 0)
        self.engine.opened.append(stream)
        return stream.opened(streams)
