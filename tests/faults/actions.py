"""Faults, and the requests that they apply to."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from tests.faults.frames import frames as docker_frames
from tests.faults.wire import Answer, Request

if TYPE_CHECKING:
    from tests.faults.proxy import Exchange

Action = Callable[["Exchange"], None]


@dataclass
class Fault:
    """An action for the n-th request whose method and path match, and for the next ones up to `times`."""

    action: Action
    method: str | None = None
    """None means any."""
    path: str = ""
    """Searched in the path without its query; the path starts with `/v1.41`."""
    nth: int = 1
    """Number of the request since the fault was added, from 1."""
    times: int | None = 1
    """None means all later ones."""
    may_miss: bool = False
    """True if the fault may stay unused; otherwise that is an error at the end of the test."""
    matched: int = 0
    hits: int = 0
    """Number of requests that had the fault."""
    _hit: threading.Event = field(default_factory=threading.Event)

    def due(self, request: Request) -> bool:
        """Count the request, and return whether the fault applies. The proxy calls this for one request at a time."""
        if (self.method and self.method != request.method) or not re.search(self.path, request.path):
            return False
        self.matched += 1
        return self.matched >= self.nth and (self.times is None or self.matched < self.nth + self.times)

    def hit(self) -> None:
        """Count a request that gets the fault."""
        self.hits += 1
        self._hit.set()

    def wait(self, timeout_s: float = 20.0) -> None:
        """Wait until a request had the fault."""
        assert self._hit.wait(timeout_s), f"no request matched {self.method} {self.path!r}"


def error(status: int, message: str = "injected", *, retry_after_s: int | None = None, body: object = None) -> Action:
    """Answer with an error without asking the engine; `body` replaces Docker's `{"message": ...}`."""

    def act(exchange: Exchange) -> None:
        headers = [("Content-Type", "application/json")]
        if retry_after_s is not None:
            headers.append(("Retry-After", str(retry_after_s)))
        text = json.dumps({"message": message} if body is None else body) + "\n"
        exchange.relay(Answer(status, HTTPStatus(status).phrase, headers, iter(())).with_body(text.encode()))

    return act


def delay(seconds: float) -> Action:
    """Delay the request before the engine gets it."""

    def act(exchange: Exchange) -> None:
        exchange.wait(seconds)
        exchange.relay(exchange.forward())

    return act


def drop() -> Action:
    """Close the connection; the engine never gets the request."""
    return lambda exchange: exchange.drop()


def leave() -> Action:
    """Pass the request to the engine and close the connection at once, like a killed client."""
    return lambda exchange: exchange.leave()


def drop_answer() -> Action:
    """Let the engine execute the request, then close the connection without the answer."""

    def act(exchange: Exchange) -> None:
        for _ in exchange.forward().body:
            pass
        exchange.drop()

    return act


def cut(after: int = 0, *, frames: int = 0, head: bool = True) -> Action:
    """Close the connection after a number of Docker frames and bytes of the body.

    Each piece that is sent is a whole chunk of HTTP, so that the client sees all bytes before the cut.
    `cut(3, frames=2)` ends within the header of the third frame; without `head` not even the status line is whole.
    """

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        if not head:
            exchange.send(answer.head[: len("HTTP/1.1 2")])
            exchange.drop()
        exchange.relay(answer, _first(answer.body, frames, after), whole=False)
        exchange.drop()

    return act


def new_events() -> Action:
    """Answer a list of events in the form of API 1.52, which no longer has the id of the container at the top."""

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.relay(answer, _new_events(answer.body))

    return act


def _new_events(body: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in filter(None, lines):
            event = json.loads(line)
            yield json.dumps({key: event[key] for key in event.keys() - {"id", "status", "from"}}).encode() + b"\n"


def silence(after: int | None = None, *, frames: int = 0) -> Action:
    """Never answer, or stop after a number of frames and bytes of the body; the connection stays open."""

    def act(exchange: Exchange) -> None:
        if after is not None or frames:
            answer = exchange.forward()
            exchange.relay(answer, _first(answer.body, frames, after or 0), whole=False)
        exchange.wait()

    return act


def _first(body: Iterable[bytes], frames: int, size: int) -> Iterator[bytes]:
    pieces = iter(body)
    if frames:
        pieces = docker_frames(pieces)
        yield from itertools.islice(pieces, frames)
    while size:
        piece = next(pieces, b"")[:size]
        if not piece:
            return
        size -= len(piece)
        yield piece
