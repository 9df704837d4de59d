"""Cancels the app of a task that stops unexpectedly, if Airflow reports that the task no longer needs it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch.runner.orphans import GONE, OVER
from airflow_provider_launch.specs.errors import LaunchError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.owner import TaskKey
from airflow_provider_launch.triggers.checkpoint import was_cleared

if TYPE_CHECKING:
    from airflow_provider_launch.hooks.launch import LaunchHook


def cancel_if_refused(ti: Any, handle: str, hook: LaunchHook, log: Any) -> None:
    """Cancel the app at the end of this process if the task is over or cleared by then, or its run was deleted.

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
                    if reason := _reason_for_end(ti):
                        _cancel(f"{reason}, so its deferral was refused", handle, hook, log)

        manager = get_listener_manager()
        manager.add_listener(Listener())  # type: ignore[no-untyped-call]  # Airflow has no type here


def cancel_if_over(ti: Any, handle: str, hook: LaunchHook, log: Any) -> None:
    """Cancel the app of a task that has failed while the app runs, if the task is over or cleared, or its run deleted.

    Airflow refuses every request of such a task, so the task fails with an error that looks like any other. The
    reconciler cannot help if it has not seen the run, which may be deleted seconds after its start.
    """
    with contextlib.suppress(Exception):  # on an error the reconciler finds the app
        if reason := _reason_for_end(ti):
            _cancel(reason, handle, hook, log)


def _reason_for_end(ti: Any) -> str:
    """Return what has happened to a task that no longer needs its app; empty if it may still need it."""
    from airflow_provider_launch.hooks.task_states import ask_states

    task = TaskKey.of(ti)
    # The task has just run, so if its run does not exist, it was deleted.
    states = ask_states([task], lambda _dag, _run: True)
    if task not in states:
        return ""
    state = states[task]
    if state in OVER or state == GONE:
        return f"the task is {state}"
    # Only a clear makes this state, and this is the process that it ends.
    return "the task was cleared" if state == "restarting" or was_cleared(ti, state) else ""


def _cancel(reason: str, handle: str, hook: LaunchHook, log: Any) -> None:
    scheduler = hook.new_scheduler()
    try:
        scheduler.cancel(parse_app_handle(handle).app_id)
    except LaunchError as error:
        text = "%s, but %s could not be cancelled: %s; cancel it, or it runs to its end"
        log.error(text, reason, handle, error)  # noqa: TRY400 - the text is enough
    else:
        log.warning("%s; %s is cancelled", reason, handle)
        metrics.count_cancelled(hook.options.backend)
    finally:
        scheduler.close()
