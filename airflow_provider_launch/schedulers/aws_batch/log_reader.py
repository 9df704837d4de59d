"""Reads the log of one attempt from CloudWatch, from a cursor on."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.client import Aws, BadTokenError, DeniedError, NotFoundError
from airflow_provider_launch.schedulers.aws_batch.jobs import AttemptLog
from airflow_provider_launch.schedulers.aws_batch.log_feed import LogFeed
from airflow_provider_launch.schedulers.logs import LogLine, Stream

logger = logging.getLogger(__name__)

_QUIET_S = 5.0
_AFTER_END_S = 15.0
_LONGEST_WAIT_S = 30.0
_PAUSE_S, _PAUSE_MAX_S = 0.25, 2.0
_DENIED_S = 600.0
_BACKLOG, _BACKLOG_CHARS = 1_000, 500_000
"""Size of a page that shows a long backlog: such a stream is read alone, because a shared round has little room."""
_AT_ONCE = 100
"""Maximum number of streams in one request."""
_MARKS_BEFORE_S = 120
"""Seconds before the end of an attempt to search for its marks, which are its last lines."""
_MARKED_CHARS = 256 * 1024
"""Maximum characters after one kind of marks of an attempt."""
_MARKS = 3
"""Number of marks at the end: the exit on both streams, and the end."""


@dataclass(frozen=True)
class LogMarks:
    """The lines of the script that starts a program: `<mark>-begin`, `-exit:3`, `-result:...`, `-error:...`, `-end`."""

    mark: str

    def split(self, text: str) -> tuple[str, str, str] | None:
        """Return the text before the mark, its kind and its value; None if the line has no mark."""
        at = text.rfind(f"{self.mark}-")
        if at < 0:
            return None
        found = re.fullmatch(
            r"(begin|exit|result|error|end)(-large)?(?::(.*))?", text[at + len(self.mark) + 1 :], re.DOTALL
        )
        # Only an exit mark can follow an unfinished line; other lines with this text come from the program.
        if found is None or (at and found[1] != "exit"):
            return None
        return text[:at], found[1] + (found[2] or ""), found[3] or ""


class CloudWatchLogs:
    """Reads the logs of attempts; the cursor has the whole position.

    A single stream is read by GetLogEvents. If there are many, a stream without a long backlog joins the `LogFeed`, and
    stays there: the cursor is then a `LogFeed` position (it has key `i`).

    Cursor of an attempt: `s` stream, `t` token, `f` start time of the token's request, `m` time of the last event,
    `n` number of events delivered at that time, `x` number of end marks seen, `d` whether all lines were read.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._feed = LogFeed(aws)
        self._alone_until = 0.0

    @property
    def has_many(self) -> bool:
        """Whether the logs of many attempts are followed."""
        return self._feed.has_many

    def read(
        self, attempt: int, log: AttemptLog, marks: LogMarks | None, state: dict[str, Any]
    ) -> tuple[list[LogLine], dict[str, Any]]:
        """Return new lines and the state after them, with `d` if no more lines can come.

        Waits for the rest of an ended attempt, because lines reach CloudWatch some seconds late.
        """
        if state.get("s") != log.stream:
            state = {"s": log.stream}
        began = time.monotonic()
        repeated_at: float | None = None
        pause_s = _PAUSE_S
        is_shared = log.ended_at is None and self._feed.is_shared(log.group, log.stream)
        while True:
            token = state.get("t")
            lines, state = self._next(attempt, log, marks, state)
            if state.get("x") == _MARKS:
                return lines, {**state, "d": True}
            if log.ended_at is None:
                return lines, self._joined(log, state) if is_shared and not _is_backlog(lines) else state
            if lines:
                return lines, state
            if state.get("t") != token:
                continue  # an empty page with another token is not the end
            now = time.monotonic()
            repeated_at = now if repeated_at is None else repeated_at
            is_late = self._aws.now() - log.ended_at > _AFTER_END_S
            if (is_late and now - repeated_at > _QUIET_S) or now - began > _LONGEST_WAIT_S:
                return [], {**state, "d": True}
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _joined(self, log: AttemptLog, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a stream that joins the `LogFeed`; a stream without events stays alone."""
        if "i" in state or "m" not in state or time.monotonic() < self._alone_until:
            return state
        joined = {**_picked(state, "s", "m", "n", "x"), "f": state["m"], "i": []}
        self._feed.join(log.group, log.stream, _feed_position(joined))
        return joined

    def _next(
        self, attempt: int, log: AttemptLog, marks: LogMarks | None, state: dict[str, Any]
    ) -> tuple[list[LogLine], dict[str, Any]]:
        if "i" not in state:
            return self._page(attempt, log, marks, state)
        try:
            is_over = log.ended_at is not None
            events, position = self._feed.take(log.group, log.stream, _feed_position(state), is_over=is_over)
        except DeniedError as error:
            logger.warning("logs are read one by one, which takes more requests: %s", error)
            self._alone_until = time.monotonic() + _DENIED_S
            alone = _picked(state, "s", "x")
            same = sum(at == state["m"] for at, _ in state["i"]) or state.get("n", 0)
            return self._page(attempt, log, marks, {**alone, "f": state["m"], "m": state["m"], "n": same, "r": True})
        found = {**_picked(state, "s", "x"), **position}
        return self._lines(attempt, events, marks, found), found

    def _page(
        self, attempt: int, log: AttemptLog, marks: LogMarks | None, state: dict[str, Any]
    ) -> tuple[list[LogLine], dict[str, Any]]:
        """Return the lines of one page; after a token has expired, of the first page with new lines."""
        found = dict(state)
        token, start, skip = found.get("t"), found.get("f"), found["n"] if found.pop("r", False) else 0
        while True:
            # A token belongs to the start time of its request.
            where = {**({"nextToken": token} if token else {}), **({"startTime": start} if start else {})}
            try:
                page = self._aws.log_events(log.group, log.stream, **where)
            except NotFoundError:
                return [], found  # the first line creates the stream
            except BadTokenError:
                token, start, skip = None, found.get("m"), found.get("n", 0)
                found.pop("t", None)
                found["f"] = start
                continue
            events = page["events"]
            if skip:
                same = [event for event in events if event["timestamp"] == found.get("m")]
                passed = min(skip, len(same))
                skip -= passed
                events = events[passed:]
                if skip and page["events"]:
                    # Do not keep a token inside events that were already delivered.
                    token = page["nextForwardToken"]
                    continue
            found["t"] = page["nextForwardToken"]
            for event in events:
                if event["timestamp"] == found.get("m"):
                    found["n"] += 1
                else:
                    found["m"], found["n"] = event["timestamp"], 1
            return self._lines(attempt, events, marks, found), found

    def _lines(self, attempt: int, events: Any, marks: LogMarks | None, state: dict[str, Any]) -> list[LogLine]:
        lines = []
        for event in events:
            at, text = event["timestamp"], event["message"]
            parts = marks.split(text) if marks and marks.mark in text else None
            if parts is None:
                lines.append(LogLine(text + "\n", Stream.COMBINED, at / 1000, attempt))
                continue
            rest, kind, _ = parts
            if rest:
                # The program ended without a line feed before the mark.
                lines.append(LogLine(rest, Stream.COMBINED, at / 1000, attempt))
            if kind in {"exit", "end"}:
                state["x"] = state.get("x", 0) + 1
        return lines

    def documents(
        self, logs: Sequence[AttemptLog], marks: LogMarks, limit_s: float = _LONGEST_WAIT_S
    ) -> dict[str, tuple[dict[str, list[str]], bool]]:
        """Return, for each stream of ended attempts, kind of mark to texts, and whether the end mark was seen."""
        deadline = time.monotonic() + limit_s
        known: dict[str, tuple[dict[str, list[str]], bool]] = {}
        waiting = [*logs]
        while waiting:
            for at in range(0, len(waiting), _AT_ONCE):
                known |= self._marked_of_all(waiting[at : at + _AT_ONCE], marks, deadline)
            if time.monotonic() > deadline:
                break
            now = self._aws.now()
            waiting = [
                log
                for log in waiting
                if not known[log.stream][1] and not (log.ended_at and now - log.ended_at > 2 * _LONGEST_WAIT_S)
            ]
            if waiting:
                time.sleep(_PAUSE_S)
        return known

    def _marked_of_all(
        self, logs: Sequence[AttemptLog], marks: LogMarks, deadline: float
    ) -> dict[str, tuple[dict[str, list[str]], bool]]:
        if len(logs) > 1:
            with contextlib.suppress(NotFoundError, DeniedError):
                return self._filtered(logs, marks, deadline)
        return {log.stream: self._marked(log, marks, deadline) for log in logs}

    def _filtered(
        self, logs: Sequence[AttemptLog], marks: LogMarks, deadline: float
    ) -> dict[str, tuple[dict[str, list[str]], bool]]:
        """Read the marks of up to 100 streams together."""
        found: dict[str, dict[str, list[str]]] = {log.stream: {} for log in logs}
        ends = [log.ended_at for log in logs]
        start = min(end for end in ends if end) if all(ends) else None
        where: dict[str, Any] = {"startTime": int((start - _MARKS_BEFORE_S) * 1000)} if start else {}
        while True:
            page = self._aws.filter_events(logs[0].group, [*found], filterPattern=f'"{marks.mark}"', **where)
            for event in page["events"]:
                if parts := marks.split(event["message"]):
                    _add_marked(found[event["logStreamName"]], parts)
            if not page.get("nextToken") or time.monotonic() > deadline:
                return {stream: (texts, "end" in texts) for stream, texts in found.items()}
            where["nextToken"] = page["nextToken"]

    def _marked(self, log: AttemptLog, marks: LogMarks, deadline: float) -> tuple[dict[str, list[str]], bool]:
        token: str | None = None
        found: dict[str, list[str]] = {}
        start = {"startTime": int((log.ended_at - _MARKS_BEFORE_S) * 1000)} if log.ended_at else {}
        while True:
            try:
                page = self._aws.log_events(log.group, log.stream, **start, **({"nextToken": token} if token else {}))
            except NotFoundError:
                return found, False
            for event in page["events"]:
                if marks.mark in event["message"] and (parts := marks.split(event["message"])):
                    _add_marked(found, parts)
            # Stop at the deadline: the log may be very long, and polls of other apps wait meanwhile.
            if page["nextForwardToken"] == token or time.monotonic() > deadline:
                return found, "end" in found
            token = page["nextForwardToken"]


def _add_marked(found: dict[str, list[str]], parts: tuple[str, str, str]) -> None:
    """Keep the text after a mark, up to a limit, because a program may write any number of such lines."""
    _, kind, text = parts
    if sum(len(each) + 1 for each in found.get(kind, ())) + len(text) <= _MARKED_CHARS:
        found.setdefault(kind, []).append(text)


def _is_backlog(lines: list[LogLine]) -> bool:
    return len(lines) >= _BACKLOG or sum(len(line.text) for line in lines) >= _BACKLOG_CHARS


def _feed_position(state: dict[str, Any]) -> dict[str, Any]:
    return _picked(state, "m", "f", "i", "n")


def _picked(state: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: state[key] for key in keys if key in state}
