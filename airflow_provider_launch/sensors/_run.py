"""One run of an `AppStatusSensor`: follows the app to its end, or for a limited time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_launch._airflow import (
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
    conf,
)
from airflow_provider_launch._task.errors import FinalStateError
from airflow_provider_launch._task.options import allowed_conn_id, check_streams
from airflow_provider_launch._task.outcome import as_xcom, check_all_results, handle_of, result_of
from airflow_provider_launch._task.places import kept_values
from airflow_provider_launch._task.progress import MAX_PACKED, FollowProgress, pack, unpack
from airflow_provider_launch._task.secrets import register
from airflow_provider_launch._task.task_run import TaskRun
from airflow_provider_launch.follow.events import Event, LogLines, StateChanged, Unreachable
from airflow_provider_launch.follow.state_tracker import UNKNOWN_S
from airflow_provider_launch.hooks.launch import LaunchHook
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
    from airflow.sdk import Context

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.follow_app import AppFollow
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.sensors.launch import AppStatusSensor

KEY = "launch_sensor"
_KEPT = ("scope", "unreachable_since", "unknown_since")
"""Keys that are stored in addition to the progress."""
# A run in mode "reschedule" ends after this many seconds without a line, once the state was logged.
_QUIET_S = 0.5
_LONGEST_RUN_S = 60.0


class SensorRun(TaskRun):
    """Follows the app to its end, or for a limited time.

    Args:
        sensor: the task of the DAG, rendered.
        context: the context of the task.
        killer: cancels the app when the task is killed.
        handle: the handle that a trigger has found; if empty, the handle in the sensor's argument.
    """

    def __init__(self, sensor: AppStatusSensor, context: Context, killer: CancelThread, *, handle: str = "") -> None:
        self._sensor = sensor
        self._store = context.get("task_state_store")
        self._handle = handle or handle_of(sensor.handle)
        if not self._handle:
            raise InvalidAppError(f"handle={sensor.handle!r} is neither a handle nor the XCom of a LaunchAppOperator")
        parsed = parse_app_handle(self._handle)
        super().__init__(sensor, context["ti"], self._hook_of(parsed), killer)
        self._app_id = killer.app_id = parsed.app_id
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

    def run(self) -> PokeReturnValue:
        """Return done with the XCom value, or not done; raise an error if the app did not succeed."""
        with self:
            self._killer.check()
            response, tails = self._follow()
            self._killer.check()
            if response is None:
                return PokeReturnValue(is_done=False)
            return PokeReturnValue(is_done=True, xcom_value=self._outcome(response, tails))

    def resume(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped, and return the XCom value.

        Args:
            event: the event of `AppStatusTrigger`.
        """
        delete_checkpoint(self._ti)
        sensor = self._sensor
        sensor.ui_url = FollowProgress.from_json(event).url
        if event.get("reason") == "deadline":
            if sensor.kill_policy == "cancel":
                self.cancel()  # again, in case the trigger's cancel failed
            self.close()
            limit = sensor.execution_timeout
            is_of_task = limit is not None and limit.total_seconds() <= sensor.timeout
            raise (AirflowTaskTimeout if is_of_task else AirflowSensorTimeout)(str(event.get("text") or ""))
        with self:
            self._killer.check()
            progress = self._continued(event, self._handle)
            # If the trigger has shown lines, only those after them are new; if its log is lost, all are.
            skips_old = conf.getboolean("launch", "trigger_logs_last", fallback=True) and not progress.cursors
            with self._app_follow(progress, skips_old=skips_old) as app:
                response = app.run(until=time.monotonic() + sensor.timeout)
            if response is None:
                raise AirflowSensorTimeout(f"app {self._app_id} has not ended within {sensor.timeout:g} s")
            return self._outcome(response, app.tails)

    def cancel(self) -> None:
        """Cancel the app; no-op if it has ended."""
        try:
            self._scheduler.cancel(self._app_id)
        except LaunchError as error:
            self._log.error("app %s could not be cancelled: %s; cancel it, or it runs to its end", self._app_id, error)
        finally:
            self.close()

    def close(self) -> None:
        """Free the client."""
        self._hook.close()

    def _cancel_after(self, error: BaseException, *, is_killed: bool) -> None:  # noqa: ARG002 - see the base
        if is_killed and self._sensor.follow_options.may_cancel:
            self._scheduler.cancel(self._app_id)

    def _follow(self) -> tuple[DescribeAppResponse | None, Mapping[str, Sequence[str]]]:
        if self._sensor.mode == "reschedule":
            return self._follow_for_a_while()
        with self._app_follow(FollowProgress()) as app:
            return app.run(until=time.monotonic() + self._sensor.timeout), app.tails

    def _follow_for_a_while(self) -> tuple[DescribeAppResponse | None, Mapping[str, Sequence[str]]]:
        """Log the state and the new lines, and store the progress."""
        stored = self._stored()
        progress = FollowProgress.from_json({**stored, "tails": unpack(stored.get("tails"))})
        self._sensor.ui_url = progress.url
        quiet = _QuietPeriod()
        with self._app_follow(progress, is_part=True) as app:

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
            self._save(stored, progress)
        elif self._sensor.max_log_bytes is not None:
            # Show the last lines, which earlier runs left out.
            with self._app_follow(progress) as rest:
                rest.run()
                return response, rest.tails
        return response, app.tails

    def _stored(self) -> dict[str, Any]:
        """Return the values that the last run of this try has stored."""
        # A new try has a new log, which starts with the first line; the same try continues in the same log.
        scope = [self._handle, self._ti.try_number]
        stored: object = None if self._store is None else self._store.get(KEY, None)
        return dict(stored) if isinstance(stored, dict) and stored.get("scope") == scope else {"scope": scope}

    def _save(self, stored: dict[str, Any], progress: FollowProgress) -> None:
        kept: dict[str, Any] = {name: stored[name] for name in _KEPT if name in stored}
        kept |= progress.to_json()
        size = len(kept.get("cursors", ""))
        if size > MAX_PACKED:
            del kept["cursors"]
            size = 0
            self._log.warning("the app has too many replicas for the state store: lines may be shown twice")
        tails = pack(progress.tails)
        kept["tails"] = tails if size + len(tails) <= MAX_PACKED else None
        if self._store is not None:
            self._store.set(KEY, clean_json(kept))

    def _app_follow(self, progress: FollowProgress, *, skips_old: bool = True, is_part: bool = False) -> AppFollow:
        """Return a follower of the app that continues where an earlier part of the task has stopped."""
        # Secrets from templates stay unmasked here, because only the task that launched the app has fetched them.
        with contextlib.suppress(LaunchError):
            self._masked = register(kept_values(self._scheduler, self._app_id), self._log.warning)
        sensor = self._sensor
        is_known = bool(progress.state)
        options = dataclasses.replace(
            sensor.follow_options,
            # Only the first part skips old lines; replicas that appear later are shown whole.
            logs_from=sensor.logs_from if skips_old and not is_known else "start",
            poll_interval_s=None if is_part else sensor.follow_interval_s,
        )
        return self._follower(self._handle, options, progress, is_known=is_known, is_part=is_part)

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
            result = self._retry(result_of, self._scheduler, self._app_id, self._sensor.results)
            value = as_xcom(self._handle, response, result)
            self._push_app(value)
            return value
        error = self._failure(self._handle, response, tails)
        # With `soft_fail` Airflow turns this into a skip.
        raise FinalStateError(str(error))


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
