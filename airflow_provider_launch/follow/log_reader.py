"""Reading the logs of all replicas of one app, independently of its status.

A running replica is read by a stream if the scheduler has streams and the process may open another one: an open stream
needs no requests. Otherwise the reader polls its log with `read_logs`, one replica after the other. After each end of a
stream a plain read continues at the position after the last line, so a stream may end at any time without losing a
line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.events import AttemptEnded, LogGap, LogLines, Unfinished
from airflow_provider_launch.follow.host_gate import gate_of
from airflow_provider_launch.follow.line_order import in_order
from airflow_provider_launch.follow.log_positions import (
    LogItem,
    LogQueue,
    ReplicaLog,
    count_lines,
    cursor_in,
    divide,
    position_after,
    replica_key,
)
from airflow_provider_launch.follow.replicas import Phase, Standing
from airflow_provider_launch.follow.stream_loop import stream_loop
from airflow_provider_launch.schedulers.api import Scheduler, has_own
from airflow_provider_launch.schedulers.log_streams import LogStream, StreamEnd
from airflow_provider_launch.schedulers.logs import LINE_BYTES, LogChunk, cut_lines, last_refresh
from airflow_provider_launch.specs.errors import (
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
    is_outage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_launch.schedulers.api import JsonValue, LogLine, Stream

log = logging.getLogger(__name__)

_BUSY_S = 0.1
_IDLE_S, _SILENT_IDLE_S = 1.0, 30.0
_NEAR_S = 0.5
"""A scheduler with a shorter poll interval is on the same host or network, so its logs may be read often, too."""
_BEHIND_LINES = 200
"""After a read of this many lines read again instead of opening a stream, which would start far before the end."""
_AFTER_END_S = 2.0
"""Seconds to wait after the end of a stream for the new state of its replica, and after the end of an app for the end
of its streams."""
_CUT_S, _CUT_MAX_S, _STEADY_S = 0.1, 30.0, 60.0
"""First and longest pause before a stream is opened again after a cut. A stream that was open for `_STEADY_S` resets
the pause."""
_NO_STREAM_S, _NO_STREAM_MAX_S, _REFUSED_S = 1.0, 30.0, 600.0
"""First and longest pause if the scheduler has no stream for a replica now, and the pause after a refused stream."""
_NEVER = float("inf")
_RETRY_MAX_S = 5.0
_REFUSALS_AT_END = 3
"""After the end of the app: stop after this many refused reads, because a missing permission does not fix itself."""
_GAPS_PER_REPLICA = 5
_SKIP_MAX_S = 30.0
_UNFINISHED_S = 1.0
"""Age at which a line without an end is shown; most lines end sooner."""
_UNFINISHED_CHARS = 4096
"""Only this many characters at its end are shown; they are repeated with the whole line."""
_REFRESH_S, _REFRESH_MAX_S = 2.0, 30.0
"""Seconds between two reports of a progress bar, at first and later."""
_REPORTED_ATTEMPTS = 10
_FIRST_READS_S = 0.5
"""Seconds for which the first lines are kept while the logs of other replicas are read for the first time."""


def _close(streams: Iterable[LogStream]) -> None:
    for stream in streams:
        stream_loop().close(stream)


class LogReader:
    """Reads the replicas one after the other into a bounded queue, on its own thread or when the caller calls `step`.

    `changed` is the condition on which the consumer waits; it guards all state here. Reading pauses while the queue is
    full, so memory does not grow with the log.
    """

    __slots__ = (
        "_app_id",
        "_busy_s",
        "_changed",
        "_cursors",
        "_finishing",
        "_from_now",
        "_gate",
        "_idle_s",
        "_is_unordered",
        "_outage_reported",
        "_own_thread",
        "_paused",
        "_queue",
        "_replicas",
        "_scheduler",
        "_shows_unfinished",
        "_started",
        "_started_at",
        "_stopped",
        "_streamed",
        "_streams",
        "_thread",
        "can_stream",
        "on_items",
        "on_program_end",
        "progress_at",
    )

    def __init__(
        self,
        scheduler: Scheduler[Any],
        app_id: str,
        changed: threading.Condition,
        *,
        cursors: Mapping[str, JsonValue],
        streams: Stream | None,
        from_now: bool,
        own_thread: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._changed = changed
        self._cursors = cursors
        self._streams = streams
        self._from_now = from_now
        self._own_thread = own_thread
        self.can_stream = has_own(scheduler, "stream_log")
        self._gate = gate_of(scheduler).of_app()
        self._shows_unfinished = has_own(scheduler, "unfinished_line")
        self.on_items: Callable[[], object] = lambda: None
        """Called when a stream has new lines or has ended, on another thread."""
        self.on_program_end: Callable[[], object] = lambda: None
        """Called when a stream reports that a program has ended, on another thread."""
        # A scheduler that is polled every 10 s should not get log requests every 0.1 s.
        self._busy_s = min(max(_BUSY_S, scheduler.poll_interval_s / 5), 2.0)
        self._idle_s = _IDLE_S if scheduler.poll_interval_s < _NEAR_S else _SILENT_IDLE_S
        self._replicas: dict[str, ReplicaLog] = {}
        self._streamed: dict[LogStream, ReplicaLog] = {}
        self._paused: list[LogStream] = []
        self._queue = LogQueue()
        self._is_unordered = False
        """Whether the queue has first lines of a replica that are not in order with those of others."""
        self._outage_reported = False
        self._started_at = time.time()
        self._started = self.progress_at = time.monotonic()
        self._finishing = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    # ---- called by the consumer's thread ---------------------------------------------------------------------

    def update_replicas(
        self, replicas: Mapping[tuple[str, int], Standing] | Iterable[tuple[str, int]], *, existing: bool
    ) -> bool:
        """Add replicas or update their phase, and return whether a read is due now.

        Args:
            replicas: role and number, and the phase of each; without phases they count as running.
            existing: they may have written lines before the follower started.
        """
        if not isinstance(replicas, Mapping):
            replicas = dict.fromkeys(replicas, Standing(Phase.RUNNING))
        with self._changed:
            if self._stopped:
                return False
            changed = [self._update(role, k, at, existing=existing) for (role, k), at in replicas.items()]
            if self._replicas and self._thread is None and self._own_thread:
                name = f"launch-logs-{self._scheduler.backend}-{self._app_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            if not any(changed):
                return False
            self._changed.notify_all()
            return True

    def _update(self, role: str, k: int, standing: Standing, *, existing: bool) -> bool:
        key = replica_key(role, k)
        replica = self._replicas.get(key)
        if replica is None:
            cursor, reported = cursor_in(self._cursors.get(key))
            skipping = self._from_now and existing and cursor is None and not reported
            self._replicas[key] = ReplicaLog(role, k, cursor, skipping, *standing, reported)
            return standing.phase is not Phase.WAITING
        if (replica.phase, replica.attempt) == standing or self._finishing:
            return False
        if replica.phase is Phase.WAITING and not existing:
            replica.skipping = False  # it started while it was followed, so none of its lines are old
        replica.phase, replica.attempt = standing
        replica.no_stream_until = 0.0
        now = time.monotonic()
        if replica.stream is not None:
            # The stream ends soon after the program and delivers the lines until then.
            replica.due = now + _AFTER_END_S if replica.phase is Phase.ENDED else _NEVER
        elif not replica.failures:
            replica.quiet_since = replica.due = now
        return True

    def read_now(self) -> None:
        """Read all replicas now, because the state of the app changed."""
        with self._changed:
            now = time.monotonic()
            for replica in self._replicas.values():
                replica.quiet_since = now
                if not replica.failures and replica.stream is None:
                    replica.due = now
            self._changed.notify_all()

    def finish(self) -> None:
        """Mark the app as ended. A log is complete when a read that starts after this call returns no lines."""
        with self._changed:
            self._finishing = True
            self.progress_at = time.monotonic()
            for replica in self._replicas.values():
                replica.phase = Phase.ENDED
                # Access that was refused may have been renewed, because the state could be read.
                replica.failures = 0
                # The stream ends soon after the program and delivers the lines until then.
                replica.due = 0.0 if replica.stream is None else self.progress_at + _AFTER_END_S
            self._changed.notify_all()

    def is_streaming(self) -> bool:
        """Whether each running replica is read by a stream, which reports its end at once."""
        with self._changed:
            running = [replica for replica in self._replicas.values() if replica.phase is Phase.RUNNING]
            return bool(running) and all(replica.stream is not None for replica in running)

    def pop(self) -> LogItem | None:
        """Return the next item, None if there is none now.

        The first lines of all replicas are in order of time, because a short app has ended before its first line is
        read.
        """
        with self._changed:
            if self._keeps_first_lines():
                return None
            if self._is_unordered:
                self._is_unordered = False
                self._queue.reorder(in_order(self._queue.items))
            if (item := self._queue.take()) is not None:
                self.progress_at = time.monotonic()
            return item

    def release(self, item: LogItem) -> None:
        """Make room for the next item, because this one was shown."""
        resumed: list[LogStream] = []
        with self._changed:
            was_full = self._queue.is_full
            self._queue.release(item)
            if was_full:
                self._changed.notify_all()
            if self._paused and self._queue.has_room_for_streams:
                resumed, self._paused = self._paused, []
            streamed, item.is_streamed = item.is_streamed, False
        if streamed:
            stream_loop().add_buffered(-item.size)
        for stream in resumed:
            stream_loop().resume(stream)

    def buffered_bytes(self) -> int:
        """Return the approximate memory of lines read and not yet shown."""
        return self._queue.bytes

    def __bool__(self) -> bool:
        with self._changed:
            return bool(self._queue) and not self._keeps_first_lines()

    def _keeps_first_lines(self) -> bool:
        """Whether the queued lines wait for the first lines of other replicas, so that they can be ordered."""
        if not self._is_unordered or self._stopped or self._queue.is_full:
            return False
        since = time.monotonic() - _FIRST_READS_S
        return self._queue.since > since and any(
            not replica.was_read and (replica.stream is None or replica.streamed_at > since)
            for replica in self._waiting()
        )

    def is_skipping(self) -> bool:
        """Whether a replica is still skipping lines from before the start, and its last read returned some."""
        with self._changed:
            return any(r.skipping and r.due == r.quiet_since for r in self._waiting())

    def incomplete(self) -> list[tuple[str, int, str]]:
        """Return role, replica and last error of each replica whose log may have more lines."""
        with self._changed:
            return [(r.role, r.k, r.last_error) for r in self._replicas.values() if not r.complete]

    def done(self) -> bool:
        """Return whether everything was read and handed out."""
        with self._changed:
            return not self._queue and all(replica.complete for replica in self._replicas.values())

    def stop_replica(self, key: str) -> None:
        """Stop reading this replica."""
        with self._changed:
            replica = self._replicas.get(key)
            if replica is None:
                return
            replica.complete = True
            dropped = self._detach([replica])
            self._changed.notify_all()
        _close(dropped)

    def stop(self) -> None:
        """End the thread after its current read; queued items can still be popped."""
        with self._changed:
            self._stopped = True
            dropped = self._detach(self._replicas.values())
            buffered = self._queue.unmark_streamed()
            self._changed.notify_all()
        if buffered:
            stream_loop().add_buffered(-buffered)
        _close(dropped)

    def _detach(self, replicas: Iterable[ReplicaLog]) -> list[LogStream]:
        """Detach the streams of these replicas and return them. The caller closes them after releasing the lock."""
        streams = []
        for replica in replicas:
            if replica.stream is not None:
                self._streamed.pop(replica.stream, None)
                streams.append(replica.stream)
                replica.stream = None
        return streams

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which may hang in a read."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # ---- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (picked := self._next()) is not None:
            self._read(*picked)

    def _read(self, replica: ReplicaLog, finishing: bool) -> None:
        if replica.stream is not None:
            with self._changed:
                dropped = self._detach([replica])
            _close(dropped)
        if (wait_s := self._gate.wait_s()) > 0:
            with self._changed:
                replica.due = time.monotonic() + wait_s
            return
        if not finishing and self._may_stream(replica) and self._open_stream(replica):
            self._gate.report(is_reached=True)
            return
        # Before the read: lines that it does not return yet belong to this attempt or a later one.
        attempt = replica.attempt
        try:
            chunk = self._scheduler.read_logs(
                self._app_id, replica.role, replica.k, replica.cursor, streams=self._streams
            )
            self._gate.report(is_reached=True)
            # Cut before lines are counted, because positions between cursors count the cut pieces.
            chunk = LogChunk(cut_lines(chunk.lines), chunk.cursor)
            self._report_attempts(replica, chunk.lines[-1].attempt if chunk.lines else attempt)
            if not chunk.lines and not finishing:
                self._show_unfinished(replica, chunk.cursor)
            self._store_chunk(replica, chunk, finishing=finishing)
        except Exception as error:  # noqa: BLE001 - the log path never changes the outcome, whatever a plug-in answers
            self._gate.report(is_reached=not is_outage(error))
            self._failed(replica, error, finishing=finishing)

    def _report_attempts(self, replica: ReplicaLog, attempt: int) -> None:
        """Queue the endings of the attempts before this one."""
        for ended in range(max(replica.reported_attempt, attempt - _REPORTED_ATTEMPTS), attempt):
            ending = ""
            with suppress(Exception):  # the lines that follow matter more
                ending = self._scheduler.attempt_ending(self._app_id, replica.role, replica.k, ended)
            self._put(AttemptEnded(replica.role, replica.k, ended, ending))
        replica.reported_attempt = max(replica.reported_attempt, attempt)

    def _show_unfinished(self, replica: ReplicaLog, cursor: JsonValue) -> None:
        """Queue the newest text of a line that has not ended, if it changed and is due."""
        now = time.monotonic()
        is_due = now - replica.quiet_since >= _UNFINISHED_S and now >= replica.unfinished_at
        if not (self._shows_unfinished and is_due and replica.phase is Phase.RUNNING) or replica.skipping:
            return
        line = None
        with suppress(Exception):  # the read that follows raises the error
            line = self._scheduler.unfinished_line(self._app_id, replica.role, replica.k, cursor, streams=self._streams)
        text = last_refresh(line.text)[-_UNFINISHED_CHARS:] if line is not None else ""
        if line is None or text in {"", replica.unfinished}:
            return
        replica.unfinished = text
        replica.unfinished_at = now + min(_REFRESH_S * 2**replica.refreshes, _REFRESH_MAX_S)
        replica.refreshes = min(replica.refreshes + 1, 10)
        self._put(Unfinished(replica.role, replica.k, line._replace(text=text)))

    def _put(self, event: AttemptEnded | Unfinished) -> None:
        with self._changed:
            self._queue.put(LogItem(event))
            self._changed.notify_all()

    def _waiting(self) -> list[ReplicaLog]:
        return [replica for replica in self._replicas.values() if replica.is_waiting]

    def due_in(self) -> float | None:
        """Return seconds until the next read is due; None if no read is due before a change."""
        with self._changed:
            waiting = [replica.due for replica in self._waiting()]
            if self._keeps_first_lines():
                waiting.append(self._queue.since + _FIRST_READS_S)
            if self._stopped or self._queue.is_full or not waiting or (due := min(waiting)) == _NEVER:
                return None
            return due - time.monotonic()

    def step(self) -> None:
        """Read the replica that is due first. Call it from one thread at a time."""
        with self._changed:
            waiting = self._waiting()
            if self._stopped or not waiting:
                return
            replica = min(waiting, key=lambda item: item.due)
            if replica.due == _NEVER or (self._queue and replica.due > time.monotonic()):
                return
            picked = replica, self._finishing
        self._read(*picked)

    def _next(self) -> tuple[ReplicaLog, bool] | None:
        """Wait until the queue has room and a replica is due, and return the replica; None after `stop`."""
        with self._changed:
            while not self._stopped:
                waiting = self._waiting()
                replica = min(waiting, key=lambda item: item.due, default=None)
                if self._queue.is_full or replica is None or replica.due == _NEVER:
                    if not waiting and self._finishing:
                        return None
                    self._changed.wait()
                    continue
                left = replica.due - time.monotonic()
                if left <= 0:
                    return replica, self._finishing
                self._changed.wait(left)
            return None

    # ---- streams -----------------------------------------------------------------------------------------------------

    def _may_stream(self, replica: ReplicaLog) -> bool:
        is_behind, replica.is_behind = replica.is_behind, False
        wanted = self.can_stream and replica.phase is Phase.RUNNING and not (is_behind or replica.skipping)
        return wanted and time.monotonic() >= replica.no_stream_until and stream_loop().reserve()

    def _open_stream(self, replica: ReplicaLog) -> bool:
        """Open a stream in the reserved slot; False if there is none now, so that a plain read must follow."""
        engine = stream_loop()
        stream, is_added = None, False
        try:
            stream = self._scheduler.stream_log(
                self._app_id, replica.role, replica.k, replica.cursor, streams=self._streams
            )
            if stream is not None and self._attach(replica, stream):
                # Before it is added, because later a request would delay the stream thread and all other streams.
                self._report_attempts(replica, stream.attempt)
                with self._changed:
                    is_added = stream in self._streamed  # `stop` or `stop_replica` may have been called meanwhile
                if is_added:
                    engine.add(stream, self)  # from now on the slot belongs to the stream
                    return True
            is_refused = stream is None
        except Exception:  # noqa: BLE001 - the read that follows raises the error, and a plug-in may return anything
            is_refused = True
        finally:
            if not is_added:
                engine.release()
        with self._changed:
            dropped = self._detach([replica])
            if is_refused:
                pause_s = min(_NO_STREAM_S * 2**replica.cuts, _NO_STREAM_MAX_S)
                replica.no_stream_until = time.monotonic() + pause_s
                replica.cuts = min(replica.cuts + 1, 10)
        _close(dropped)
        if stream is not None:
            with suppress(Exception):
                stream.close()
        return False

    def _attach(self, replica: ReplicaLog, stream: LogStream) -> bool:
        """Make it the stream of the replica; False if its log is no longer read."""
        with self._changed:
            if self._stopped or replica.complete:
                return False
            self._streamed[stream] = replica
            replica.stream, replica.streamed_at, replica.due = stream, time.monotonic(), _NEVER
            replica.failures, replica.last_error = 0, ""
            if self._finishing:
                replica.due = replica.streamed_at + _AFTER_END_S
            return True

    def on_lines(self, stream: LogStream, lines: list[LogLine]) -> bool:
        """Take lines of a stream, on the stream thread; return False if the stream must pause."""
        lines = cut_lines(lines)
        with self._changed:
            replica = self._streamed.get(stream)
            if replica is None:
                return True  # the stream is being closed
            start, replica.cursor = replica.cursor, stream.cursor
            replica.cuts = 0
            self.progress_at = replica.quiet_since = time.monotonic()
            old, new, replica.drop = divide(lines, replica.drop)
            size = self._push(replica, new, start, old, is_streamed=True)
            is_full = self._queue.is_full_for_streams
            if is_full:
                self._paused.append(stream)
        stream_loop().add_buffered(size)
        self.on_items()
        return not is_full

    def on_end(self, stream: LogStream, *, silent: bool) -> None:
        """Continue with a plain read; called on the stream thread."""
        with self._changed:
            replica = self._streamed.pop(stream, None)
            if replica is None:
                return
            now = time.monotonic()
            replica.stream = None
            replica.due = now
            replica.cuts = 0 if now - replica.streamed_at > _STEADY_S else min(replica.cuts + 1, 10)
            if silent:
                replica.unreliable_host = stream.host
            elif stream.end is StreamEnd.ENDED:
                # The state is updated a little later, and shows whether another attempt follows.
                replica.due = now if self._finishing else now + _AFTER_END_S
            elif stream.end is StreamEnd.REFUSED:
                replica.no_stream_until = now + _REFUSED_S
            elif not self._finishing:
                pause_s = min(_CUT_S * 2**replica.cuts, _CUT_MAX_S)
                replica.no_stream_until = now + pause_s
                replica.due = now if stream.end is StreamEnd.LOST else now + pause_s
            self._changed.notify_all()
        if stream.end is StreamEnd.REFUSED:
            log.warning(
                "cannot stream logs from %s, polling them for the next %.0f minutes: %s",
                stream.host, _REFUSED_S / 60, stream.refusal,
            )  # fmt: skip
        if stream.end is StreamEnd.ENDED:
            self.on_program_end()
        self.on_items()

    def _store_chunk(self, replica: ReplicaLog, chunk: LogChunk, *, finishing: bool) -> None:
        now = time.monotonic()
        with self._changed:
            replica.failures = 0
            replica.last_error = ""
            self._outage_reported = False
            start = replica.cursor
            moved = chunk.cursor != start
            if moved:
                # Only if it moved, so that equal cursors share one object.
                replica.cursor = chunk.cursor
            old, lines, replica.drop = divide(chunk.lines, replica.drop)
            if replica.skipping:
                old, lines = self._skip(replica, lines, now)
            if chunk.lines:
                replica.unfinished, replica.refreshes = "", 0
                replica.quiet_since = replica.due = now
                replica.is_behind = len(chunk.lines) >= _BEHIND_LINES
                self.progress_at = now
                if replica.unreliable_host:
                    stream_loop().mark_unreliable(replica.unreliable_host)
            elif finishing:
                replica.complete = True
                self.progress_at = now
            elif self._finishing:
                replica.due = now  # the app ended during this read, so it may have missed the last lines
            elif replica.phase is Phase.ENDED:
                replica.due = _NEVER  # until another attempt starts or the app ends
            else:
                quiet = now - replica.quiet_since
                replica.due = now + min(max(self._busy_s, quiet / 10), self._idle_s)
            replica.unreliable_host = ""
            if not lines:
                replica.was_read = True
            if lines or moved or replica.complete:
                self._push(replica, lines, start, old)

    def _skip(self, replica: ReplicaLog, lines: list[LogLine], now: float) -> tuple[list[LogLine], list[LogLine]]:
        """Return the lines that are older than the follower, and the others.

        Stop after 30 s: without times of lines, a steady writer would never be shown.
        """
        if not lines or now - self._started > _SKIP_MAX_S:
            replica.skipping = False
            return [], lines
        for number, line in enumerate(lines):
            if line.time is not None and line.time >= self._started_at:
                replica.skipping = False
                return lines[:number], lines[number:]
        return lines, []

    def _push(
        self,
        replica: ReplicaLog,
        lines: list[LogLine],
        start: JsonValue,
        old: list[LogLine],
        *,
        is_streamed: bool = False,
    ) -> int:
        event = LogLines(replica.role, replica.k, lines) if lines else None
        if not replica.was_read and lines and all(line.time is not None for line in lines):
            self._is_unordered = True
        replica.was_read = True
        size = sum(len(line.text) for line in lines) + LINE_BYTES * len(lines)
        end = position_after(replica.cursor, replica.drop)
        key = replica_key(replica.role, replica.k)
        # Lines of one writer may come before those of another that are still to be dropped.
        start_skip = count_lines(old, replica.drop)
        self._queue.put(LogItem(event, key, end, size, is_streamed, start, start_skip))
        self._changed.notify_all()
        return size

    def _failed(self, replica: ReplicaLog, error: Exception, *, finishing: bool) -> None:
        with self._changed:
            replica.failures += 1
            replica.was_read = True
            replica.last_error = f"{type(error).__name__}: {error}"
            replica.due = time.monotonic() + min(self._busy_s * 2 ** min(replica.failures, 10), _RETRY_MAX_S)
            lasting = isinstance(error, (UnknownAppException, ValueError)) and finishing
            refused = isinstance(error, SchedulerRejectedError) and finishing and replica.failures >= _REFUSALS_AT_END
            if lasting or refused or isinstance(error, NotImplementedError):
                replica.complete = True
                self.progress_at = time.monotonic()
                action = "giving up, so lines may be missing"
            else:
                action = "retrying"
            self._report_error(replica, error, action)
            self._changed.notify_all()

    def _report_error(self, replica: ReplicaLog, error: Exception, action: str) -> None:
        if isinstance(error, SchedulerUnavailableError):
            # An outage concerns all replicas and is reported once.
            if not self._outage_reported:
                self._outage_reported = True
                self._queue.put(LogItem(LogGap(None, None, f"cannot read logs, {action}: {error}")))
            return
        message = f"cannot read the log, {action}: {replica.last_error}"
        if message not in replica.reported and len(replica.reported) < _GAPS_PER_REPLICA:
            replica.reported += (message,)
            self._queue.put(LogItem(LogGap(replica.role, replica.k, message)))
