"""One run of an `AppStatusSensor`: follows the app to its end, or for a limited time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow.sdk import PokeReturnValue

from airflow_provider_launch._airflow import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
    conf,
)
from airflow_provider_launch._task.cancel_on_kill import AppKilledError, CancelThread
from airflow_provider_launch._task.follow_app import AppFollow
from airflow_provider_launch._task.options import allowed_conn_id, check_streams
from airflow_provider_launch._task.outcome import as_xcom, check_all_results, failure, handle_of, result_of
from airflow_provider_launch._task.progress import MAX_PACKED, FollowProgress, pack, unpack
from airflow_provider_launch._task.retry_unavailable import retry_while_unavailable
from airflow_provider_launch._task.secrets import kept_values, register
from airflow_provider_launch.follow.events import Event, LogLines, StateChanged, Unreachable
from airflow_provider_launch.follow.state_tracker import UNKNOWN_S
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.links.launch import drop_empty_links
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.handles import ParsedAppHandle, parse_app_handle
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.triggers.checkpoint import delete_checkpoint
from airflow_provider_launch.util.untrusted import clean_json

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler

T = TypeVar("T")

KEY = "launch_sensor"
_KEPT = ("scope", "unreachable_since", "unknown_since")
"""Keys that are stored in addition to the progress."""
# A run in mode "reschedule" ends after this many seconds without a line, once the state was logged.
_QUIET_S = 0.5
_LONGEST_RUN_S = 60.0


class SensorFields(Protocol):
    """The fields of an `AppStatusSensor` that a run uses."""

    handle: Any
    launch_conn_id: Any
    streams: str | None
    logs_from: str
    max_log_bytes: int | None
    kill_policy: str
    results: str
    unavailable_for_s: float
    follow_interval_s: float | None
    mode: str
    timeout: Any
    execution_timeout: timedelta | None
    do_xcom_push: bool
    ui_url: str | None
    ui_pages: Mapping[str, str]
    _killed: bool
    _killer: CancelThread | None

    @property
    def log(self) -> Any:
        """Return the logger of the task."""

    @property
    def follow_options(self) -> FollowOptions:
        """Return how the app is followed."""


class SensorRun:
    """Follows the app to its end, or for a limited time.

    Args:
        sensor: the task of the DAG, rendered.
        handle: the handle that a trigger has found. Empty: the sensor's.
    """

    def __init__(self, sensor: SensorFields, *, handle: str = "") -> None:
        self._sensor = sensor
        self._ti: Any = None
        self._handle = handle or handle_of(sensor.handle)
        if not self._handle:
            raise InvalidAppError(f"handle={sensor.handle!r} is neither a handle nor the XCom of a LaunchAppOperator")
        parsed = parse_app_handle(self._handle)
        self._app_id = parsed.app_id
        self._hook = self._hook_of(parsed)
        if self._hook.options.backend != parsed.scheduler_backend:
            raise InvalidAppError(
                f"{self._handle!r} is an app of scheduler {parsed.scheduler_backend!r}, "
                f"but connection {self._hook.launch_conn_id!r} is for scheduler {self._hook.options.backend!r}"
            )
        try:
            check_streams(self._scheduler, sensor.streams)
            check_all_results(self._scheduler, sensor.results)
        except BaseException:
            self.close()
            raise

    def _hook_of(self, parsed: ParsedAppHandle) -> LaunchHook:
        given = self._sensor.launch_conn_id
        try:
            return LaunchHook.for_connection(allowed_conn_id(given, parsed))
        except AirflowNotFoundException as error:
            if given:
                raise
            raise AirflowNotFoundException(
                f"handle {self._handle!r} names the connection {parsed.session_name!r}: {error}; "
                f"define it, or give launch_conn_id"
            ) from error

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def run(self, context: Context) -> PokeReturnValue:
        """Return done with the XCom value, or not done; raise an error if the app did not succeed."""
        self._ti = context["ti"]

        def follow() -> PokeReturnValue:
            response, tails = self._follow(context)
            self._check()
            if response is None:
                return PokeReturnValue(is_done=False)
            return PokeReturnValue(is_done=True, xcom_value=self._outcome(response, tails))

        return self._guarded(follow)

    def _guarded(self, work: Callable[[], T]) -> T:
        sensor = self._sensor
        may_cancel = sensor.follow_options.may_cancel
        killer = sensor._killer = CancelThread(self._hook.new_scheduler if may_cancel else None)  # noqa: SLF001 - `on_kill` finds it there
        killer.app_id = self._app_id
        try:
            self._check()
            return work()
        except BaseException as error:
            killed = isinstance(error, AppKilledError) or not isinstance(error, Exception)
            if killed and may_cancel:
                self._scheduler.cancel(self._app_id)
            raise
        finally:
            drop_empty_links(sensor)
            killer.close()
            self._hook.close()

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped, and return the XCom value.

        Args:
            context: of the task.
            event: the event of `AppStatusTrigger`.
        """
        delete_checkpoint(context["ti"])
        why, text = (str(event.get(name) or "") for name in ("why", "text"))
        progress = FollowProgress.from_json(event)
        self._sensor.ui_url = progress.url
        if why == "deadline":
            if self._sensor.kill_policy == "cancel":
                self.cancel()  # again, in case the trigger's cancel failed
            self.close()
            limit = self._sensor.execution_timeout
            is_of_task = limit is not None and limit.total_seconds() <= self._sensor.timeout
            raise (AirflowTaskTimeout if is_of_task else AirflowSensorTimeout)(text)
        if why == "unreachable":
            self.close()
            raise SchedulerUnavailableError(text)
        if why == "error":
            self._sensor.log.warning("the trigger has failed (%s); following %s here", text, self._handle)
        log_lasts = conf.getboolean("launch", "trigger_logs_last", fallback=True)
        # If the log of the trigger is lost, show the whole log.
        progress = progress if log_lasts else FollowProgress()

        self._ti = context["ti"]

        def follow() -> dict[str, Any]:
            with self._app_follow(context, progress, skips_old=log_lasts and not progress.cursors) as app:
                response = app.run(until=time.monotonic() + self._sensor.timeout)
            if response is None:
                raise AirflowSensorTimeout(f"app {self._app_id} has not ended within {self._sensor.timeout:g} s")
            return self._outcome(response, app.tails)

        return self._guarded(follow)

    def cancel(self) -> None:
        """Cancel the app; no-op if it has ended."""
        try:
            self._scheduler.cancel(self._app_id)
        except LaunchError as error:
            self._sensor.log.error("app %s could not be cancelled: %s", self._app_id, error)  # noqa: TRY400 - the text is enough
        finally:
            self.close()

    def close(self) -> None:
        """Free the client."""
        self._hook.close()

    def _follow(self, context: Context) -> tuple[DescribeAppResponse | None, Mapping[str, Sequence[str]]]:
        if self._sensor.mode == "reschedule":
            return self._follow_for_a_while(context)
        with self._app_follow(context, FollowProgress()) as app:
            return app.run(until=time.monotonic() + self._sensor.timeout), app.tails

    def _follow_for_a_while(self, context: Context) -> tuple[DescribeAppResponse | None, Mapping[str, Sequence[str]]]:
        """Log the state and the new lines, and store the progress."""
        stored = self._stored(context)
        progress = FollowProgress.from_json({**stored, "tails": unpack(stored.get("tails"))})
        self._sensor.ui_url = progress.url
        quiet = _QuietPeriod()
        with self._app_follow(context, progress, is_part=True) as app:

            def is_over(event: Event) -> bool:
                if isinstance(event, Unreachable):
                    self._check_outage_limit(stored, event)
                return quiet.is_over(event) and not app.is_skipping

            response = app.run(is_over=is_over)
            progress = app.progress
        if quiet.is_state_known:
            stored.pop("unreachable_since", None)
            self._check_unknown_limit(stored, app.response)
        if response is None:
            self._store(context, stored, progress)
        elif self._sensor.max_log_bytes is not None:
            # Show the last lines, which earlier runs left out.
            with self._app_follow(context, progress) as rest:
                rest.run()
                return response, rest.tails
        return response, app.tails

    def _stored(self, context: Context) -> dict[str, Any]:
        """Return the values that the last run of this try has stored."""
        store = context.get("task_state_store")
        # A new try has a new log, which starts with the first line; the same try continues in the same log.
        scope = [self._handle, context["ti"].try_number]
        stored: object = None if store is None else store.get(KEY, None)
        return dict(stored) if isinstance(stored, dict) and stored.get("scope") == scope else {"scope": scope}

    def _store(self, context: Context, stored: dict[str, Any], progress: FollowProgress) -> None:
        kept: dict[str, Any] = {name: stored[name] for name in _KEPT if name in stored}
        kept |= progress.to_json()
        size = len(kept.get("cursors", ""))
        if size > MAX_PACKED:
            del kept["cursors"]
            size = 0
            self._sensor.log.warning("the app has too many replicas for the state store: lines may be shown twice")
        tails = pack(progress.tails)
        kept["tails"] = tails if size + len(tails) <= MAX_PACKED else None
        store = context.get("task_state_store")
        if store is not None:
            store.set(KEY, clean_json(kept))

    def _app_follow(
        self, context: Context, progress: FollowProgress, *, skips_old: bool = True, is_part: bool = False
    ) -> AppFollow:
        """Return a follower of the app that continues where an earlier part of the task has stopped."""
        # Secrets from templates stay unmasked here, because only the task that launched the app has fetched them.
        with contextlib.suppress(LaunchError):
            register(kept_values(self._scheduler, self._app_id), self._sensor.log.warning)
        sensor = self._sensor
        is_known = bool(progress.state)
        options = dataclasses.replace(
            sensor.follow_options,
            # Only the first part skips old lines; replicas that appear later are shown whole.
            logs_from=sensor.logs_from if skips_old and not is_known else "start",
            poll_interval_s=None if is_part else sensor.follow_interval_s,
        )
        return AppFollow(
            sensor,
            context["ti"],
            self._scheduler,
            self._handle,
            self._app_id,
            options,
            progress,
            self._check,
            is_known=is_known,
            is_part=is_part,
        )

    def _check_outage_limit(self, stored: dict[str, Any], event: Unreachable) -> None:
        since = stored.setdefault("unreachable_since", time.time())
        if time.time() - since >= self._sensor.unavailable_for_s:
            raise SchedulerUnavailableError(str(event.error)) from event.error

    def _check_unknown_limit(self, stored: dict[str, Any], seen: DescribeAppResponse | None) -> None:
        """Fail if the state stays UNKNOWN across runs; a follower only checks its own run."""
        if seen is None or seen.state != AppState.UNKNOWN:
            stored.pop("unknown_since", None)
            return
        since = stored.setdefault("unknown_since", time.time())
        if time.time() - since >= min(UNKNOWN_S, self._sensor.unavailable_for_s):
            raise UnknownOutcomeError(f"how {self._handle!r} ended is unknown: {seen.msg}")

    def _outcome(self, response: DescribeAppResponse, tails: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        if response.state == AppState.SUCCEEDED:
            return as_xcom(self._handle, response, self._result())
        if self._sensor.do_xcom_push:
            # As after a success, for later tasks that run even after a failure.
            with contextlib.suppress(Exception):
                self._ti.xcom_push("return_value", as_xcom(self._handle, response))
        error = failure(self._handle, response, tails)
        # No retries, because another try would find the same end. With `soft_fail` Airflow turns this into a skip.
        raise AirflowFailException(str(error)) from error

    def _result(self) -> Any:
        return retry_while_unavailable(
            lambda: result_of(self._scheduler, self._app_id, self._sensor.results),
            self._check,
            unavailable_for_s=self._sensor.unavailable_for_s,
            warn=self._sensor.log.warning,
        )

    def _check(self) -> None:
        if self._sensor._killed:  # noqa: SLF001 - set by its `on_kill`
            raise AppKilledError("the task was killed")


class _QuietPeriod:
    """Decides when a run may end: the state (or an outage) was reported, and no more lines came for a while."""

    def __init__(self) -> None:
        self.is_state_known = False
        self._is_reported = self._has_ended = False
        self._ends = time.monotonic() + _LONGEST_RUN_S
        self._last_line = time.monotonic()

    def is_over(self, event: Event) -> bool:
        now = time.monotonic()
        if isinstance(event, LogLines):
            self._last_line = now
        if isinstance(event, StateChanged):
            self.is_state_known = self._is_reported = True
            self._has_ended = is_terminal(event.new)
            self._last_line = now
        if isinstance(event, Unreachable):
            self._is_reported = True
        if self._has_ended:
            # The follower limits the wait for the rest of the log; another run would wait again.
            return False
        return now >= self._ends or (self._is_reported and now - self._last_line >= _QUIET_S)
