"""Errors of the launcher, as Airflow understands them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_launch.specs.errors import AppNotStartedError, AppStatusError, InvalidAppError


class FinalAppError(AirflowFailException, InvalidAppError):
    """The app, its options or the connection are wrong: the task ends without further tries."""


class final_errors:  # noqa: N801 - used like a function; a generator would restore the traceback
    """Let an `InvalidAppError`, which only a change of DAG or connection can mend, end the task without retries.

    The traceback of what the author of DAG or program has to mend begins here: where it was noticed does not help them.

    Args:
        task_id: named in the text, while the DAG is parsed: of an import error Airflow shows only lines of ours.
    """

    def __init__(self, task_id: str = "") -> None:
        self._task_id = task_id

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise what the task is to end with."""
        if isinstance(error, InvalidAppError) and not isinstance(error, FinalAppError):
            # The text states what, which and how to mend it.
            raise FinalAppError(f"task {self._task_id!r}: {error}" if self._task_id else str(error)) from None
        if isinstance(error, (FinalAppError, AppStatusError, AppNotStartedError)):
            raise error.with_traceback(None)


# Values of `airflow.sdk.bases.operator`: TRIGGER_FAIL_REPR and TriggerFailureReason.TRIGGER_TIMEOUT.
_FAIL = "__fail__"
_TIMEOUT = "Trigger timeout"


def event_of_failure(next_method: str, next_kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an event of `AppStatusTrigger` with which the task resumes; None: the trigger has not failed.

    A triggerer of another version may not know the class of the trigger. Airflow then has the task fail, by arguments
    that its operators take for an order to raise; the app runs all the same.
    """
    kwargs = next_kwargs or {}
    error = kwargs.get("error", "unknown error")
    error = str(getattr(error, "value", error))
    if next_method != _FAIL or error == _TIMEOUT:
        return None
    trace = kwargs.get("traceback") or []
    lines = "".join(map(str, trace)).strip().splitlines() if isinstance(trace, (list, tuple)) else []
    return {"handle": "", "why": "error", "text": f"{error}: {lines[-1][:500]}" if lines else error}
