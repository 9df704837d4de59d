"""Translates errors of the launcher into exceptions that Airflow handles."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch._airflow import AirflowFailException, AirflowSensorTimeout, AirflowTaskTimeout
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError
from airflow_provider_launch.specs.secrets import masked_error

log = logging.getLogger(__name__)


class FinalAppError(AirflowFailException, InvalidAppError):
    """The app, its options or the connection are wrong: the task ends without further tries."""


class FinalStateError(AirflowFailException):
    """The app has ended without a success, and another try of a sensor would find the same end."""


class final_errors:  # noqa: N801 - used like a function; a generator would restore the traceback
    """Fail without retries on `InvalidAppError`, which needs a change of the DAG or the connection.

    Cuts the traceback of errors whose text is the whole explanation, also at a kill or an outage, because our code does
    not help the reader. It is logged with level debug.

    Args:
        task_id: named in errors of DAG parsing, because Airflow's import error does not name the task.
    """

    def __init__(self, task_id: str = "") -> None:
        self._task_id = task_id

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise the error with which the task ends."""
        if isinstance(error, Exception):
            # Imported here, because most tasks of a DAG file have no error.
            from airflow_provider_launch._task.secrets import register_error

            register_error(error)
        if isinstance(error, InvalidAppError) and not isinstance(error, FinalAppError):
            # The message names the problem, the object and the fix.
            text = masked_error(str(error))
            raise FinalAppError(f"task {self._task_id!r}: {text}" if self._task_id else text) from None
        if isinstance(error, (FinalAppError, FinalStateError, LaunchError, AirflowTaskTimeout, AirflowSensorTimeout)):
            log.debug("the task ends with this error", exc_info=error)
            raise _without_frames(error)


def _without_frames(error: BaseException) -> BaseException:
    """Return the error; neither it nor its causes have a traceback."""
    each: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if each is None:
            break
        each.__traceback__ = None
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


_MOST_CAUSES = 20
"""A chain of causes may be a circle."""


# Values of `airflow.sdk.bases.operator`: TRIGGER_FAIL_REPR and TriggerFailureReason.TRIGGER_TIMEOUT.
_FAIL = "__fail__"
_TIMEOUT = "Trigger timeout"


def event_of_failure(next_method: str, next_kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an event of `AppStatusTrigger` with which the task resumes; None if the trigger has not failed.

    A triggerer with another version of this package may not know the class of the trigger. Airflow then resumes the
    task with arguments that make its operators raise, although the app is still running.
    """
    kwargs = next_kwargs or {}
    error = kwargs.get("error", "unknown error")
    error = str(getattr(error, "value", error))
    if next_method != _FAIL or error == _TIMEOUT:
        return None
    trace = kwargs.get("traceback") or []
    lines = "".join(map(str, trace)).strip().splitlines() if isinstance(trace, (list, tuple)) else []
    return {"handle": "", "reason": "error", "text": f"{error}: {lines[-1][:500]}" if lines else error}
