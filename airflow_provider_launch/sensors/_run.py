"""One look of an `AppStatusSensor` at its app."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import PokeReturnValue, conf
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
)

from airflow_provider_launch._task.arguments import check_streams
from airflow_provider_launch._task.cancel_on_kill import AppKilledError, CancelThread
from airflow_provider_launch._task.cursors import MAX_PACKED, pack, unpack
from airflow_provider_launch._task.follow_app import first_lines, follow_app
from airflow_provider_launch._task.handover import Handover
from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch._task.outcome import as_xcom, failure, handle_of
from airflow_provider_launch._task.retry_unavailable import retry_while_unavailable
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow import Follower
from airflow_provider_launch.follow.events import Ended, Event, LogLines, StateChanged, Unreachable
from airflow_provider_launch.follow.state_tracker import UNKNOWN_S
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.links.launch import show_ui
from airflow_provider_launch.schedulers.api import Capability, Stream
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.sensors.launch import AppStatusSensor

__all__ = ["SensorRun"]

T = TypeVar("T")

KEY = "launch_sensor"
# A look of mode "reschedule" ends when no line came for this long after the state was told.
_QUIET_S = 0.5
_LONGEST_LOOK_S = 60.0


class SensorRun:
    """Follows the app, to its end or for a moment.

    Args:
        sensor: what the DAG says, rendered.
        handle: as a trigger has found it. Empty: the sensor's.
    """

    def __init__(self, sensor: AppStatusSensor, *, handle: str = "") -> None:
        self._sensor = sensor
        self._handle = handle or handle_of(sensor.handle)
        if not self._handle:
            raise InvalidAppError(f"handle={sensor.handle!r} is neither a handle nor the XCom of a LaunchAppOperator")
        parsed = parse_app_handle(self._handle)
        self._app_id = parsed.app_id
        self._hook = self._hook_of(parsed.session_name)
        if self._hook.options.backend != parsed.scheduler_backend:
            raise InvalidAppError(
                f"{self._handle!r} is an app of scheduler {parsed.scheduler_backend!r}, "
                f"but connection {self._hook.launch_conn_id!r} means {self._hook.options.backend!r}"
            )
        check_streams(self._scheduler, sensor.streams)

    def _hook_of(self, session: str) -> LaunchHook:
        given = self._sensor.launch_conn_id
        try:
            return LaunchHook.for_connection(given or session)
        except AirflowNotFoundException as error:
            if given:
                raise
            raise AirflowNotFoundException(
                f"handle {self._handle!r} names the connection {session!r}: {error}; define it, or give launch_conn_id"
            ) from error

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def run(self, context: Context) -> PokeReturnValue:
        """Return done with the XCom, or not done yet; raise when the app did not succeed."""

        def look() -> PokeReturnValue:
            response, log = self._follow(context)
            self._check()
            if response is None:
                return PokeReturnValue(is_done=False)
            return PokeReturnValue(is_done=True, xcom_value=self._outcome(response, log))

        return self._guarded(look)

    def _guarded(self, work: Callable[[], T]) -> T:
        sensor = self._sensor
        may_cancel = sensor.kill_policy == "cancel"
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
            killer.close()
            self._hook.close()

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger has stopped, and return what XCom gets.

        Args:
            context: of the task.
            event: what `AppStatusTrigger` says.
        """
        why, text = (str(event.get(name) or "") for name in ("why", "text"))
        handover = Handover.from_json(event)
        # Else the link would be empty when this worker is done.
        self._sensor.ui_url = handover.url
        if why == "deadline":
            if self._sensor.kill_policy == "cancel":
                self.cancel()  # again, in case that of the trigger failed
            limit = self._sensor.execution_timeout
            is_of_task = limit is not None and limit.total_seconds() <= self._sensor.timeout
            raise (AirflowTaskTimeout if is_of_task else AirflowSensorTimeout)(text)
        if why == "unreachable":
            raise SchedulerUnavailableError(text)
        if why == "error":
            self._sensor.log.warning("the trigger has given up (%s); following %s here", text, self._handle)
        lasts = conf.getboolean("launch", "trigger_logs_last", fallback=True)
        handover = handover if lasts else Handover()
        log = self._task_log(context, handover, LogLimit(self._sensor.max_log_bytes, handover.told))

        def follow() -> dict[str, Any]:
            places = dict(handover.places)
            interval_s, known = self._sensor.follow_interval_s, bool(handover.state)
            # A trigger that has told a state has begun the log; and where its log is lost all of it is shown.
            is_first = lasts and not places and not known
            with self._follower(places, interval_s, is_first=is_first, known=known) as follower:
                response = follow_app(follower, log, self._check, until=time.monotonic() + self._sensor.timeout)
            if response is None:
                raise AirflowSensorTimeout(f"app {self._app_id} has not ended within {self._sensor.timeout:g} s")
            return self._outcome(response, log)

        return self._guarded(follow)

    def cancel(self) -> None:
        """Cancel the app; no-op for one that has ended."""
        try:
            self._scheduler.cancel(self._app_id)
        except LaunchError as error:
            self._sensor.log.error("app %s could not be cancelled: %s", self._app_id, error)  # noqa: TRY400 - its text says it all
        finally:
            self.close()

    def close(self) -> None:
        """Free the client."""
        self._hook.close()

    def _follow(self, context: Context) -> tuple[DescribeAppResponse | None, TaskLog]:
        if self._sensor.mode == "reschedule":
            return self._glance(context)
        log = self._task_log(context, Handover(), LogLimit(self._sensor.max_log_bytes))
        with self._follower({}, self._sensor.follow_interval_s) as follower:
            try:
                return follow_app(follower, log, self._check, until=time.monotonic() + self._sensor.timeout), log
            finally:
                with contextlib.suppress(Exception):
                    log.finish()

    def _glance(self, context: Context) -> tuple[DescribeAppResponse | None, TaskLog]:
        memory = self._remembered(context)
        told = Handover.from_json({**memory, "tails": unpack(memory.get("tails"))})
        self._sensor.ui_url = told.url
        log = self._task_log(context, told)
        limit = LogLimit(self._sensor.max_log_bytes, told.told)
        response: DescribeAppResponse | None = None
        known = bool(log.last_state)
        with self._follower(unpack(memory.get("cursors")), None, is_first=not known, known=known) as follower:
            moment = _QuietPeriod()
            for event in follower:
                self._check()
                if isinstance(event, Unreachable):
                    self._bear_outage(memory, event)
                # A log that fails must not change how the task ends.
                with contextlib.suppress(Exception):
                    log.tell(first_lines(event, limit, follower, log) if isinstance(event, LogLines) else event)
                if isinstance(event, Ended):
                    response = event.response
                if response is not None or (moment.is_over(event) and not follower.is_skipping):
                    break
            places = follower.cursors
            seen = follower.response
        if moment.is_state_known:
            memory.pop("unreachable_since", None)
            self._bear_unknown(memory, seen)
        if response is None:
            self._remember(context, memory, places, log, limit)
        elif limit.max_bytes is not None:
            log = self._tell_last_lines(context, places, limit, log)
        return response, log

    def _remembered(self, context: Context) -> dict[str, Any]:
        """Return what the last look of this try has kept."""
        store = context.get("task_state_store")
        # A new try has a new log, which begins at the start; the same try goes on in the same file.
        scope = [self._handle, context["ti"].try_number]
        stored: object = None if store is None else store.get(KEY, None)
        return dict(stored) if isinstance(stored, dict) and stored.get("scope") == scope else {"scope": scope}

    def _remember(
        self, context: Context, memory: dict[str, Any], places: dict[str, Any], log: TaskLog, limit: LogLimit
    ) -> None:
        memory |= {"state": log.last_state, "attempts": log.attempts, "url": log.url, "began": log.began}
        if limit.max_bytes is not None:
            memory["told"] = limit.told
        packed = pack(places)
        if len(packed) <= MAX_PACKED:
            memory["cursors"] = packed
        else:
            self._sensor.log.warning("the app has too many replicas for the state store: lines may be shown twice")
        tails = pack(log.masked_tails())
        memory["tails"] = tails if len(packed) + len(tails) <= MAX_PACKED else None
        store = context.get("task_state_store")
        if store is not None:
            store.set(KEY, memory)

    def _tell_last_lines(self, context: Context, places: dict[str, Any], limit: LogLimit, first: TaskLog) -> TaskLog:
        """Read what no look has shown, and show its last lines."""
        told = Handover({}, first.last_state, first.tails, {}, first.attempts, first.url, first.began)
        log = self._task_log(context, told, LogLimit(limit.max_bytes, limit.told))
        with self._follower(places, None, is_first=False) as follower:
            follow_app(follower, log, self._check)
        return log

    def _task_log(self, context: Context, told: Handover, limit: LogLimit | None = None) -> TaskLog:
        sensor = self._sensor
        return TaskLog(
            sensor.log,
            self._app_id,
            told,
            on_url=lambda url: show_ui(sensor, context["ti"], url),
            limit=limit,
        )

    def _bear_outage(self, memory: dict[str, Any], event: Unreachable) -> None:
        since = memory.setdefault("unreachable_since", time.time())
        if time.time() - since >= self._sensor.unavailable_for_s:
            raise SchedulerUnavailableError(str(event.error)) from event.error

    def _bear_unknown(self, memory: dict[str, Any], seen: DescribeAppResponse | None) -> None:
        """A follower gives up by itself, but each look has another one."""
        if seen is None or seen.state != AppState.UNKNOWN:
            memory.pop("unknown_since", None)
            return
        since = memory.setdefault("unknown_since", time.time())
        if time.time() - since >= min(UNKNOWN_S, self._sensor.unavailable_for_s):
            raise UnknownOutcomeError(f"how {self._handle!r} ended cannot be known: {seen.msg}")

    def _follower(
        self, cursors: dict[str, Any], interval_s: float | None, *, is_first: bool = True, known: bool = False
    ) -> Follower:
        sensor = self._sensor
        return Follower(
            self._scheduler,
            self._app_id,
            app_handle=self._handle,
            poll_interval_s=interval_s,
            unavailable_for_s=sensor.unavailable_for_s,
            log_roles=sensor.log_roles,
            logs=sensor.log_roles is None or len(sensor.log_roles) > 0,
            streams=None if sensor.streams is None else Stream(sensor.streams),
            cursors=cursors,
            # Only the first look skips; replicas which appear later are shown whole.
            logs_from=sensor.logs_from if is_first else "start",
            log_drain_s=conf.getfloat("launch", "log_drain_s", fallback=30.0),
            known=known,
        )

    def _outcome(self, response: DescribeAppResponse, log: TaskLog) -> dict[str, Any]:
        if response.state == AppState.SUCCEEDED:
            return as_xcom(self._handle, response, self._result())
        error = failure(self._handle, response, log.tails)
        # Another try would find the same end; for `soft_fail` this is the error that Airflow turns into a skip.
        raise AirflowFailException(str(error)) from error

    def _result(self) -> Any:
        if Capability.RESULT not in self._scheduler.capabilities:
            return None
        return retry_while_unavailable(
            lambda: self._scheduler.result(self._app_id),
            self._check,
            unavailable_for_s=self._sensor.unavailable_for_s,
            tell=self._sensor.log.warning,
        )

    def _check(self) -> None:
        if self._sensor._killed:  # noqa: SLF001 - set by its `on_kill`
            raise AppKilledError("the task was killed")


class _QuietPeriod:
    """Tells when a look has seen what there is: a state, or none to be had, and no more lines for a while."""

    def __init__(self) -> None:
        self.is_state_known = False
        self._is_told = self._has_ended = False
        self._ends = time.monotonic() + _LONGEST_LOOK_S
        self._last_line = time.monotonic()

    def is_over(self, event: Event) -> bool:
        now = time.monotonic()
        if isinstance(event, LogLines):
            self._last_line = now
        if isinstance(event, StateChanged):
            self.is_state_known = self._is_told = True
            self._has_ended = is_terminal(event.new)
            self._last_line = now
        if isinstance(event, Unreachable):
            self._is_told = True
        if self._has_ended:
            # The follower bounds the wait for the rest of the log, and another look would begin it anew.
            return False
        return now >= self._ends or (self._is_told and now - self._last_line >= _QUIET_S)
