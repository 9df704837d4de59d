"""Following one app: the loop of operators, sensors and `Runner.wait`.

A trigger uses the same parts (`Poller`, `StateTracker`, `LogReader`) without this loop: in a triggerer one poller and
one `LogPump` serve a thousand apps. A loop for each app would need two thousand threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.events import Ended, Event, LogGap, StateChanged, Tick, gap_of_unknown_roles
from airflow_provider_launch.follow.log_positions import LogItem
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.follow.replicas import Standing, standings_of, waiting
from airflow_provider_launch.follow.state_tracker import StateTracker, StateUpdate
from airflow_provider_launch.schedulers.api import has_own
from airflow_provider_launch.schedulers.responses import Answer
from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, Scheduler, Stream
    from airflow_provider_launch.specs.roles import Role


_WAIT_S = 10.0
"""Maximum seconds of one call of `await_end`; the thread may outlive its follower by this time."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.01, 1.0


class EndWaiter:
    """A thread that waits with `Scheduler.await_end`, and polls the app when a replica has ended."""

    __slots__ = ("_answered", "_app_id", "_poller", "_scheduler", "_stopped")

    def __init__(self, scheduler: Scheduler[Any], app_id: str, poller: Poller) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._poller = poller
        self._answered = threading.Event()
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        name = f"launch-end-{self._scheduler.backend}-{self._app_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def on_answer(self) -> None:
        """Called when the poller has an answer about the app."""
        self._answered.set()

    def stop(self) -> None:
        """End the thread after its current wait; may be repeated."""
        self._stopped = True
        self._answered.set()

    def _run(self) -> None:
        pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while not self._stopped:
            started_at = time.monotonic()
            try:
                ended = self._scheduler.await_end(self._app_id, _WAIT_S)
            except NotImplementedError:
                return
            except Exception:  # noqa: BLE001 - the poller gets the same error and reports it
                ended = False
            waited = time.monotonic() - started_at
            if ended and not self._stopped:
                self._answered.clear()
                self._poller.poll_now(self._app_id)
                self._answered.wait(_WAIT_S)
            # Pause if calls return at once, as after many ends in a row, with an outdated list, or after a refusal.
            if waited >= _MAX_PAUSE_S:
                pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
            if not self._stopped:
                time.sleep(next(pauses))


TICK_S = 0.2
_CLOSE_S = 0.5
_GAPS_AT_END = 5


