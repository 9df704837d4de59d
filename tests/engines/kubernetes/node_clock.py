"""A node with a wrong clock: times in logs, containers and requests are shifted.

The clocks of this machine are not changed. Times of the control plane, which has its own clock, are not shifted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.faults.clock import NS, Clock, formatted, parsed
from tests.faults.wire import Answer, Request

_RFC3339 = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_PREFIX = re.compile(_RFC3339 + rb"(?= )")
# Times in the status of a pod. An escaped quote belongs to a nested text.
_TOLD = re.compile(rb'(?<!\\)("(?:startedAt|finishedAt|startTime)":")(' + _RFC3339 + rb')(?=")')


class NodeClock(Clock):
    """The clock of all nodes, with an offset in seconds; it may step while it runs."""

    def query(self, request: Request) -> dict[str, str]:
        query = dict(request.query)
        if since := _since(request):
            # After a step back a time occurs twice: request more, and drop the surplus here.
            query["sinceTime"] = formatted((since - max(self.offsets())) // NS * NS)
        return query

    def moved(self, request: Request, answer: Answer) -> Answer:
        if answer.status != 200:
            return answer
        if request.path.endswith("/log"):
            answer.body = self._log(_since(request), answer.body)
            if answer.header("content-length"):
                # Fewer lines may remain.
                answer = answer.with_body(b"".join(answer.body))
        elif "/pods" in request.path and "json" in answer.header("content-type"):
            # Keep the number of bytes.
            answer.body = iter([_TOLD.sub(self._told, b"".join(answer.body))])
        return answer

    def _told(self, found: re.Match[bytes]) -> bytes:
        return found[1] + formatted(self.shown(parsed(found[2].decode())) // NS * NS).encode()

    def _log(self, since: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            if text := b"".join(self._line(since, line + b"\n") for line in lines):
                yield text
        if rest:
            yield self._line(since, rest)

    def _line(self, since: int, line: bytes) -> bytes:
        stamp = _PREFIX.match(line)
        if stamp is None:
            return line
        ns = self.shown(parsed(stamp[0].decode()))
        return b"" if ns < since else formatted(ns, fixed=True).encode() + line[stamp.end() :]


def _since(request: Request) -> int:
    """Return the start time of the requested log in nanoseconds; 0 means from its start."""
    return parsed(request.query["sinceTime"]) if "sinceTime" in request.query else 0
