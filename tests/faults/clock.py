"""A Docker engine with a wrong clock: times in answers and in requests are shifted.

The clock of the engine is not changed. Times in answers, and `since` and `until` in requests, are shifted, so that the
client sees a consistent node with another clock. Logs of containers with a TTY, which have no frames, are not shifted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime, parsedate_to_datetime

from tests.faults.frames import HEADER, frames, head_of
from tests.faults.wire import Answer, Request

NS = 10**9
_RFC3339 = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_PREFIX = re.compile(_RFC3339 + rb"(?= )")
# An escaped quote belongs to a nested text, such as an environment or a label.
_TEXT = re.compile(rb'(?<!\\)("(?:Created|CreatedAt|StartedAt|FinishedAt|SystemTime)":")(' + _RFC3339 + rb')(?=")')
_SECONDS = re.compile(rb'(?<!\\)("(?:Created|time)":)(\d+)')
_NANOS = re.compile(rb'(?<!\\)("timeNano":)(\d+)')
_ZERO = "0001-"  # Docker's "never"


def parsed(text: str) -> int:
    """Return the nanoseconds since 1970 of an RFC 3339 time in UTC."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    whole = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return int(whole.timestamp()) * NS + int(fraction.ljust(9, "0")[:9])


def formatted(ns: int, *, fixed: bool = False) -> str:
    """Return an RFC 3339 time: logs have nine digits, other Docker times omit trailing zeros."""
    seconds, fraction = divmod(ns, NS)
    digits = f"{fraction:09d}" if fixed else f"{fraction:09d}".rstrip("0")
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}{'.' * bool(digits)}{digits}Z"


class Clock:
    """A clock with an offset in seconds, which may step while it runs."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._steps = [(0, int(offset_s * NS))]

    def step(self, seconds: float) -> None:
        """Step from now on; negative means back. Earlier events keep their times."""
        self._steps.append((time.time_ns(), int(seconds * NS)))

    def shown(self, ns: int) -> int:
        """Return the time of this clock at a true time."""
        return ns + sum(by for at, by in self._steps if ns >= at)

    def offsets(self) -> list[int]:
        """Return the offsets in nanoseconds at the start and after each step."""
        return [sum(by for _, by in self._steps[: n + 1]) for n in range(len(self._steps))]

    def query(self, request: Request) -> dict[str, str]:
        """Return the query of the request for an engine with a correct clock."""
        query = dict(request.query)
        if request.path.endswith(("/logs", "/events")):
            # After a step back a time occurs twice: request more, and drop the surplus here.
            for name, offset in (("since", max(self.offsets())), ("until", min(self.offsets()))):
                if bound := _bound(request, name):
                    query[name] = "{}.{:09d}".format(*divmod(max(bound - offset, 1), NS))
        return query

    def moved(self, request: Request, answer: Answer) -> Answer:
        """Return the answer with the times of this clock."""
        headers = [(name, self._date(value) if name.lower() == "date" else value) for name, value in answer.headers]
        answer = Answer(answer.status, answer.reason, headers, answer.body)
        if (
            answer.status == 200
            and request.path.endswith("/logs")
            and request.query.get("timestamps") in {"1", "true", "True"}
        ):
            answer.body = self._log(request, answer.body)
        elif "json" in answer.header("content-type"):
            answer.body = self._json(answer.body)
            if answer.header("content-length"):
                answer = answer.with_body(b"".join(answer.body))
        return answer

    def _date(self, text: str) -> str:
        moved = parsedate_to_datetime(text).astimezone(timezone.utc)
        ns = self.shown(int(moved.timestamp()) * NS)
        return format_datetime(moved + timedelta(seconds=ns // NS - int(moved.timestamp())), usegmt=True)

    def _log(self, request: Request, pieces: Iterator[bytes]) -> Iterator[bytes]:
        since, until = _bound(request, "since"), _bound(request, "until")
        over = False
        for frame in frames(pieces):
            prefix = _PREFIX.match(frame, HEADER)
            if prefix is None:
                yield frame
                continue
            ns = self.shown(parsed(prefix[0].decode()))
            # Docker ends a log at the first line after the bound.
            over = over or bool(until and ns > until)
            if not over and not (since and ns < since):
                text = formatted(ns, fixed=True).encode() + frame[prefix.end() :]
                yield head_of(frame[0], len(text)) + text

    def _json(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                yield self._text(b"\n".join([*lines, b""]))
        if rest:
            yield self._text(rest)

    def _text(self, text: bytes) -> bytes:
        def rfc3339(found: re.Match[bytes]) -> bytes:
            shown = found[2].decode()
            return found[0] if shown.startswith(_ZERO) else found[1] + formatted(self.shown(parsed(shown))).encode()

        text = _TEXT.sub(rfc3339, text)
        text = _SECONDS.sub(lambda found: b"%s%d" % (found[1], self.shown(int(found[2]) * NS) // NS), text)
        return _NANOS.sub(lambda found: b"%s%d" % (found[1], self.shown(int(found[2]))), text)


def _bound(request: Request, name: str) -> int:
    """Return a bound of the query in nanoseconds; 0 means none, as it does for Docker."""
    seconds, _, fraction = request.query.get(name, "").partition(".")
    try:
        return int(seconds) * NS + int(fraction.ljust(9, "0")[:9])
    except ValueError:
        return 0
