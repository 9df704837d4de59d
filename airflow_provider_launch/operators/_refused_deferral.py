"""Cancels the app of a task if Airflow refuses to defer the task, because then no trigger follows the app."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch.runner.orphans import GONE, OVER
from airflow_provider_launch.specs.errors import LaunchError
from airflow_provider_launch.specs.handles import parse_app_handle

if TYPE_CHECKING:
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.specs.owner import TaskKey


def cancel_if_refused(task: TaskKey, handle: str, hook: LaunchHook, log: Any) -> None:
    """Cancel the app at the end of this process if the task is over by then, or its run was deleted.

    Airflow sends the deferral to its API after `execute` has returned. If the API refuses it, Airflow does not call the
    operator again, but it calls listeners when the process stops.
    """
    with contextlib.suppress(ImportError):
        from airflow.listeners import hookimpl
        from airflow.sdk.listener import get_listener_manager

        class Listener:
            @hookimpl
            def before_stopping(self, component: Any) -> None:  # noqa: ARG002 - a hook of Airflow
                manager.pm.unregister(self)
                with contextlib.suppress(Exception):  # on an error the reconciler finds the app
                    if (state := _state_of(task)) is not None:
                        _cancel(state, handle, hook, log)

        manager = get_listener_manager()
        manager.add_listener(Listener())  # type: ignore[no-untyped-call]  # Airflow has no type here


def _state_of(task: TaskKey) -> str | None:
    """Return the state of a task that is over; None if the task may still need its app."""
    from airflow_provider_launch.hooks.task_states import ask_states

    # The task has just run, so if its run does not exist, it was deleted.
    state = ask_states([task], lambda _dag, _run: True).get(task)
    return state if state in OVER or state == GONE else None


def _cancel(state: str, handle: str, hook: LaunchHook, log: Any) -> None:
    scheduler = hook.new_scheduler()
    try:
        scheduler.cancel(parse_app_handle(handle).app_id)
    except LaunchError as error:
        log.error("the task is %s, but %s could not be cancelled: %s", state, handle, error)  # noqa: TRY400 - the text is enough
    else:
        log.warning("the task is %s, so its deferral was refused; %s is cancelled", state, handle)
        metrics.count_cancelled(hook.options.backend)
    finally:
        scheduler.close()
