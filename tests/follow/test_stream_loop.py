"""Streams of a server that cuts, stalls and floods: each line comes once, and one thread reads them all."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_launch.follow.stream_loop import BUFFERED_BYTES, StreamLoop
from airflow_provider_launch.schedulers.log_streams import LogStream, StreamEnd
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.util.http_answer import Body, HttpTarget, RefusedError, open_answer
from tests.support.apps import until

HEADER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
Serve = Callable[[socket.socket], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class PlainLines:
    """Lines whose position is their number."""

    def __init__(self, seek: bytes = b"") -> None:
        self.rest = b""
        self.count = 0
        self.seek = seek

    def feed(self, data: bytes) -> list[LogLine]:
        *texts, self.rest = (self.rest + data).split(b"\n")
        lines = []
        for text in texts:
            if self.seek:
                self.seek = b"" if text == self.seek else self.seek
                continue
            self.count += 1
            lines.append(LogLine(text.decode() + "\n", Stream.STDOUT))
        return lines

    def is_positioned(self) -> bool:
        return not self.seek

    def cursor(self) -> dict[str, Any]:
        return {"lines": self.count}

    def refusal(self) -> str:
        return self.rest.decode() if self.rest.startswith(b"failed") else ""


class Taker:
    """Takes lines, until it has a given number at once."""

    def __init__(self, limit: int = 10**9) -> None:
        self.lines: list[str] = []
        self.limit = limit
        self.ended = threading.Event()
        self.end: StreamEnd | None = None
        self.silent = False
        self.threads: set[str] = set()

    def on_lines(self, stream: LogStream, lines: list[LogLine]) -> bool:
        self.threads.add(threading.current_thread().name)
        self.lines += [line.text for line in lines]
        return len(self.lines) < self.limit

    def on_end(self, stream: LogStream, *, silent: bool) -> None:
        self.end, self.silent = stream.end, silent
        self.ended.set()


@pytest.fixture
def server() -> Iterator[Callable[[Serve], HttpTarget]]:
    """Serve one connection after the other, each by its own thread."""
    listeners = []

    def serve(act: Serve) -> HttpTarget:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                act(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return HttpTarget("127.0.0.1", listener.getsockname()[1])

    yield serve
    for listener in listeners:
        listener.close()


def opened(target: HttpTarget, parser: PlainLines | None = None, *, is_remote: bool = True) -> LogStream:
    def cursor_of(cursor: Mapping[str, Any]) -> dict[str, Any]:
        return dict(cursor)

    answer = open_answer(target, "/log", {}, 5.0)
    return LogStream(answer, parser or PlainLines(), host=target.name, cursor_of=cursor_of, is_remote=is_remote)


def follow(engine: StreamLoop, stream: LogStream, taker: Taker) -> Taker:
    assert engine.reserve()
    engine.add(stream, taker)
    return taker


@pytest.mark.parametrize("at", range(len(chunk(b"one\n") + chunk(b"two\n") + LAST) + 1))
def test_a_body_that_is_cut_at_any_byte_loses_nothing(at):
    data = chunk(b"one\n") + chunk(b"two\n") + LAST
    body = Body(chunked=True)

    assert body.feed(data[:at]) + body.feed(data[at:]) == b"one\ntwo\n"
    assert body.complete


@pytest.mark.parametrize(
    "size", [b"zz", b"-1", b"-5", b"+5", b"0x5", b"5_0", b"", b"5 5", b"f" * 17, b"9" * 5000, b"\xb2", b";name=5"]
)
def test_an_invalid_chunk_size_is_an_error(size):
    with pytest.raises(ValueError, match="chunk"):
        Body(chunked=True).feed(size + b"\r\nhello\r\n")


@pytest.mark.parametrize("size", [b"5", b"05", b" 5 ", b"5;name=value", b"0005;x"])
def test_a_size_of_a_chunk_may_have_extensions(size):
    assert Body(chunked=True).feed(size + b"\r\nhello\r\n0\n\n") == b"hello"


class Failing:
    """Fails at a line, as what takes it or what parses it may."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, *_args: object, **_how: object) -> Any:
        raise TypeError(f"unexpected {self.where}")


