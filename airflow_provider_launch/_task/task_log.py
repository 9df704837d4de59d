"""Writes the events and lines of an app into the log of its task."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.secrets import hidden, hidden_spans, length_of_start
from airflow_provider_launch._task.tracebacks import HEAD, LastTraceback, divided, joined
from airflow_provider_launch.follow.events import (
    AttemptEnded,
    Ended,
    Event,
    LogGap,
    LogLines,
    Progress,
    Reached,
    StateChanged,
    Unfinished,
    Unreachable,
)
from airflow_provider_launch.follow.log_positions import Counts, pieces_after, pieces_in, pieces_of
from airflow_provider_launch.schedulers.api import LogLine, Stream
from airflow_provider_launch.schedulers.logs import last_refresh
from airflow_provider_launch.specs.secrets import MASK
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.strings import unfolded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_provider_launch._task.log_limit import LogLimit
    from airflow_provider_launch.schedulers.api import DescribeAppResponse

PIECE_BYTES = 32 * 1024
_TAIL_LINES = 10
_TAIL_CHARS = 500
_KEPT_TAILS = 8
_MASKED_AROUND = 4096
"""Longest secret of Airflow's masks, in characters, that is found where a text is cut."""
_CUT_UNFINISHED_BYTES = 4000
"""A longer unfinished text may have been cut; its first quarters are not shown, and one quarter is enough."""
_LONGEST_CHAIN = 20
"""Secrets that overlap one after the other, of which the first one is cut; a program may print any number."""
_STDERR = Stream.STDERR
PROGRESS_S = 30.0
"""After this many seconds without a line the current status is logged."""


_SHOWN_CODES = 8
_EARLY = ("", str(AppState.UNSUBMITTED), str(AppState.SUBMITTED), str(AppState.PENDING))
_LEVELS = {
    AppState.FAILED: logging.ERROR,
    AppState.CANCELLED: logging.WARNING,
    AppState.UNKNOWN: logging.WARNING,
}


