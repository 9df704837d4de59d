"""A deferral that Airflow refuses, since the task was ended just before: no trigger will ever follow its app."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.runner.orphans import GONE, OVER

if TYPE_CHECKING:
    from airflow_provider_launch.specs.owner import TaskKey


def cancel_if_refused(task: TaskKey, cancel: Callable[[str], object]) -> None:
    """Have `cancel(state)` called at the end of this process if the task is over by then, or its run was deleted.

    Airflow reports the deferral after `execute` has returned. It takes a refusal for a crash of its own, and calls
    nothing of the operator any more, but it does call listeners after the report (Airflow 3.2 and newer; before that
    nothing is called, and the reconciler finds the app).
    """
    with contextlib.suppress(ImportError):
        from airflow.listeners import hookimpl
        from airflow.sdk.listener import get_listener_manager

        class Listener:
            @hookimpl
            def before_stopping(self, component: Any) -> None:  # noqa: ARG002 - a hook of Airflow
                manager.pm.unregister(self)
                with contextlib.suppress(Exception):  # no answer: the reconciler finds the app
                    if (state := _state_of(task)) is not None:
                        cancel(state)

        manager = get_listener_manager()
        manager.add_listener(Listener())  # type: ignore[no-untyped-call]  # Airflow has no type here


def _state_of(task: TaskKey) -> str | None:
    """Return the state of a task that is over; None: it may be wanted."""
    from airflow_provider_launch.hooks.task_states import ask_states

    # Its run exists, for it has just run: a run that is not there was deleted.
    state = ask_states([task], lambda _dag, _run: True).get(task)
    return state if state in OVER or state == GONE else None