@pytest.mark.parametrize("place", ["feed", "cursor", "is_positioned", "on_lines", "on_end", "refusal"])
def test_an_unexpected_error_closes_one_stream_and_is_reported(server, caplog, place):
    engine = StreamLoop()
    go_on = threading.Event()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        assert go_on.wait(60)
        connection.sendall(chunk(b"b\n") + LAST)

    bystander = follow(engine, opened(server(act)), Taker())
    parser, taker = PlainLines(), Taker()
    bad = opened(server(lambda c: c.sendall(HEADER + chunk(b"a\n") + LAST)), parser)
    holder = taker if place.startswith("on_") else parser
    setattr(holder, place, Failing(place))
    if place == "cursor":
        taker.on_lines = lambda stream, _lines: bool(stream.cursor)
    follow(engine, bad, taker)
    if place != "on_end":
        assert taker.ended.wait(60)
    go_on.set()

    assert bystander.ended.wait(60)
    assert (bystander.lines, bystander.end) == (["a\n", "b\n"], StreamEnd.ENDED)
    later = follow(engine, opened(server(lambda c: c.sendall(HEADER + chunk(b"c\n") + LAST))), Taker())
    assert later.ended.wait(60)
    assert later.lines == ["c\n"]
    assert place == "is_positioned" or f"unexpected {place}" in caplog.text


def test_the_thread_of_all_streams_comes_back_when_it_fails(server, caplog):
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        time.sleep(60)

    taker = follow(engine, opened(server(act)), Taker())
    engine._command(Failing("command"))

    assert taker.ended.wait(60)
    assert (taker.end, engine.count()) == (StreamEnd.CUT, 0)
    later = follow(engine, opened(server(lambda c: c.sendall(HEADER + chunk(b"c\n") + LAST))), Taker())
    assert later.ended.wait(60)
    assert later.lines == ["c\n"]
    assert "unexpected command" in caplog.text


def test_a_follower_that_fails_at_the_end_of_its_stream_does_not_keep_the_others(server, caplog):
    """When the thread of all streams fails, each follower must read its log in another way."""
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        time.sleep(60)

    target, bad = server(act), Taker()
    bad.on_end = Failing("on_end")
    follow(engine, opened(target), bad)
    other = follow(engine, opened(target), Taker())
    engine._command(Failing("command"))

    assert other.ended.wait(60)
    assert (other.end, engine.count()) == (StreamEnd.CUT, 0)
    assert "unexpected on_end" in caplog.text


@pytest.mark.parametrize("fails", [False, True], ids=["closes", "cannot close"])
def test_streams_are_closed_when_their_thread_fails(server, monkeypatch, fails):
    """Their followers open other ones, and a plug-in's stream may raise anything."""
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        over.wait(60)

    over, target = threading.Event(), server(act)
    streams = [opened(target) for _ in range(2)]
    takers = [follow(engine, stream, Taker()) for stream in streams]
    sockets = [stream.sock for stream in streams]
    if fails:
        monkeypatch.setattr(LogStream, "close", Failing("close"))
    engine._command(Failing("command"))

    assert all(taker.ended.wait(60) for taker in takers)
    assert [sock.fileno() == -1 for sock in sockets] == [not fails] * 2
    monkeypatch.undo()
    over.set()
    for stream in streams:
        stream.close()


def test_commands_of_a_thread_that_has_failed_are_dropped(server):
    """They belong to streams that are closed."""
    engine, stale = StreamLoop(), []

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        over.wait(60)

    over = threading.Event()
    taker = follow(engine, opened(server(act)), Taker())
    with engine._lock:
        engine._commands += [Failing("command"), lambda: stale.append("a command")]
        engine._wake()
    assert taker.ended.wait(60)
    over.set()
    later = follow(engine, opened(server(lambda c: c.sendall(HEADER + chunk(b"c\n") + LAST))), Taker())

    assert later.ended.wait(60)
    assert stale == []


