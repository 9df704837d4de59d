"""`AppStatusSensor`: waits for an app that was launched elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg

from airflow_provider_launch.links.launch import SchedulerLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.hooks.killing import Killer

# The core is imported where it is used: each parse of each DAG file pays for what is imported here.

__all__ = ["AppStatusSensor"]

_MIN_RESCHEDULE_S = 5.0
_STREAMS = ("stdout", "stderr", "combined")


class AppStatusSensor(BaseSensorOperator):
    """Waits until an app has ended, and succeeds only if it was seen to succeed.

    States and lines of all replicas stand in the task log; `return_value` is that of `LaunchAppOperator`.
    A failed or cancelled app fails the sensor without retries: it cannot succeed any more.

    In mode "poke" the app is followed without a break. In mode "reschedule" the worker is free between two looks,
    and the log goes on where it was.

    Args:
        handle: `backend://connection/app_id`, or the XCom of a `LaunchAppOperator`. Template.
        launch_conn_id: the connection. None: the one that the handle names. Template.
        poke_interval: seconds between two looks. None: what suits the scheduler; in mode "reschedule" 60, at least 5.
        streams: "stdout", "stderr" or "combined". None: all that the scheduler has.
        log_roles: whose lines are shown. None: all roles; empty: no lines.
        logs_from: "start", or "now": without the lines of before the first look.
        on_kill: "leave", or "cancel": a killed sensor cancels the app.
        unavailable_for_s: how long a scheduler out of reach is borne.
        kwargs: those of `BaseSensorOperator`.
    """

    template_fields: Sequence[str] = ("handle", "launch_conn_id")
    operator_extra_links = (SchedulerLink(),)
    ui_color = "#d9ecf2"

    def __init__(
        self,
        *,
        handle: str | Mapping[str, Any] | XComArg,
        launch_conn_id: str | None = None,
        poke_interval: timedelta | float | None = None,
        streams: str | None = None,
        log_roles: Sequence[str] | None = None,
        logs_from: str = "start",
        on_kill: str = "leave",
        unavailable_for_s: float = 600,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=60 if poke_interval is None else poke_interval, **kwargs)
        self.handle = handle
        self.launch_conn_id = launch_conn_id
        self.streams = streams
        self.log_roles = log_roles
        self.logs_from = logs_from
        self.kill_policy = on_kill
        self.unavailable_for_s = unavailable_for_s
        self.follow_interval_s = None if poke_interval is None else float(self.poke_interval)
        self.ui_url: str | None = None
        self._killed = False
        self._killer: Killer | None = None
        self._check_arguments()

    def _check_arguments(self) -> None:
        from airflow_provider_launch.specs.errors import InvalidAppError

        for name, value, allowed in (
            ("logs_from", self.logs_from, ("start", "now")),
            ("on_kill", self.kill_policy, ("cancel", "leave")),
            ("streams", self.streams, (None, *_STREAMS)),
        ):
            if value not in allowed:
                raise InvalidAppError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
        if self.mode == "reschedule" and self.poke_interval < _MIN_RESCHEDULE_S:
            raise InvalidAppError(
                f"poke_interval={self.poke_interval:g} is too short for mode 'reschedule': Airflow then loses track of "
                f"the task; use at least {_MIN_RESCHEDULE_S:g} seconds, or mode 'poke'"
            )

    def poke(self, context: Context) -> PokeReturnValue:
        """Follow the app: to its end in mode "poke", else until its state and its new lines are told."""
        from airflow_provider_launch.hooks.errors import final_errors
        from airflow_provider_launch.sensors.looking import Look

        with final_errors():
            return Look(self).run(context)

    def on_kill(self) -> None:
        """Mark the task as killed, and cancel the app if asked to; called in a signal handler."""
        self._killed = True
        if self._killer is not None:
            self._killer.fire()