class Follower:
    """Reports the events of one app, from its first state to `Ended`.

    Two helper threads read status and logs, so that a hanging request or a failing log source delays neither the
    next `Tick` nor the report of the end.

    A loop over the follower that was left with `break` continues where it stopped when it is entered again. `close`
    ends the threads.

    Args:
        scheduler: where the app runs; it is called from the helper threads.
        app_id: the app.
        app_handle: named in errors instead of the id.
        poll_interval_s: seconds between two polls of the state. None: the scheduler's `poll_interval_s`.
        unavailable_for_s: seconds to retry while the scheduler is unreachable, before its error is raised.
        log_roles: roles whose logs are read. None: all roles.
        logs: whether logs are read.
        streams: which stream is read. None: all that the backend has.
        cursors: where another follower of the app stopped (`Follower.cursors`).
        logs_from: "start", or "now" to skip older lines; replicas with a cursor continue from there.
        log_drain_s: seconds to wait for the rest of the log after the end, counted from the last new line.
        roles: the roles, for plug-ins that do not report them. None: they come from the scheduler.
        scheduled: whether the caller has just launched the app, so that the app exists and all its lines are new.
        known: whether the app was seen before; if the scheduler no longer finds it, it has vanished.
        poller: the poller, if followers of the same scheduler share one. None: a new one.
        watches_start: whether it is an error after a minute if the app cannot start.
        start_by: epoch seconds by which it must have started; with `watches_start`. None: no limit.
        tracker: interprets the answers. None: a new one, made from these arguments.
    """

    def __init__(
        self,
        scheduler: Scheduler[Any],
        app_id: str,
        *,
        app_handle: str = "",
        poll_interval_s: float | None = None,
        unavailable_for_s: float = 600.0,
        log_roles: Sequence[str] | None = None,
        logs: bool = True,
        streams: Stream | None = None,
        cursors: Mapping[str, JsonValue] | None = None,
        logs_from: str = "start",
        log_drain_s: float = 30.0,
        roles: Sequence[Role] | None = None,
        scheduled: bool = False,
        known: bool = False,
        poller: Poller | None = None,
        watches_start: bool = False,
        start_by: float | None = None,
        tracker: StateTracker | None = None,
    ) -> None:
        if logs_from not in ("start", "now"):
            raise ValueError(f'logs_from must be "start" or "now", not {logs_from!r}')
        self._app_id = app_id
        self._known = known or scheduled
        self._tracker = tracker or StateTracker(
            app_handle or app_id,
            unavailable_for_s=unavailable_for_s,
            known=self._known,
            watches_start=watches_start,
            start_by=start_by,
        )
        self._log_roles = None if log_roles is None else frozenset(log_roles)
        self._logs = logs
        self._cursors: dict[str, JsonValue] = dict(cursors or {})
        self._log_drain_s = log_drain_s
        self._roles = roles
        self._scheduled = scheduled
        # Re-entrant (the default), because a signal handler may raise in the consumer's thread while it holds it.
        self._changed = threading.Condition()
        self._answers: deque[Answer] = deque()
        self._reader = LogReader(
            scheduler,
            app_id,
            self._changed,
            cursors=dict(self._cursors),
            streams=streams,
            from_now=logs_from == "now",
        )
        # Not with a shared poller: it would add one request for each app. Not with streams: they report the end.
        reports_ends = has_own(scheduler, "await_end") and not (logs and self._reader.can_stream)
        self._waits_for_ends = poller is None and reports_ends
        self._poller = poller or Poller(scheduler, poll_interval_s, is_notified=self._waits_for_ends)
        self._end_waiter = EndWaiter(scheduler, app_id, self._poller)
        self._reader.on_program_end = lambda: self._poller.on_end_reported(app_id)
        self._closed = False
        self._item: LogItem | None = None
        self._left: set[str] = set()
        self._events: Generator[Event, None, None] | None = None

    @property
    def cursors(self) -> dict[str, JsonValue]:
        """Where the next follower continues, as plain JSON: after all lines yielded, including the current ones."""
        return dict(self._cursors)

    @property
    def is_skipping(self) -> bool:
        """Whether the reader is skipping lines from before the follower started."""
        return self._reader.is_skipping()

    @property
    def response(self) -> DescribeAppResponse | None:
        """The last description of the app; None before the first one."""
        return self._tracker.response

    def __iter__(self) -> Iterator[Event]:
        """Yield events until `Ended`; at least one each 0.2 s.

        Raises:
            SchedulerUnavailableError: an outage took longer than `unavailable_for_s`.
            UnknownOutcomeError: the app was seen or launched before, and the scheduler no longer knows it, or has
                reported UNKNOWN for 15 s.
            UnknownAppException: the scheduler does not know the app and never did.
            Exception: any other error of the scheduler when it is asked for the state.
        """
        if self._events is None:
            self._events = self._follow()
        return self._events

    def leave(self, shown: int) -> None:
        """Stop reading the replica of the current lines; its cursor stays after the first `shown` of them."""
        item = self._item
        if item is not None and item.key is not None:
            self._cursors[item.key] = item.position(shown, self._cursors.get(item.key))
            self._left.add(item.key)
            self._reader.stop_replica(item.key)

    def close(self) -> None:
        """End the helper threads without waiting for a hanging request; may be repeated."""
        self._closed = True
        self._end_waiter.stop()
        self._poller.unsubscribe(self._app_id, self._on_answer)
        self._reader.stop()
        deadline = time.monotonic() + _CLOSE_S
        self._poller.join(max(0.0, deadline - time.monotonic()))
        self._reader.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ---- the consumer's thread -------------------------------------------------------------------------------

    def _on_answer(self, answer: Answer) -> None:
        """Take an answer of the poller, on the poller's thread."""
        with self._changed:
            self._answers.append(answer)
            self._changed.notify_all()
        self._end_waiter.on_answer()

    def _follow(self) -> Generator[Event, None, None]:
        try:
            self._poller.subscribe(self._app_id, self._on_answer)
            if self._waits_for_ends:
                self._end_waiter.start()
            self._want(waiting(self._roles or (), self._log_roles), existing=not self._scheduled)
            ticked = time.monotonic()
            while not self._closed:
                # Status first, so that a flood of lines does not delay the end.
                while self._answers:
                    yield from self._learn(self._answers.popleft())
                yield from self._events_of(self._tracker.silence(self._poller.request_started_at))
                yield from self._log_events()
                if self._drained():
                    yield from self._end()
                    return
                if time.monotonic() - ticked >= TICK_S:
                    ticked = time.monotonic()
                    yield Tick()
                self._pause(ticked + TICK_S)
        finally:
            self.close()

    def _pause(self, until: float) -> None:
        with self._changed:
            left = until - time.monotonic()
            if left > 0 and not self._answers and not self._reader and not self._closed and not self._drained():
                self._changed.wait(left)

    def _learn(self, answer: Answer) -> Iterator[Event]:
        if self._tracker.has_ended():
            return
        first = self._tracker.response is None
        learned = self._tracker.learn(answer)
        if (response := self._tracker.response) is not None:
            self._want(
                standings_of(response, self._log_roles, self._roles or ()), existing=first and not self._scheduled
            )
            # A caller that has seen the app before has already checked its roles.
            if first and not self._known and (gap := gap_of_unknown_roles(self._log_roles, response)):
                learned.events.append(gap)
            if any(isinstance(event, StateChanged) for event in learned.events):
                self._reader.read_now()
            self._poller.set_ends_reported(self._app_id, self._reader.is_streaming())
        if self._tracker.has_ended():
            # Before the yield, so that the rest of the log is read while the consumer shows the end.
            self._end_waiter.stop()
            self._poller.unsubscribe(self._app_id, self._on_answer)
            self._reader.finish()
        yield from self._events_of(learned)

    def _events_of(self, learned: StateUpdate) -> Iterator[Event]:
        yield from learned.events
        if learned.error is not None:
            # Yield the lines that were read before the error.
            self._reader.stop()
            while self._reader:
                yield from self._log_events()
            raise learned.error

    # ---- logs ------------------------------------------------------------------------------------------------

    def _want(self, replicas: Mapping[tuple[str, int], Standing], *, existing: bool) -> None:
        if self._logs:
            self._reader.update_replicas(replicas, existing=existing)

    def _log_events(self) -> Iterator[Event]:
        item = self._reader.pop()
        if item is None:
            return
        try:
            if item.key in self._left:
                return
            self._item = item
            if item.key is not None:
                # Before the yield, because a consumer that stops at the current lines has seen them.
                self._cursors[item.key] = item.position(len(item.lines), self._cursors.get(item.key))
            if item.event is not None:
                yield item.event
        finally:
            self._item = None
            self._reader.release(item)

    def _drained(self) -> bool:
        if not self._tracker.has_ended() or self._reader:
            return False
        return self._reader.done() or time.monotonic() - self._reader.progress_at > self._log_drain_s

    def _end(self) -> Iterator[Event]:
        response = self._tracker.response
        assert response is not None
        if self._logs and not (response.roles or self._roles or any(one.replicas for one in response.roles_statuses)):
            yield LogGap(None, None, "the scheduler reports no roles of the app, so no log was read")
        rest = self._reader.incomplete()
        for role, k, error in rest[:_GAPS_AT_END]:
            yield LogGap(role, k, f"the end of the log may be missing: {error or 'the log source did not answer'}")
        if len(rest) > _GAPS_AT_END:
            yield LogGap(None, None, f"the end of the logs of {len(rest) - _GAPS_AT_END} more replicas may be missing")
        yield Ended(response, self.cursors)