def test_a_thread_that_cannot_be_woken_reads_on(server):
    """The one who closes a stream gets no error from the socket pair that wakes the thread."""
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        may_end.wait(60)
        connection.sendall(chunk(b"a\n") + LAST)

    may_end = threading.Event()
    taker = follow(engine, opened(server(act)), Taker())
    until(lambda: not engine._is_woken, 20, 0.01)
    engine._wake_out.close()
    engine._command(lambda: None)
    may_end.set()

    assert taker.ended.wait(60)
    assert taker.lines == ["a\n"]


def test_a_thread_without_streams_leaves_nothing_open(server):
    """A worker of a pool runs task after task."""
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        may_end.wait(60)
        connection.sendall(LAST)

    may_end = threading.Event()
    taker = follow(engine, opened(server(act)), Taker())
    ends, selector = (engine._wake_in, engine._wake_out), engine._selector
    may_end.set()

    assert taker.ended.wait(60)
    until(lambda: engine._thread is None, 20, 0.01)
    assert [end.fileno() for end in ends] == [-1, -1]
    assert selector.get_map() is None


@pytest.mark.parametrize("is_full", [False, True], ids=["read", "waits for room"])
def test_a_stream_that_has_ended_is_freed(server, is_full):
    """Each has a buffer, and a process may open thousands one after the other."""
    engine = StreamLoop()

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        over.wait(60)

    def read_and_close() -> weakref.ref[Taker]:
        stream, taker = opened(server(act)), Taker()
        follow(engine, stream, taker)
        until(lambda: taker.lines, 20, 0.01)
        until(lambda: bool(engine._waiting) == is_full, 20, 0.01)
        engine.close(stream)
        until(lambda: engine._thread is None, 20, 0.01)
        over.set()
        return weakref.ref(taker)

    def is_freed() -> bool:
        gc.collect()
        return left() is None

    over = threading.Event()
    engine.add_buffered(2 * BUFFERED_BYTES if is_full else 0)
    left = read_and_close()
    until(is_freed, 20, 0.05)


class Interrupted:
    """A socket whose first reads fail with an error."""

    def __init__(self, sock: socket.socket, error: OSError) -> None:
        self._sock, self._errors = sock, [error] * 2

    def recv(self, size: int) -> bytes:
        if self._errors:
            raise self._errors.pop()
        return self._sock.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("kind", [BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError])
def test_a_read_that_has_to_be_repeated_does_not_cut_the_stream(server, kind):
    """TLS asks for more bytes in the middle of a record, and a signal may interrupt any read."""

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        may_write.wait(20)
        connection.sendall(chunk(b"a\n") + LAST)

    may_write = threading.Event()
    stream = opened(server(act))
    stream._answer.sock = Interrupted(stream.sock, kind())
    taker = follow(StreamLoop(), stream, Taker())
    may_write.set()

    assert taker.ended.wait(20)
    assert (taker.lines, taker.end) == (["a\n"], StreamEnd.ENDED)


