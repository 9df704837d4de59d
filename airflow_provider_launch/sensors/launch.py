"""`AppStatusSensor`: waits for an app that was launched elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_launch.links.launch import (
    JobDefinitionLink,
    LauncherLink,
    QueueLink,
    SchedulerLink,
    SchedulerLogLink,
)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch.sensors._run import SensorRun

# The core is imported where it is used, because each parse of each DAG file pays for the imports at the top.

__all__ = ["AppStatusSensor"]

_MIN_RESCHEDULE_S = 5.0
_TRIGGER = "airflow_provider_launch.triggers.launch.AppStatusTrigger"


class AppStatusSensor(BaseSensorOperator):
    """Waits until an app has ended, and succeeds only if the app has succeeded.

    The task log shows states and lines of all replicas; `return_value` is that of `LaunchAppOperator`.
    A failed or cancelled app fails the sensor without retries, because it can no longer succeed.

    In mode "poke" the app is followed without a break. In mode "reschedule" the worker is free between two polls,
    and the log continues where it stopped.

    Args:
        handle: `backend://connection/app_id`, or the XCom of a `LaunchAppOperator`. Template.
        launch_conn_id: the connection, or a list of connections that the handle may name. None: any. Set it if others
            choose the handle, because a sensor shows the lines of the app. Template.
        poke_interval: seconds between two polls. None: the scheduler's default; in mode "reschedule" 60, at least 5.
        streams: "stdout", "stderr" or "combined". None: all that the scheduler has.
        log_roles: roles whose lines are shown. None: all roles; empty: no lines.
        log_replicas: numbers of the replicas of each role whose lines are shown. None: all.
        stderr_level: level of lines of stderr in the task log: "warning", "info", or "line".
        logs_from: "start", or "now" to skip the lines before the first poll.
        max_log_bytes: bytes of log shown per replica; of a longer log, the first and the last half of it. None: all.
        on_kill: "leave", or "cancel": a killed sensor cancels the app.
        unavailable_for_s: seconds to retry while the scheduler is unreachable.
        results: "first" returns the result of the lowest replica of the first role that wrote one, "all" a list of the
            results of all its replicas.
        deferrable: True waits in the triggerer in any mode, from the start if a worker has nothing to render. None:
            `[operators] default_deferrable`.
        kwargs: keyword arguments of `BaseSensorOperator`.
    """

    template_fields: Sequence[str] = ("handle", "launch_conn_id")
    operator_extra_links = (
        SchedulerLink(),
        JobDefinitionLink(),
        QueueLink(),
        SchedulerLogLink(),
        LauncherLink(),
    )
    ui_color = "#d9ecf2"

    def __init__(
        self,
        *,
        handle: str | Mapping[str, Any] | XComArg,
        launch_conn_id: str | Sequence[str] | None = None,
        poke_interval: timedelta | float | None = None,
        streams: str | None = None,
        log_roles: Sequence[str] | None = None,
        log_replicas: Sequence[int] | None = None,
        stderr_level: str = "warning",
        logs_from: str = "start",
        max_log_bytes: int | None = None,
        on_kill: str = "leave",
        unavailable_for_s: float = 600,
        results: str = "first",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        from airflow_provider_launch._task.options import default_deferrable

        super().__init__(poke_interval=60 if poke_interval is None else poke_interval, **kwargs)
        self.handle = handle
        self.launch_conn_id = list(launch_conn_id) if isinstance(launch_conn_id, (list, tuple)) else launch_conn_id
        self.streams = streams
        self.log_roles = log_roles
        self.log_replicas = log_replicas
        self.stderr_level = stderr_level
        self.logs_from = logs_from
        self.max_log_bytes = max_log_bytes
        self.kill_policy = on_kill
        self.unavailable_for_s = unavailable_for_s
        self.results = results
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.follow_interval_s = None if poke_interval is None else float(self.poke_interval)
        self.ui_url: str | None = None
        self.ui_pages: Mapping[str, str] = {}
        self.launched_by = handle.operator.task_id if isinstance(handle, PlainXComArg) else None
        self._killed = False
        self._killer: CancelThread | None = None
        from airflow_provider_launch._task.errors import final_errors

        with final_errors(self.task_id):
            self._check_arguments()
        from airflow_provider_launch._task.options import conn_ids

        starts_there = (
            self.deferrable and self.execution_timeout is None and all(map(_is_plain, conn_ids(launch_conn_id)))
        )
        resolvable = _resolvable_handle(handle) if starts_there else None
        if resolvable is not None:
            from airflow.triggers.base import StartTriggerArgs

            # Start in the triggerer, because a worker has nothing to do before the app has ended.
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls=_TRIGGER, trigger_kwargs=self._trigger_kwargs(resolvable), next_method="resume"
            )
            self.start_from_trigger = True

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the sensor with some of its arguments; `expand` adds the others for each mapped task."""
        from airflow_provider_launch._task.mapped import partial_class

        made = super().partial(**kwargs)
        made.__class__ = partial_class(type(made))  # type: ignore[arg-type]
        return made

    def _check_arguments(self) -> None:
        from airflow_provider_launch._task.options import check_results
        from airflow_provider_launch.specs.errors import InvalidAppError

        self.follow_options.check()
        check_results(self.results)
        if not self.deferrable and self.mode == "reschedule" and self.poke_interval < _MIN_RESCHEDULE_S:
            raise InvalidAppError(
                f"poke_interval={self.poke_interval:g} is too short for mode 'reschedule': Airflow then loses track of "
                f"the task; use at least {_MIN_RESCHEDULE_S:g} seconds, or mode 'poke'"
            )

    def execute(self, context: Context) -> Any:
        """Wait as configured, and return the XCom value."""
        from airflow_provider_launch._task.errors import final_errors

        # Once more, because the frames below would be shown above the user's error.
        with final_errors():
            return self._deferred(context) if self.deferrable else self._execute_here(context)

    def _deferred(self, context: Context) -> NoReturn:
        from airflow_provider_launch._airflow import TaskDeferred, conf
        from airflow_provider_launch._task.outcome import handle_of
        from airflow_provider_launch._task.progress import FIRE_AFTER_S
        from airflow_provider_launch.triggers.checkpoint import create_checkpoint
        from airflow_provider_launch.triggers.launch import AppStatusTrigger

        # Raise errors of handle or connection now.
        self._started(context).close()
        limits = [self.timeout, *([self.execution_timeout.total_seconds()] if self.execution_timeout else [])]
        kwargs = {
            **self._trigger_kwargs(handle_of(self.handle)),
            "timeout_s": min(limits),
            "fire_after_s": conf.getfloat("launch", "trigger_fire_after_s", fallback=FIRE_AFTER_S),
        }
        create_checkpoint(context["ti"])
        raise TaskDeferred(trigger=AppStatusTrigger(**kwargs), method_name="resume")

    def _execute_here(self, context: Context) -> Any:
        from airflow_provider_launch._airflow import AirflowSensorTimeout, AirflowSkipException

        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            if isinstance(error, AirflowSkipException):
                self._log_skip(error)
            # A timeout becomes a skip with `soft_fail`. Cancelling is a no-op if the app has ended.
            if self.kill_policy == "cancel":
                self._started(context).cancel()
            raise

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume a deferred task; if its trigger failed, follow the app here."""
        from airflow_provider_launch._task.errors import event_of_failure, final_errors

        event = event_of_failure(next_method, next_kwargs)
        # Once more, because the frames below would be shown above the user's error.
        with final_errors():
            if event is not None:
                return self.resume(context, event)
            return super().resume_execution(next_method, next_kwargs, context)

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Finish a deferred sensor like `poke`: log the rest, and return or raise the outcome.

        Without an event Airflow has resumed a task that was cleared meanwhile; then this is `execute`.
        """
        if event is None:
            return self.execute(context)
        from airflow.sdk.exceptions import AirflowException

        from airflow_provider_launch._airflow import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout
        from airflow_provider_launch._task.cancel_on_kill import AppKilledError
        from airflow_provider_launch._task.errors import final_errors

        try:
            with final_errors():
                return self._started(context, str(event.get("handle") or "")).resume(event)
        except (AirflowException, AppKilledError) as error:
            if isinstance(error, AirflowSensorTimeout) and (self.soft_fail or self.never_fail):
                self._log_skip(error)
            raise
        # Around `poke` Airflow turns these two into a skip itself, but not here.
        except AirflowTaskTimeout as error:
            if self.soft_fail or self.never_fail:
                self._log_skip(error)
                raise AirflowSkipException(str(error)) from error
            raise
        except Exception as error:
            if self.never_fail:
                self._log_skip(error)
                raise AirflowSkipException(str(error)) from error
            raise

    def _log_skip(self, error: BaseException) -> None:
        # Airflow itself logs only "Skipping task.".
        self.log.warning("the sensor is skipped: %s", error)

    @property
    def follow_options(self) -> FollowOptions:
        """How the app is followed, as far as it is rendered."""
        from airflow_provider_launch._task.options import FollowOptions

        return FollowOptions(
            self.launch_conn_id,
            self.follow_interval_s,
            self.unavailable_for_s,
            self.streams,
            self.log_roles,
            self.logs_from,
            self.max_log_bytes,
            self.kill_policy,
            log_replicas=self.log_replicas,
            stderr_level=self.stderr_level,
        )

    def _trigger_kwargs(self, handle: str | list[str]) -> dict[str, Any]:
        return {
            "handle": handle,
            "timeout_s": float(self.timeout),
            "cancels_at_deadline": self.kill_policy == "cancel",
            **self.follow_options.to_json(),
        }

    def poke(self, context: Context) -> PokeReturnValue:
        """Follow the app: to its end in mode "poke", otherwise until its state and its new lines are logged."""
        from airflow_provider_launch._task.cancel_on_kill import AppKilledError
        from airflow_provider_launch._task.errors import final_errors

        try:
            with final_errors():
                return self._started(context).run()
        except AppKilledError as error:
            # With `silent_fail` and `never_fail` Airflow would treat the error as a failed check and continue.
            raise SystemExit(str(error)) from error

    def _started(self, context: Context, handle: str = "") -> SensorRun:
        """Return a run that `on_kill` reaches."""
        from airflow_provider_launch._task.cancel_on_kill import CancelThread
        from airflow_provider_launch.sensors._run import SensorRun

        self._killer = killer = CancelThread()
        if self._killed:
            killer.fire()
        return SensorRun(self, context, killer, handle=handle)

    def on_kill(self) -> None:
        """Mark the task as killed, and cancel the app if asked to; called in a signal handler."""
        self._killed = True
        if self._killer is not None:
            self._killer.fire()


def _resolvable_handle(handle: object) -> str | list[str] | None:
    """Return a handle that the trigger can resolve itself: a text, or task id and key of an unmapped task's XCom."""
    if isinstance(handle, str) and _is_plain(handle):
        return handle
    if not isinstance(handle, PlainXComArg):
        return None
    task = handle.operator
    is_one_of_many = task.is_mapped or task.get_closest_mapped_task_group() is not None
    return None if is_one_of_many else [task.task_id, handle.key]


def _is_plain(value: object) -> bool:
    """Return whether it is text without a template, because a triggerer cannot look up XComs in templates."""
    return isinstance(value, str) and "{" not in value
