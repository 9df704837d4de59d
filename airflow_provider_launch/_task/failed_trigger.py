"""A trigger that could not be created, or raised: the worker follows the app instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
