"""Following the app of an operator: its states and lines go into the task log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from airflow_provider_launch._task.follow_app import follow_app
from airflow_provider_launch._task.handover import Handover
from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow import Follower
from airflow_provider_launch.links.launch import show_ui
from airflow_provider_launch.schedulers.api import Stream
from airflow_provider_launch.specs.errors import UnknownOutcomeError
from airflow_provider_launch.specs.handles import parse_app_handle

if TYPE_CHECKING:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler

__all__ = ["follow", "follow_for"]


def follow(
    operator: LaunchAppOperator,
    ti: Any,
    scheduler: Scheduler[Any],
    handle: str,
    handover: Handover,
    *,
    is_new: bool,
    check: Callable[[], None],
    on_end: Callable[[DescribeAppResponse], object],
) -> tuple[DescribeAppResponse, Mapping[str, Sequence[str]]]:
    """Tell what happens until the app has ended; return how, and the last lines of each replica.

    Args:
        operator: says what is shown.
        ti: the task instance, whose links are filled.
        scheduler: where the app runs.
        handle: names the app.
        handover: what a trigger has told before.
        is_new: the app was launched by this try.
        check: raises to leave.
        on_end: called with how the app has ended, while the rest of its log is read.
    """
    limit = LogLimit(operator.max_log_bytes, handover.told)
    task_log = _task_log(operator, ti, handle, handover, limit)
    with _follower(operator, scheduler, handle, handover, is_new=is_new) as follower:
        try:
            response = follow_app(follower, task_log, check, on_end=on_end)
        finally:
            with contextlib.suppress(Exception):
                task_log.finish()
    if response is None:
        raise UnknownOutcomeError(f"following {handle!r} stopped before the app had ended")
    return response, task_log.tails


def follow_for(
    limit_s: float,
    operator: LaunchAppOperator,
    ti: Any,
    scheduler: Scheduler[Any],
    handle: str,
    *,
    is_new: bool,
    check: Callable[[], None],
) -> tuple[bool, Handover]:
    """Follow the app for at most `limit_s` seconds; return whether it has ended, and where another goes on.

    The other arguments are those of `follow`.
    """
    limit = LogLimit(operator.max_log_bytes)
    # Without the limit: it keeps last lines for the end, which another one shows.
    log = _task_log(operator, ti, handle, Handover(), None)
    with _follower(operator, scheduler, handle, Handover(), is_new=is_new) as follower:
        response = follow_app(follower, log, check, until=time.monotonic() + limit_s, limit=limit)
        places = follower.cursors
    return response is not None, Handover(
        places, log.last_state, log.masked_tails(), limit.told, log.attempts, log.url, log.began
    )


def _task_log(operator: LaunchAppOperator, ti: Any, handle: str, handover: Handover, limit: LogLimit | None) -> TaskLog:
    app_id = parse_app_handle(handle).app_id
    return TaskLog(operator.log, app_id, handover, on_url=lambda url: show_ui(operator, ti, url), limit=limit)


def _follower(
    operator: LaunchAppOperator, scheduler: Scheduler[Any], handle: str, handover: Handover, *, is_new: bool
) -> Follower:
    return Follower(
        scheduler,
        parse_app_handle(handle).app_id,
        app_handle=handle,
        poll_interval_s=operator.poll_interval_s,
        unavailable_for_s=operator.unavailable_for_s,
        log_roles=operator.log_roles,
        logs=operator.log_roles is None or len(operator.log_roles) > 0,
        streams=None if operator.streams is None else Stream(operator.streams),
        cursors=handover.places,
        logs_from=operator.logs_from,
        log_drain_s=conf.getfloat("launch", "log_drain_s", fallback=30.0),
        scheduled=is_new,
        known=True,
    )