def test_a_connection_that_is_reset_is_cut_without_a_report(server, caplog):
    """A server that restarts resets the streams of all its apps."""

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        assert taken.wait(20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    taken = threading.Event()
    stream, taker = opened(server(act)), Taker()
    take = taker.on_lines
    taker.on_lines = lambda *given: (take(*given), taken.set())[0]
    follow(StreamLoop(), stream, taker)

    assert taker.ended.wait(20)
    assert (taker.lines, taker.end, caplog.text) == (["a\n"], StreamEnd.CUT, "")


@pytest.mark.parametrize("drip", [b"X: y\r\n", b"x"], ids=["headers", "byte"])
def test_a_header_that_drips_has_one_limit(server, drip):
    stopped = threading.Event()

    def act(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not stopped.wait(0.3):
            connection.sendall(drip)

    target = server(act)
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            open_answer(target, "/log", {}, 1.5)
        assert time.monotonic() - began < 60
    finally:
        stopped.set()


def test_a_refusal_has_the_message_of_the_server(server):
    target = server(lambda c: c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno such x"))

    with pytest.raises(RefusedError, match="404: no such x"):
        open_answer(target, "/log", {}, 5.0)


def test_the_last_chunk_is_the_end_of_the_program(server):
    taker = follow(StreamLoop(), opened(server(lambda c: c.sendall(HEADER + chunk(b"a\nb\nrest") + LAST))), Taker())

    assert taker.ended.wait(5)
    assert (taker.lines, taker.end) == (["a\n", "b\n"], StreamEnd.ENDED)


def test_a_connection_that_ends_within_a_chunk_is_cut(server):
    taker = follow(StreamLoop(), opened(server(lambda c: c.sendall(HEADER + chunk(b"a\nb\n")[:-3]))), Taker())

    assert taker.ended.wait(5)
    assert (taker.lines, taker.end) == (["a\n"], StreamEnd.CUT)


def test_messages_of_the_engine_are_not_lines(server):
    """A node without free watchers returns an error message instead of a log, with status 200."""
    target = server(lambda c: c.sendall(HEADER + chunk(b"a\nfailed to create a watcher") + LAST))
    stream = opened(target)
    taker = follow(StreamLoop(), stream, Taker())

    assert taker.ended.wait(5)
    assert (taker.lines, taker.end) == (["a\n"], StreamEnd.REFUSED)
    assert "watcher" in stream.refusal


def test_a_position_that_does_not_come_ends_the_stream(server):
    """A rotated log starts after the position; a reader that waits for it would wait for ever."""

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"x\ny\n"))
        time.sleep(10)

    taker = follow(StreamLoop(), opened(server(act), PlainLines(seek=b"a")), Taker())

    assert taker.ended.wait(5)
    assert (taker.lines, taker.end) == ([], StreamEnd.LOST)


def test_one_thread_reads_all_and_ends_with_the_last(server):
    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        for number in range(20):
            connection.sendall(chunk(b"%d\n" % number))
            time.sleep(0.01)
        connection.sendall(LAST)

    engine, target = StreamLoop(), server(act)
    takers = [follow(engine, opened(target), Taker()) for _ in range(30)]

    assert all(taker.ended.wait(20) for taker in takers)
    assert all(taker.lines == [f"{n}\n" for n in range(20)] for taker in takers)
    assert {name for taker in takers for name in taker.threads} == {"launch-streams"}
    until(lambda: engine._thread is None, 5, 0.01)


def test_the_thread_starts_without_the_lock(server, monkeypatch):
    """Starting a thread may collect garbage: closing a follower takes the lock, and both would wait."""
    engine, waits, plain = StreamLoop(), [], threading.Thread

    class Collecting(plain):
        def start(self) -> None:
            closing = plain(target=engine.add_buffered, args=(0,), daemon=True)
            closing.start()
            closing.join(2)
            waits.append(closing.is_alive())
            super().start()

    stream = opened(server(lambda connection: connection.sendall(HEADER + LAST)))
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Collecting)
        taker = follow(engine, stream, Taker())

    assert taker.ended.wait(20)
    assert waits == [False]


def test_a_paused_subscriber_gets_no_lines_and_loses_none(server):
    """Memory must not grow with a log, however slowly it is shown."""
    sent = []

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        for number in range(20_000):
            connection.sendall(chunk(b"%d %b\n" % (number, b"x" * 1000)))
            sent.append(number)
        connection.sendall(LAST)

    engine = StreamLoop()
    stream = opened(server(act))
    taker = follow(engine, stream, Taker(limit=1000))
    until(lambda: len(taker.lines) >= 1000, 10, 0.01)
    time.sleep(0.5)
    before = len(taker.lines)
    time.sleep(0.5)

    assert before == len(taker.lines) < 1200
    assert len(sent) < 20_000
    taker.limit = 10**9
    engine.resume(stream)
    assert taker.ended.wait(20)
    assert [int(line.split()[0]) for line in taker.lines] == [*range(20_000)]


