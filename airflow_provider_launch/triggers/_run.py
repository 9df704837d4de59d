"""One run of a trigger: takes answers on the poller's thread, and waits on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_launch._airflow import is_left_to_another
from airflow_provider_launch._task.log_limit import NO_LIMIT, LogLimit
from airflow_provider_launch._task.outcome import failed_replicas
from airflow_provider_launch._task.places import checked_places, copied_variables, hidden_values
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.secrets import chosen
from airflow_provider_launch._task.silence import SilenceLimit
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow.events import Progress, gap_of_unknown_roles
from airflow_provider_launch.follow.replicas import standings_of
from airflow_provider_launch.follow.state_tracker import StateTracker
from airflow_provider_launch.links.launch import show_ui_from_trigger
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    AppUnavailableError,
    LaunchError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.triggers.checkpoint import Checkpoint
from airflow_provider_launch.triggers.feed import Feed
from airflow_provider_launch.triggers.hub import hub
from airflow_provider_launch.triggers.pump import log_bytes_unread

if TYPE_CHECKING:
    from concurrent.futures import Future

    from airflow_provider_launch.follow.events import Event
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.schedulers.responses import Answer
    from airflow_provider_launch.triggers.connections import Shared
    from airflow_provider_launch.triggers.launch import AppStatusTrigger

log = logging.getLogger(__name__)
_DRAIN_S = 2.0
_STEP_S = 0.02
_MASK_PAUSE_S = 1.0
_STOP_S = 2.0
_SENT_TAILS = 4
"""Replicas whose last lines are sent with the event of a failed app; Airflow stores it in its database."""
_MAX_WITHHELD = 100
"""Events that wait until the secrets of the app are registered; of more, the last ones are shown."""

T = TypeVar("T")


class TriggerRun:
    """One run of a trigger: takes answers on the poller's thread, and waits on the event loop."""

    __slots__ = (
        "_app_id",
        "_checkpoint",
        "_deadline",
        "_deciding",
        "_error",
        "_feed",
        "_handle",
        "_hub",
        "_is_masked",
        "_is_stopped",
        "_limit",
        "_linked",
        "_loop",
        "_masking",
        "_news",
        "_roles",
        "_saved",
        "_shared",
        "_silence",
        "_silent",
        "_since",
        "_stopping",
        "_task_log",
        "_timer",
        "_trigger",
        "_ui",
        "_waits_for_masks",
        "_watch",
        "_withheld",
    )

    def __init__(self, trigger: AppStatusTrigger, shared: Shared, handle: str, app_id: str) -> None:
        self._trigger = trigger
        self._shared = shared
        self._app_id = app_id
        self._hub = hub()
        self._checkpoint = Checkpoint(trigger.task_instance)
        self._handle = handle
        self._error: Exception | None = None
        self._silent = ""
        self._ui: tuple[str, Mapping[str, str]] = ("", {})
        self._linked: tuple[str, Mapping[str, str]] = self._ui
        self._stopping: asyncio.Future[dict[str, Any]] | None = None
        self._is_masked = self._is_stopped = False
        self._waits_for_masks: tuple[DescribeAppResponse, bool] | None = None
        self._masking: Future[None] | None = None
        self._withheld: deque[Event] = deque(maxlen=_MAX_WITHHELD)
        self._limit = NO_LIMIT
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        # Answers come on the poller's thread; missing answers are noticed on the event loop.
        self._deciding = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None

    async def prepare(self) -> None:
        """Load the progress of an earlier trigger."""
        trigger = self._trigger
        # The progress stored by an earlier trigger of this try is newer than that of the worker.
        progress = await self._checkpoint.load() or FollowProgress.from_json(trigger.progress or {})
        self._deadline = self._deadline_of(progress.deadline)
        self._since = progress.since or time.time()
        self._roles = [Role(name, "", num_replicas=count) for name, count in progress.roles.items()]
        options = trigger.options
        self._watch = StateTracker(
            self._handle,
            unavailable_for_s=options.unavailable_for_s,
            known=trigger.known or trigger.scheduled,
            watches_start=options.watches_start,
            start_by=progress.start_by(options.start_limit_s, self._since),
        )
        if trigger.options.max_log_bytes is not None:
            self._limit = LogLimit(trigger.options.max_log_bytes, progress.shown_bytes)
        # The logger of the class, because the context selects the log; one for each trigger would take a kilobyte.
        log = type(trigger).logger()
        self._task_log = TaskLog(
            log,
            self._app_id,
            progress,
            on_url=self._show_ui,
            replicas=options.log_replicas,
            stderr_level=options.stderr_level,
        )
        self._silence = SilenceLimit(options.silence_limit_s, self._task_log)
        self._feed = Feed(
            self._shared.scheduler,
            self._app_id,
            self._task_log,
            # The supervisor finds the task's log by the context.
            contextvars.copy_context(),
            cursors=progress.cursors,
            streams=trigger.options.stream,
            from_now=trigger.options.logs_from == "now",
            limit=self._limit,
        )
        # Save a new deadline at once, because a killed trigger cannot save it.
        is_new_deadline = trigger.timeout_s is not None and progress.deadline is None
        self._saved = None if is_new_deadline else self._feed.checkpoint
        self._feed.on_checkpoint = self._wake
        self._feed.reader.on_program_end = lambda: self._shared.poller.on_end_reported(self._app_id)

    def start(self) -> None:
        """Follow the app until `stop`."""
        self._hub.pump.add(self._feed)
        self._shared.poller.subscribe(self._app_id, self._on_answer, self._trigger.options.poll_interval_s)
        self._hub.ticker.add(self, self._loop)
        self._await_deadline()

    async def wait_once(self) -> tuple[str, str] | None:
        """Return the reason why the wait is over and its message; None if it is not over."""
        # Before the check, so that news that arrives while something is saved is not lost.
        self._news.clear()
        with self._deciding:
            ended, error = self._watch.has_ended(), self._error
        if ended:
            return "ended", ""
        if error is not None:
            if isinstance(error, AppNotStartedError):
                return "not_started", str(error)
            return ("unreachable" if isinstance(error, SchedulerUnavailableError) else "error"), str(error)
        if self._silent:
            return "silent", self._silent
        if self._left() <= 0:
            return "deadline", await self._end_at_deadline()
        if self._feed.checkpoint is not self._saved:
            self._saved = self._feed.checkpoint
            await self._checkpoint.save(self._progress(self._saved))
        if self._ui is not self._linked:
            self._linked = self._ui
            await show_ui_from_trigger(self._trigger.task_instance, *self._linked)
        return None

    async def news(self) -> None:
        """Wait until there is something to check."""
        await self._news.wait()

    async def finish(self) -> FollowProgress:
        """Return the progress for the worker, after all written lines have reached the log."""
        self._unsubscribe()
        positions = await asyncio.shield(self._stop_soon())
        # Records that are in the log's socket when a trigger ends go into another log.
        deadline = self._loop.time() + _DRAIN_S
        while (log_bytes_unread() or 0) > 0 and self._loop.time() < deadline:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(_STEP_S)
        progress = self._progress(positions)
        await self._checkpoint.save(progress, fired=True)
        # Not on the event loop, because many long lines are searched.
        return dataclasses.replace(progress, tails=await asyncio.to_thread(self._tails))

    async def abandon(self, error: asyncio.CancelledError) -> None:
        """Stop because the trigger is cancelled; the next one continues where this one stops."""
        positions = await self._stopped()
        if is_left_to_another(error):
            progress = self._progress(positions)
            full = dataclasses.replace(progress, tails=self._task_log.masked_tails())
            await self._checkpoint.save_on_shutdown(full if self._checkpoint.fits(full) else progress)

    async def _stopped(self) -> Mapping[str, Any]:
        """Stop following, and return where to continue; wait only briefly for a line that is being written."""
        self._unsubscribe()
        stopping = self._stop_soon()
        # Ignore further cancellations.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({stopping}, timeout=_STOP_S)
        # An older position repeats lines, but loses none.
        return stopping.result() if stopping.done() and not stopping.cancelled() else self._feed.checkpoint

    def stop(self) -> None:
        """Stop following; may be repeated. Does not block the event loop."""
        self._unsubscribe()
        if self._stopping is None:
            self._stop_soon()

    def _stop_soon(self) -> asyncio.Future[dict[str, Any]]:
        if self._stopping is None:
            self._stopping = self._loop.run_in_executor(None, self._hub.pump.remove, self._feed)
        return self._stopping

    def _unsubscribe(self) -> None:
        self._is_stopped = True
        if self._masking is not None:
            self._masking.cancel()
        self._shared.poller.unsubscribe(self._app_id, self._on_answer)
        self._hub.ticker.remove(self, self._loop)
        if self._timer is not None:
            self._timer.cancel()

    def leave(self) -> None:
        """Release the shared connection."""
        # Not awaited, because the triggerer may be ending.
        self._loop.run_in_executor(None, self._hub.leave, self._shared)

    def _tails(self) -> Mapping[str, Sequence[str]]:
        """Return the last lines of the replicas that failed first, for the worker's error."""
        if self._watch.response is None:
            return {}
        failed = failed_replicas(self._watch.response, self._task_log.tails)[:_SENT_TAILS]
        return self._task_log.masked_tails(*(f"{one.role}/{one.id}" for one in failed)) if failed else {}

    def tick(self) -> None:
        """Check for missing answers, and for the deadline, because the clock may have been set."""
        with self._deciding:
            if not self._watch.has_ended() and self._error is None:
                self._take(self._watch.silence(self._shared.poller.request_started_at))
                if self._watch.response is not None and self._task_log.is_quiet and self._may_show:
                    self._feed.add_event(Progress(self._watch.response))
                    self._hub.pump.wake(self._feed)
                if not self._withheld:
                    self._silent = self._silent or self._silence.exceeded(None, self._watch.response)
        if self._error is not None or self._silent or self._left() <= 0:
            self._news.set()

    def _deadline_of(self, kept: object) -> float | None:
        trigger = self._trigger
        if isinstance(kept, (int, float)):
            return kept
        after = None if trigger.timeout_s is None else time.time() + trigger.timeout_s
        return min((moment for moment in (trigger.deadline, after) if moment is not None), default=None)

    def _await_deadline(self) -> None:
        if self._left() <= 0:
            self._news.set()
        elif self._deadline is not None:
            # Waits again if the clock was set back meanwhile.
            self._timer = self._loop.call_later(self._left(), self._await_deadline)

    def _left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.time()

    async def _end_at_deadline(self) -> str:
        if not self._trigger.cancels_at_deadline:
            return "the time is over"
        if not await self._trigger.is_awaited():
            # A newer try may follow the same app; if the task still waits, its worker repeats the cancel.
            return "the time is over"
        return await self._hub.cancels.run(self._cancel, self._conn_id)

    @property
    def _conn_id(self) -> str:
        return self._shared.hook.launch_conn_id

    def _cancel(self) -> str:
        try:
            self._shared.scheduler.cancel(self._app_id)
        except LaunchError as error:
            return f"the time is over, but app {self._app_id} could not be cancelled: {error}"
        return f"the time is over; app {self._app_id} is cancelled"

    def _progress(self, cursors: Mapping[str, Any]) -> FollowProgress:
        progress = self._task_log.progress(cursors)
        return dataclasses.replace(
            progress,
            shown_bytes=self._limit.shown_bytes,
            deadline=self._deadline,
            since=self._since,
            roles={role.name: role.num_replicas for role in self._roles},
        )

    # ---- on the poller's thread --------------------------------------------------------------------------------------

    def _on_answer(self, answer: Answer) -> None:
        with self._deciding:
            before = self._watch.response
            learned = self._watch.learn(answer)
            # None if the scheduler has returned the same answer again.
            response = None if self._watch.response is before else self._watch.response
            # A worker that knows the app has already checked its roles.
            if response is not None and before is None and not (self._trigger.known or self._trigger.scheduled):
                gap = gap_of_unknown_roles(self._trigger.options.log_roles, response)
                learned.events += [gap] if gap else []
            existing = before is None and not self._trigger.scheduled
            if response is None or self._may_show:
                # Before the reader gets the replicas, because another thread may write their lines at once.
                self._take(learned)
                if response is not None:
                    self._want(response, existing=existing)
            else:
                self._error = self._error or learned.error
                self._withheld += learned.events
                self._mask(response, existing=existing)
            if learned.events:
                self._feed.reader.read_now()
                self._hub.pump.wake(self._feed)
        self._shared.poller.set_ends_reported(self._app_id, self._feed.reader.is_streaming())
        if self._watch.has_ended() or self._error is not None:
            self._wake()

    def _take(self, learned: Any) -> None:
        for event in learned.events:
            self._feed.add_event(event)
            # Restarts the time, if the event explains the silence.
            self._silence.exceeded(event, self._watch.response)
        if learned.events:
            self._hub.pump.wake(self._feed)
        self._error = self._error or learned.error

    def _mask(self, response: DescribeAppResponse, *, existing: bool) -> None:
        """Hold back lines and messages until the app's secrets are masked."""
        waits = self._waits_for_masks
        self._waits_for_masks = (response, existing or (waits is not None and waits[1]))
        if waits is None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed because the triggerer ends
                self._masking = asyncio.run_coroutine_threadsafe(self._register_masks(response), self._loop)

    async def _register_masks(self, response: DescribeAppResponse) -> None:
        values = await self._values_to_hide(response)
        if values is None:
            # The next change tries again. After the end the worker shows everything, because it knows the secrets.
            with self._deciding:
                self._waits_for_masks = None
            return
        self._task_log.hide(values)
        with self._deciding:
            self._is_masked = True
            self._show_withheld()
            if self._waits_for_masks is not None:
                self._want(self._waits_for_masks[0], existing=self._waits_for_masks[1])

    async def _values_to_hide(self, response: DescribeAppResponse) -> list[str] | None:
        """Return the secrets of the app; None if they cannot be read now."""
        places, copied = checked_places(self._trigger.secret_places), {}
        try:
            roles = response.roles or await self._roles_of_app()
            if roles and (places is None or any(place.field == "copied" for place in places)):
                copied = copied_variables(await self._native())
            if not roles:
                return None
            # Not on the event loop, because an app may have many values with many lines.
            return await self._hub.questions.run(
                lambda: chosen(hidden_values(roles, copied, places or ()))[0], self._conn_id
            )
        except AppUnavailableError:
            return None
        except Exception:
            # Its program may have replaced the record; an error of this coroutine would not be seen.
            log.warning("the secrets of app %s cannot be read", self._app_id, exc_info=True)
            return None

    @property
    def _may_show(self) -> bool:
        """Whether texts of the engine may be shown: the app has no secrets, or they are registered."""
        return self._trigger.secret_places == [] or self._is_masked

    def _show_withheld(self) -> None:
        if self._withheld:
            for event in self._withheld:
                self._feed.add_event(event)
            self._withheld.clear()
            self._hub.pump.wake(self._feed)

    async def _roles_of_app(self) -> list[Role]:
        """Return the roles, which an answer about many apps may lack."""
        found = await self._retry_while_unreachable(lambda: self._shared.scheduler.describe(self._app_id))
        return found.roles if found is not None else []

    async def _native(self) -> Any:
        """Return the request that the scheduler has stored; None if it may not be read."""
        return await self._retry_while_unreachable(lambda: self._shared.scheduler.describe_native(self._app_id))

    async def _retry_while_unreachable(self, ask: Callable[[], T]) -> T | None:
        """Return the result of `ask`, or None after an error; while the scheduler is unreachable, retry without limit.

        It runs on a thread that the triggers of the connection share, but waits without one.

        Raises:
            AppUnavailableError: the record of the app is damaged, which may last.
        """
        while True:
            try:
                return await self._hub.questions.run(ask, self._conn_id)
            except AppUnavailableError:
                raise
            except SchedulerUnavailableError:
                if self._is_stopped:
                    raise
            except LaunchError:
                return None
            await asyncio.sleep(_MASK_PAUSE_S)

    def _want(self, response: DescribeAppResponse, *, existing: bool) -> None:
        reader = self._feed.reader
        if reader.update_replicas(
            standings_of(response, self._trigger.options.log_roles, self._roles), existing=existing
        ):
            self._hub.pump.wake(self._feed)

    def _show_ui(self, url: str, pages: Mapping[str, str]) -> None:
        self._ui = (url, pages)
        self._wake()

    def _wake(self) -> None:
        # The loop may be closed because the triggerer ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)
