"""Following an app in a worker, with its states and lines in the task log; for operators and sensors."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._airflow import conf
from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch._task.silence import SilenceLimit
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow.events import AttemptEnded, Ended, Event, LogLines, Progress, StateChanged, Tick
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.line_order import LineOrder
from airflow_provider_launch.links.launch import show_ui
from airflow_provider_launch.specs.errors import LaunchError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch._task.progress import FollowProgress
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler

_LOG_FAILURES = 5


class AppFollow:
    """Follows one app for one task, to its end or for a while.

    Use it as a context manager: leaving it ends the threads of the follower.

    Args:
        task: the operator or sensor; its logger and its link are used.
        ti: the task instance.
        scheduler: where the app runs.
        handle: the handle of the app.
        options: how it is followed.
        progress: how far an earlier part of the task has followed it.
        check: called after each event, and at least each 0.2 s; raises to stop.
        is_new: this try has launched the app, so none of its lines are old.
        is_known: the app existed, so if the scheduler does not find it, it has vanished.
        is_part: another part of the task will follow the app to its end and show the last lines of a limited log.
        on_change: called after each change of the state, and each end of an attempt.
    """

    def __init__(
        self,
        task: Any,
        ti: Any,
        scheduler: Scheduler[Any],
        handle: str,
        options: FollowOptions,
        progress: FollowProgress,
        check: Callable[[], None],
        *,
        is_new: bool = False,
        is_known: bool = True,
        is_part: bool = False,
        on_change: Callable[[DescribeAppResponse], object] = lambda _response: None,
    ) -> None:
        app_id = parse_app_handle(handle).app_id
        self._check = check
        self._on_change = on_change
        self._failed = 0
        """Events in a row that could not be logged."""
        # A part with a limit stops reading in the middle of lines, which must be the last ones that came.
        self._order = LineOrder(is_on=not (is_part and options.max_log_bytes is not None))
        self._is_part = is_part
        """Whether lines may be missing in the task log."""
        self._limit = LogLimit(options.max_log_bytes, progress.shown_bytes)
        self.log = TaskLog(
            task.log,
            app_id,
            progress,
            on_url=lambda url, pages: show_ui(task, ti, url, pages),
            # A part counts the first lines here and does not keep the last ones.
            limit=None if is_part else self._limit,
            replicas=options.log_replicas,
            stderr_level=options.stderr_level,
        )
        self._scheduler, self._app_id = scheduler, app_id
        self._silence = SilenceLimit(options.silence_limit_s, self.log)
        self.silent = ""
        """Which replicas hung, and for how long; empty: none."""
        self._since = progress.since or time.time()
        self._roles = progress.roles
        self._follower = Follower(
            scheduler,
            app_id,
            app_handle=handle,
            poll_interval_s=options.poll_interval_s,
            unavailable_for_s=options.unavailable_for_s,
            log_roles=options.log_roles,
            logs=options.log_roles is None or len(options.log_roles) > 0,
            streams=options.stream,
            cursors=progress.cursors,
            logs_from=options.logs_from,
            log_drain_s=conf.getfloat("launch", "log_drain_s", fallback=30.0),
            scheduled=is_new,
            known=is_known,
            watches_start=options.watches_start,
            start_by=progress.start_by(options.start_limit_s, self._since),
            roles=[Role(name, "", num_replicas=count) for name, count in progress.roles.items()],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._follower.close()
        if not self._is_part:
            with contextlib.suppress(Exception):
                self.log.finish()

    @property
    def response(self) -> DescribeAppResponse | None:
        """The last description of the app."""
        return self._follower.response

    @property
    def is_skipping(self) -> bool:
        """Whether old lines are being skipped."""
        return self._follower.is_skipping

    @property
    def tails(self) -> Mapping[str, Sequence[str]]:
        """The last lines of each replica by `role/replica`."""
        return self.log.tails

    @property
    def has_gap(self) -> bool:
        """Whether lines of this part of the task or of an earlier one may be missing in the task log."""
        return self.log.has_gap

    @property
    def progress(self) -> FollowProgress:
        """Where another part of the task continues."""
        progress = self.log.progress(self._follower.cursors)
        return dataclasses.replace(
            progress,
            shown_bytes=self._limit.shown_bytes,
            tails=self.log.masked_tails(),
            since=self._since,
            roles=self._roles,
        )

    def run(
        self,
        *,
        until: float | None = None,
        is_over: Callable[[Event], bool] = lambda _event: False,
        on_end: Callable[[DescribeAppResponse], object] = lambda _response: None,
    ) -> DescribeAppResponse | None:
        """Log events until the app has ended, and return its last status; None if `until` or `is_over` came first.

        Args:
            until: a time of `time.monotonic` at which to stop.
            is_over: returns whether to stop after this event.
            on_end: called when the app has ended, before the rest of its log is read.
        """
        try:
            return self._run(until, is_over, on_end)
        finally:
            # The cursors are already after these lines.
            self._write_all(self._order.rest())

    def _run(
        self,
        until: float | None,
        is_over: Callable[[Event], bool],
        on_end: Callable[[DescribeAppResponse], object],
    ) -> DescribeAppResponse | None:
        for event in self._follower:
            self._check()
            self._write_all(self._order.add(event))
            if isinstance(event, (StateChanged, AttemptEnded)) and self.response is not None:
                self._on_change(self.response)
            if isinstance(event, StateChanged) and is_terminal(event.new):
                on_end(event.response)
            if isinstance(event, Ended):
                return self.explained(event.response)
            if not self.silent and (text := self._silence.exceeded(event, self.response)):
                self.cancel_silent(text)
            if is_over(event) or (until is not None and time.monotonic() >= until):
                return None
        return None

    def _write_all(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._failed >= _LOG_FAILURES:
                return
            try:
                self._write(event)
                self._failed = 0
            except Exception:  # noqa: BLE001 - a log that fails must not change how the task ends
                # Not reported, because the log itself fails; logging stops after several failures in a row.
                self._failed += 1
                self.log.has_gap = True

    def cancel_silent(self, text: str) -> None:
        """Cancel an app that hangs; its last lines, such as the stacks of its processes, are still logged."""
        self.silent = text
        self.log.report_silence(text)
        try:
            self._scheduler.cancel(self._app_id)
        except LaunchError as error:
            # The next event tries again.
            self.silent = ""
            self.log.report_silence(f"it could not be cancelled: {error}")
            self.log.last_line_at = time.monotonic()

    def explained(self, response: DescribeAppResponse) -> DescribeAppResponse:
        """Return the last status, with the reason of a cancel because of silence."""
        if not self.silent or response.state is not AppState.CANCELLED:
            return response
        return dataclasses.replace(response, msg=self.silent)

    def _write(self, event: Event) -> None:
        if self._is_part and isinstance(event, LogLines):
            event = self._first_lines(event)
        self.log.write_event(event)
        if isinstance(event, Tick) and self.log.is_quiet and self.response is not None:
            self.log.write_event(Progress(self.response))

    def _first_lines(self, event: LogLines) -> LogLines:
        """Return the lines that are shown now; stop reading a replica that has more."""
        key = f"{event.role}/{event.replica}"
        if self.log.is_hidden(key):
            return event
        shown, is_cut = self._limit.first_lines(key, event.lines)
        if shown == len(event.lines):
            return event
        self._follower.leave(shown)
        first = dataclasses.replace(event, lines=event.lines[:shown])
        if is_cut:
            self.log.write_event(first)
            self.log.report_cut(key, self._limit.max_bytes)
            return dataclasses.replace(event, lines=[])
        return first