def test_a_flood_does_not_delay_another_stream(server):
    def flood(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        while not taker.ended.is_set():
            connection.sendall(chunk(b"x" * 999 + b"\n"))

    def talk(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        for _ in range(50):
            connection.sendall(chunk(b"%.6f\n" % time.monotonic()))
            time.sleep(0.02)
        connection.sendall(LAST)

    class Clock(Taker):
        def on_lines(self, stream: LogStream, lines: list[LogLine]) -> bool:
            late.extend(time.monotonic() - float(line.text) for line in lines)
            return True

    class Drop(Taker):
        def on_lines(self, stream: LogStream, lines: list[LogLine]) -> bool:
            return True

    late: list[float] = []
    taker = Clock()
    engine = StreamLoop()
    flooded = opened(server(flood))
    follow(engine, flooded, Drop())
    follow(engine, opened(server(talk)), taker)

    assert taker.ended.wait(20)
    engine.close(flooded)
    assert sorted(late)[len(late) // 2] < 0.3


def test_a_closed_stream_brings_nothing_more(server):
    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        over.wait(10)

    over = threading.Event()
    engine = StreamLoop()
    stream = opened(server(act))
    taker = follow(engine, stream, Taker())
    engine.close(stream)
    until(lambda: not engine.count(), 5, 0.01)
    over.set()

    assert not taker.ended.is_set()
    assert stream.sock.fileno() == -1


def test_a_silent_connection_is_reopened(server, monkeypatch):
    """It may be dead without a word: no packet says so."""
    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop._SILENT_S", 0.3)
    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop._SEEK_S", 0.1)

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        time.sleep(10)

    target = server(act)
    engine = StreamLoop()
    remote, near = (follow(engine, opened(target, is_remote=is_remote), Taker()) for is_remote in (True, False))

    assert remote.ended.wait(5)
    assert (remote.end, remote.silent) == (StreamEnd.CUT, True)
    assert not near.ended.wait(1)


def test_a_connection_that_is_silent_for_a_short_time_stays(server, monkeypatch):
    """Most programs write less than a line per second; a connection for each line would cost more than a poll."""
    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop._SEEK_S", 0.1)

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER + chunk(b"a\n"))
        time.sleep(0.6)
        connection.sendall(chunk(b"b\n") + chunk(b""))

    taker = follow(StreamLoop(), opened(server(act)), Taker())

    assert taker.ended.wait(30)
    assert (taker.end, taker.silent) == (StreamEnd.ENDED, False)


def test_a_stream_that_is_being_opened_takes_a_slot(monkeypatch):
    """Else each of a thousand logs that are opened at the same moment would get a connection."""
    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop.MAX_STREAMS", 2)
    engine = StreamLoop()

    assert [engine.reserve() for _ in range(3)] == [True, True, False]
    engine.release()
    assert engine.reserve()


def test_the_number_of_streams_is_limited(server, monkeypatch):
    """Beyond them logs are read in turns; a stream that was silent for long is closed for another one."""
    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop.MAX_STREAMS", 2)

    def act(connection: socket.socket) -> None:
        connection.sendall(HEADER)
        time.sleep(10)

    target = server(act)
    engine = StreamLoop()
    takers = [follow(engine, opened(target, is_remote=False), Taker()) for _ in range(2)]
    assert not engine.reserve()
    assert not any(taker.ended.wait(0.2) for taker in takers)

    monkeypatch.setattr("airflow_provider_launch.follow.stream_loop._SILENT_S", 0.01)
    assert not engine.reserve()
    assert takers[0].ended.wait(5)
    assert engine.reserve()