@dataclass(slots=True)
class _Replica:
    tail: list[str]
    """The last lines of its last attempt."""
    attempt: int = 0
    """The last one that was reported."""
    pieces: Counts | None = None
    """Pieces of its next lines that another part of the task has written; None: none."""
    traceback: LastTraceback | None = None
    """Of its last attempt. None: it has written none; most replicas never do."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Replica:
        """Return the replica of which another part of the task has kept these lines."""
        traceback, tail = divided(lines)
        return cls(tail, traceback=LastTraceback(traceback) if traceback else None)

    @property
    def last_lines(self) -> list[str]:
        """Its last traceback, and its last lines."""
        return joined(self.traceback.lines if self.traceback else (), self.tail)


class TaskLog:
    """Writes `[role/k] text` per line, and one line for each change of state.

    A line that is rewritten, such as a progress bar, is shown with its last text only.

    The last state is logged after the last lines, with `Ended`, which only one part of a task gets.

    Args:
        log: the logger of the operator or sensor.
        name: name of the app in the lines about its state.
        progress: that of an earlier part of the task, whose lines are not logged again.
        on_url: takes the app's page in the scheduler's user interface and its other pages, each time they change.
        limit: limits how much of a long log is shown. None: all.
        replicas: numbers of the replicas whose lines are shown; of others only the last lines are kept. None: all.
        stderr_level: level of lines of stderr: "warning", "info", or "line".
    """

    __slots__ = (
        "_limit",
        "_line_log",
        "_linked",
        "_log",
        "_name",
        "_on_url",
        "_quiet_since",
        "_replicas",
        "_secrets",
        "_shown",
        "_stderr_level",
        "began",
        "has_gap",
        "last_line_at",
        "last_state",
        "url",
    )

    def __init__(
        self,
        log: Any,
        name: str,
        progress: FollowProgress,
        *,
        on_url: Callable[[str, Mapping[str, str]], object] | None = None,
        limit: LogLimit | None = None,
        replicas: Sequence[int] | None = None,
        stderr_level: str = "warning",
    ) -> None:
        self._log = log
        self._shown = None if replicas is None else frozenset(replicas)
        self._stderr_level = stderr_level
        self.last_line_at = time.monotonic()
        """When the last line of any replica came, by the monotonic clock."""
        self._line_log: Any = None
        self._secrets: Sequence[str] = ()
        self._limit = limit if limit and limit.max_bytes is not None else None
        self._name = name
        self.url = progress.url
        self._on_url = on_url
        self._linked: tuple[str, Mapping[str, str]] | None = None
        self._replicas = {key: _Replica.of(lines) for key, lines in progress.tails.items()}
        for key, attempt in progress.attempts.items():
            self._replicas.setdefault(key, _Replica([])).attempt = attempt
        for key, position in progress.cursors.items():
            if pieces := pieces_in(position):
                self._replicas.setdefault(key, _Replica([])).pieces = pieces
        self.last_state = progress.state
        self.has_gap = progress.has_gap
        """Whether lines may be missing in this log."""
        self.began = progress.began
        """Epoch seconds of the first state that was not PENDING, None before that."""
        self._quiet_since = time.monotonic()

    def hide(self, values: Iterable[str]) -> None:
        """Show `***` for these texts of the app from now on, in addition to the masks of Airflow.

        A triggerer follows many apps for months. If their secrets were masks of Airflow, every line of every app would
        be searched for all of them. In a worker they are both, because Airflow replaces the first one that fits: a text
        of a run that begins before a secret and ends in it, or is a part of it, would leave the rest of the secret.
        """
        self._secrets = [*values]

    def _hidden(self, text: str) -> str:
        return hidden(text, self._secrets)

    def _hidden_in_cut(self, text: str) -> str:
        return hidden(text, self._secrets, is_cut=True)

    def _is_cut(self, line: LogLine) -> bool:
        """Return whether a program may have ended in the middle of a secret."""
        return bool(self._secrets) and not line.text.endswith("\n")

    def _secret_at(self, text: str, at: int) -> tuple[int, int]:
        """Return the start and end of the secrets around an index, where text will be cut: no mask fits half of one."""
        start = stop = at
        for _ in range(_LONGEST_CHAIN):
            before = start, stop
            for border in {start, stop}:
                for begin, end in self._secrets_around(text, border):
                    if begin < border < end:
                        start, stop = min(start, begin), max(stop, end)
            if (start, stop) == before:
                break
        return start, stop

    def _start_of_cut_secret(self, text: str) -> int:
        """Return the index of the secret in which a text was cut; the length of the text if it was cut in none."""
        rest = max(length_of_start(text[-len(value) :], value) for value in self._secrets)
        return self._secret_at(text, len(text) - rest)[0]

    def _without_half(self, text: str, at: int) -> str:
        """Return the text from an index on, with `***` in place of a secret that is cut there."""
        start, stop = self._secret_at(text, at)
        return MASK + text[stop:] if start < stop else text[at:]

    def _secrets_around(self, text: str, at: int) -> Iterable[tuple[int, int]]:
        # One by one, each only where it could be cut: a search for all of them around the longest one takes a hundred
        # times longer.
        for value in self._secrets:
            around = max(0, at - len(value) + 1), at + len(value) - 1
            if (first := text.find(value, *around)) >= 0:
                yield first, text.rfind(value, *around) + len(value)
        low = max(0, at - _MASKED_AROUND)
        yield from ((low + begin, low + end) for begin, end in hidden_spans(text[low : at + _MASKED_AROUND]))

    def _masked_piece(self, parts: Pieces, number: int, *, is_cut: bool) -> str:
        """Return a piece; a secret at one of its cuts is replaced by `***`, also in the next piece.

        Args:
            parts: all pieces.
            number: number of the piece.
            is_cut: whether the end of the text is one more cut.
        """
        start, stop = shown_from, shown_to = parts.span(number)
        if number > 0:
            shown_from = min(self._secret_at(parts.text, start)[1], stop)
        if number < len(parts) - 1:
            shown_to = self._secret_at(parts.text, stop)[0]
        # Not for each piece of a long text.
        if is_cut and len(parts.text) - stop < max(map(len, self._secrets)):
            shown_to = min(shown_to, self._start_of_cut_secret(parts.text))
        if shown_to <= shown_from:
            return MASK
        before, after = MASK * (shown_from > start), MASK * (shown_to < stop)
        return f"{before}{parts.text[shown_from:shown_to]}{after}"

    def _writers(self) -> tuple[Callable[[str], object], Callable[[str], object]]:
        """Return the functions that write a line of stdout and one of stderr."""
        out, err = self._line_log.info, self._line_log.warning
        if self._stderr_level == "info":
            err = out
        elif self._stderr_level == "line":
            log = self._line_log
            err = lambda text: log.log(_level_of(text), text)  # noqa: E731 - as short as the others
        if not self._secrets:
            return out, err
        return lambda text: out(self._hidden(text)), lambda text: err(self._hidden(text))

    @property
    def tails(self) -> Mapping[str, Sequence[str]]:
        """The last traceback and lines of each replica by `role/replica`, each cut to a readable length."""
        longest, hidden = _TAIL_CHARS + len(MASK), self._hidden
        return {key: [hidden(line[:longest]) for line in replica.last_lines] for key, replica in self._replicas.items()}

    def masked_tails(self, *keys: str) -> Mapping[str, Sequence[str]]:
        """Return the last lines of these replicas, masked as in the log; without keys, of the latest writers."""
        from airflow_provider_launch._airflow import redact

        tails = self.tails
        wanted = keys or [*tails][-_KEPT_TAILS:]
        return {key: [str(redact(line)) for line in tails[key]] for key in wanted if tails.get(key)}

    @property
    def attempts(self) -> dict[str, int]:
        """The last reported attempt by `role/replica`, unless it is the first."""
        return {key: replica.attempt for key, replica in self._replicas.items() if replica.attempt}

    def progress(self, cursors: Mapping[str, Any]) -> FollowProgress:
        """Return the progress so far, without last lines and shown bytes; the logs continue at `cursors`."""
        return FollowProgress(
            cursors,
            self.last_state,
            attempts=self.attempts,
            url=self.url,
            began=self.began,
            has_gap=self.has_gap,
        )

    def write_event(self, event: Event) -> None:
        """Write the event to the log, if it has a line of its own."""
        if isinstance(event, LogLines):
            self._limited(f"{event.role}/{event.replica}", event.lines)
            metrics.count("log_lines", len(event.lines))
        elif isinstance(event, Unfinished):
            self._unfinished(event)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event)
        elif isinstance(event, StateChanged):
            self._state(event)
        elif isinstance(event, LogGap):
            self.has_gap = True
            where = f" of {event.role}/{event.replica}" if event.role is not None else ""
            self._log.warning("app %s: log%s: %s", self._name, where, self._hidden(event.message))
            metrics.count("log_gaps")
        elif isinstance(event, Unreachable):
            metrics.count("outages")
            text = self._hidden(str(event.error))
            self._log.warning("app %s: the scheduler does not answer, asking again: %s", self._name, text)
        elif isinstance(event, Reached):
            metrics.seconds("unreachable", event.after_s)
            self._log.info("app %s: the scheduler answers again after %.0f s", self._name, event.after_s)
        elif isinstance(event, Progress):
            self._progress(event.response)
        elif isinstance(event, Ended):
            self.finish()
            self._end(event.response)

    def finish(self) -> None:
        """Write the last lines of logs that were cut; may be repeated."""
        if self._limit is None:
            return
        for key, rest in self._limit.rests():
            if not self.is_hidden(key) and (rest.left_out or rest.bytes_left_out):
                self._log.warning(
                    "[%s] --- max_log_bytes=%d: %d lines, %d bytes, are not shown here ---",
                    key, self._limit.max_bytes, rest.left_out, rest.bytes_left_out,
                )  # fmt: skip
            self._lines(key, [*rest.lines])

    def report_cut(self, key: str, max_bytes: int | None) -> None:
        """Log that the remaining lines of a replica follow at the end."""
        if self.is_hidden(key):
            return
        self._log.info("[%s] --- max_log_bytes=%s: the last lines follow when the app has ended ---", key, max_bytes)

    def report_silence(self, text: str) -> None:
        """Log that the app hangs, and what is done about it."""
        self._log.error("app %s: %s", self._name, text)

    def _limited(self, key: str, lines: Sequence[LogLine]) -> None:
        limit = self._limit
        if limit is None:
            self._lines(key, lines)
            return
        first, is_cut = limit.first_lines(key, lines)
        self._lines(key, lines[:first])
        if is_cut:
            self.report_cut(key, limit.max_bytes)
        if first < len(lines):
            limit.keep(key, lines[first:], self._without_half)

    def _unfinished(self, event: Unfinished) -> None:
        key = f"{event.role}/{event.replica}"
        if (self._limit is not None and self._limit.is_full(key)) or self.is_hidden(key):
            return
        self._begin_lines(key)
        write = self._writers()[event.line.stream is _STDERR]
        text = event.line.text
        if len(text.encode("utf-8", "replace")) >= _CUT_UNFINISHED_BYTES:
            # The scheduler or the reader may have cut it in the middle of a secret.
            text = self._without_half(text, len(text) * 3 // 4)
        write(f"[{key} ...] {unfolded(self._hidden_in_cut(text))}")

    def _attempt_ended(self, event: AttemptEnded) -> None:
        key = f"{event.role}/{event.replica}"
        known = self._replicas.get(key)
        if known is not None and event.attempt < known.attempt:
            return  # an earlier part of the task has logged it
        replica = self._begin_lines(key)
        if not self.is_hidden(key):
            self._writers()[1](f"[{key}] --- attempt {event.attempt} ended: {event.ending or 'cause unknown'} ---")
        self._start_attempt(key, replica, event.attempt + 1)

    def _start_attempt(self, key: str, replica: _Replica, attempt: int) -> None:
        replica.attempt = attempt
        # Lines of an earlier attempt would look like the reason of the last failure.
        replica.tail, replica.traceback = [], None
        if not self.is_hidden(key):
            self._line_log.info(f"[{key}] --- attempt {attempt} ---")

    def is_hidden(self, key: str) -> bool:
        """Return whether the lines of `role/replica` are not shown."""
        return self._shown is not None and int(key.rpartition("/")[2]) not in self._shown

    @property
    def is_quiet(self) -> bool:
        """Whether the log was silent for long enough that `Progress` writes a line."""
        return time.monotonic() - self._quiet_since >= PROGRESS_S

    @property
    def _is_early(self) -> bool:
        """Whether nothing in the log shows yet that the app has run."""
        return self.last_state.partition(" ")[0] in _EARLY

    def _state(self, event: StateChanged) -> None:
        msg = _message(event.response)
        if not is_terminal(event.new):
            running, total = event.response.running_of()
            # A plug-in need not report the states of replicas.
            is_part = event.new == AppState.RUNNING and 0 < running < total
            self._change(event.new, msg, f"{running} of {total} running" if is_part else "")
        elif self._is_early and _has_run(event.response):
            # It ran between two polls.
            self._change(AppState.RUNNING, "")
        self._show_url(event.response.ui_url, event.response.pages)

    def _change(self, new: AppState, msg: str, running: str = "") -> None:
        """Log a change of the state.

        Args:
            new: the state.
            msg: its reason; another reason is another change.
            running: how many replicas run; another number alone does not count as a change.
        """
        msg = self._hidden(msg)
        state = f"{new} {msg}" if new == AppState.PENDING or (new == AppState.RUNNING and msg) else str(new)
        if self.began is None and str(new) not in _EARLY:
            self.began = time.time()
        if state == self.last_state:
            return
        old = self.last_state.partition(" ")[0]
        change = f"{old} -> {new}" if old and old != str(new) else str(new)
        details = ", ".join(filter(None, (running, msg)))
        level = _LEVELS.get(new, logging.INFO)
        self._log.log(level, "app %s: %s%s", self._name, change, f" ({details})" if details else "")
        self.last_state = state
        self._quiet_since = time.monotonic()

    def _end(self, response: DescribeAppResponse) -> None:
        if str(response.state) != self.last_state:
            self._change(response.state, _message(response))
            seconds = _own_seconds(response, self.began)
            took = "" if seconds is None else f" after {duration(seconds)}"
            codes = "; ".join(
                f"{role.role}: {_shortened([replica.exit_code for replica in role.replicas])}"
                for role in response.roles_statuses
            )
            attempts = 1 + max(0, response.num_restarts)
            self._log.info(
                "app %s: ended as %s%s; exit codes: %s; attempts: %d",
                self._name, response.state, took, codes or "none", attempts,
            )  # fmt: skip
        self._show_url(response.ui_url, response.pages)

    def _progress(self, response: DescribeAppResponse) -> None:
        if not self.is_quiet or is_terminal(response.state):
            return
        self._quiet_since = time.monotonic()
        running, total = response.running_of()
        took = "" if self.began is None else f", {duration(time.time() - self.began)}"
        msg = self._hidden(_message(response))
        self._log.info(
            "app %s: %s, %d of %d replicas running%s%s",
            self._name, response.state, running, total, took, f" ({msg})" if msg else "",
        )  # fmt: skip

    def _show_url(self, url: str | None, pages: Mapping[str, str]) -> None:
        # A browser on another host cannot open directories of this host (`file://`).
        if not url or not url.startswith(("http://", "https://")):
            return
        if url != self.url:
            self.url = url
            self._log.info("app %s: see %s", self._name, url)
            for what, address in pages.items():
                self._log.info("app %s: %s: %s", self._name, what, address)
        if self._on_url is not None and self._linked != (url, pages):
            # Also in the worker that resumes a deferred task, because Airflow stores its links again.
            self._linked = (url, pages)
            self._on_url(url, pages)

    def _lines(self, key: str, lines: Sequence[LogLine]) -> None:
        replica = self._begin_lines(key)
        prefix = f"[{key}] "
        of_attempt, is_hidden = 0, self.is_hidden(key)
        # Bind once: looking up a method of Airflow's logger costs as much as the rest of the work per line.
        out, err = self._writers()
        for number, line in enumerate(lines):
            if line.attempt != replica.attempt:
                self._start_attempt(key, replica, line.attempt)
                of_attempt = number
            if is_hidden:
                continue
            text = line.text
            text = text.removesuffix("\n") if "\r" not in text else last_refresh(text)
            write = err if line.stream is _STDERR else out
            is_cut = self._is_cut(line)
            # A character has at most four bytes, so most lines need no exact check.
            if len(text) * 4 > PIECE_BYTES:
                self._long(_label(key, line), text, write, pieces_of(line, replica.pieces or {}), is_cut=is_cut)
            elif is_cut:
                write(f"[{_label(key, line)}] {unfolded(self._hidden_in_cut(text))}")
            elif line.container:
                write(f"[{_label(key, line)}] {unfolded(text)}")
            else:
                write(prefix + text if "group::" not in text else prefix + unfolded(text))
            if replica.pieces:
                replica.pieces = pieces_after([line], replica.pieces)
        self._keep_tail(replica, lines[of_attempt:] if of_attempt else lines)

    def write_piece(self, key: str, line: LogLine, parts: Pieces, number: int) -> None:
        """Write one of the pieces of a long line; the last one ends the line.

        Args:
            key: `role/replica`.
            line: the whole line.
            parts: all its pieces.
            number: number of the piece, from 0.
        """
        replica = self._begin_lines(key)
        if line.attempt != replica.attempt:
            self._start_attempt(key, replica, line.attempt)
        if not self.is_hidden(key):
            self._write_piece(key, line, parts, number)
        if replica.pieces:
            replica.pieces = pieces_after([line], replica.pieces)
        if number == len(parts) - 1:
            self._keep_tail(replica, [line])
            metrics.count("log_lines", 1)

    def _write_piece(self, key: str, line: LogLine, parts: Pieces, number: int) -> None:
        write = self._writers()[line.stream is _STDERR]
        label = _label(key, line)
        head = f"[{label} {number + 1}/{len(parts)}]" if len(parts) > 1 else f"[{label}]"
        write(f"{head} {unfolded(self._masked_piece(parts, number, is_cut=self._is_cut(line)))}")

    def _begin_lines(self, key: str) -> _Replica:
        # Keep the latest writer last.
        replica = self._replicas[key] = self._replicas.pop(key) if key in self._replicas else _Replica([])
        if self._is_early:
            # Before the state arrives: a replica that writes lines is running.
            self._change(AppState.RUNNING, "")
        self._quiet_since = self.last_line_at = time.monotonic()
        if self._line_log is None:
            # Only now: in a triggerer most of a thousand apps write nothing for a long time.
            self._line_log = line_logger(self._log)
        return replica

    def _keep_tail(self, replica: _Replica, lines: Sequence[LogLine]) -> None:
        # A list, because a deque of ten items takes as much memory as one of sixty.
        replica.tail += [self._start_of(last_refresh(line.text).rstrip("\r\n"), line) for line in lines[-_TAIL_LINES:]]
        del replica.tail[:-_TAIL_LINES]
        for line in lines:
            if replica.traceback is not None or HEAD in line.text:
                replica.traceback = replica.traceback or LastTraceback()
                replica.traceback.add(line.text, partial(self._start_of, line=line))

    def _start_of(self, text: str, line: LogLine) -> str:
        if len(text) <= _TAIL_CHARS:
            return self._hidden_in_cut(text) if self._is_cut(line) else text
        start, stop = self._secret_at(text, _TAIL_CHARS)
        if self._is_cut(line):
            start = min(start, self._start_of_cut_secret(text))
        return text[:start] + MASK if start < stop else text[:_TAIL_CHARS]

    def _long(self, key: str, text: str, write: Callable[[str], object], first: int, *, is_cut: bool) -> None:
        parts = Pieces(text)
        if len(parts) == 1:
            write(f"[{key}] {unfolded(self._hidden_in_cut(text) if is_cut else text)}")
            return
        for number in range(first, len(parts)):
            write(f"[{key} {number + 1}/{len(parts)}] {unfolded(self._masked_piece(parts, number, is_cut=is_cut))}")


_LEVEL = re.compile(
    r"\b(?:(CRITICAL|FATAL|ERROR|Traceback)|(WARN(?:ING)?)|(?:INFO|NOTICE|DEBUG|TRACE))\b|^([IWEF])\d{4} "
)
_LEVEL_WITHIN = 120
_OF_LETTER = {"W": logging.WARNING, "E": logging.ERROR, "F": logging.ERROR}


def _level_of(text: str) -> int:
    """Return the level that a line names near its start, after the name of its replica; INFO if it names none."""
    found = _LEVEL.search(text.partition("] ")[2][:_LEVEL_WITHIN])
    if found is None:
        return logging.INFO
    error, warning, letter = found.groups()
    return logging.ERROR if error else logging.WARNING if warning else _OF_LETTER.get(letter, logging.INFO)


def _label(key: str, line: LogLine) -> str:
    """Return the writer of a line: the replica, or a sidecar container of it."""
    return f"{key} {line.container}" if line.container else key


class Pieces:
    """A text in pieces of at most 32 KB of UTF-8; the cuts depend on the text only.

    A piece is copied when it is read, so that a text of 16 MB is written in small steps.
    """

    __slots__ = ("_ends", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        """The whole text."""
        self._ends = [*_ends(text)] or [0]

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> str:
        start, stop = self.span(number)
        return self.text[start:stop]

    def span(self, number: int) -> tuple[int, int]:
        """Return the indexes in the text where a piece starts and ends."""
        return self._ends[number - 1] if number else 0, self._ends[number]


def _ends(text: str) -> Iterator[int]:
    """Yield the indexes where the pieces of a text end."""
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    start = at = 0
    while start < len(data):
        end = min(start + PIECE_BYTES, len(data))
        # Step back to the first byte of a character.
        while end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - how UTF-8 marks a following byte
            end -= 1
        at += len(str(data[start:end], "utf-8", "surrogatepass"))
        yield at
        start = end


def duration(seconds: float) -> str:
    """Return a readable duration: `5 s`, `2 min 5 s`, `3 h 0 min`."""
    whole = max(0, round(seconds))
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004 - minutes of an hour


def _own_seconds(response: DescribeAppResponse, began: float | None) -> float | None:
    """Return how long the app has run, by the clock of its engine; by that of this task if the engine has no times.

    Args:
        response: its end; of an app that was started again it has only the times of the last attempt.
        began: when this task has seen it run first.
    """
    replicas = [replica for role in response.roles_statuses for replica in role.replicas]
    starts = [replica.start_time for replica in replicas if replica.start_time is not None]
    ends = [replica.end_time for replica in replicas if replica.end_time is not None]
    seen = None if began is None else time.time() - began
    if not starts or not ends:
        return seen
    own = max(0.0, max(ends) - min(starts))
    return max(own, seen or 0.0) if response.num_restarts > 0 else own


def _message(response: DescribeAppResponse) -> str:
    return response.msg if response.msg not in ("", NONE) else ""


def _has_run(response: DescribeAppResponse) -> bool:
    """Return whether the app has succeeded or a replica has an exit code, so that it must have run."""
    codes = [replica.exit_code for role in response.roles_statuses for replica in role.replicas]
    return response.state == AppState.SUCCEEDED or any(code is not None for code in codes)


def _shortened(codes: Sequence[int | None]) -> str:
    """Return exit codes by replica: `0`, `0, 1, 0`, `64 x 0`, `62 x 0, 2 x 1`."""
    if len(codes) <= _SHOWN_CODES and len({*codes}) > 1:
        return ", ".join(map(str, codes))
    counts = {code: codes.count(code) for code in dict.fromkeys(codes)}
    return ", ".join(f"{count} x {code}" if count > 1 else str(code) for code, count in counts.items()) or "none"


_TOKEN = "eyJ"  # noqa: S105 - the first letters of each JSON web token
_PATTERN = "JWT_PATTERN"


def line_logger(log: Any) -> Any:
    """Return a faster logger with the same destination, name, level and context.

    Airflow's logger checks each record for an exception, a stack, the line of code that wrote it, and for web tokens in
    all values. Lines of an app need only the last check, and only in their text; the checks cost as much as the rest of
    the record. All other processors of the deployment stay, such as time and masking.

    Args:
        log: logger of an operator, sensor or trigger; returned unchanged if it is not from structlog.
    """
    try:
        import structlog
        from structlog.processors import (
            CallsiteParameterAdder,
            ExceptionRenderer,
            StackInfoRenderer,
            UnicodeDecoder,
        )

        bound = log.bind()
        context, name = structlog.get_context(bound), bound.name
    except (ImportError, AttributeError, ValueError):
        return log
    needless = (CallsiteParameterAdder, ExceptionRenderer, StackInfoRenderer, UnicodeDecoder)
    processors = [
        _where_a_token_is(each) if _only_redacts_tokens(each) else each
        for each in structlog.get_config()["processors"]
        if not isinstance(each, needless)
    ]
    return structlog.wrap_logger(None, processors, logger_factory_args=(name,), **context).bind()


def _only_redacts_tokens(processor: Any) -> bool:
    """Return whether the processor is Airflow's, with the expected pattern."""
    module = sys.modules.get(getattr(processor, "__module__", ""))
    pattern = getattr(getattr(module, _PATTERN, None), "pattern", "")
    return getattr(processor, "__name__", "") == "redact_jwt" and str(pattern).startswith(_TOKEN)


def _where_a_token_is(redact: Any) -> Any:
    def redact_line(logger: Any, method: str, record: Any) -> Any:
        return redact(logger, method, record) if _TOKEN in record["event"] else record

    return redact_line
