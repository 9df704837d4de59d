"""Functions of the DAG file that a task calls when its app starts, changes and ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.specs.statuses import AppStatus

Callback = Callable[["AppStatus"], object]


class Callbacks:
    """Calls the functions of one try of a task; their errors are logged, and change nothing.

    Args:
        on_start: called once when the app has started.
        on_event: called after each change of the state, and each end of an attempt.
        on_end: called once with the last status.
        log: takes the errors.
    """

    def __init__(
        self, on_start: Callback | None, on_event: Callback | None, on_end: Callback | None, log: logging.Logger
    ) -> None:
        self._on_start, self._on_event, self._on_end = on_start, on_event, on_end
        self._log = log
        self.has_started = False
        """Whether `on_start` was called, or an earlier part of the task has called it."""

    def changed(self, response: DescribeAppResponse) -> None:
        """Call `on_event`, and `on_start` before it if the app has started."""
        self._start(response)
        self._call("on_event", self._on_event, response)

    def ended(self, response: DescribeAppResponse) -> None:
        """Call `on_end`, and `on_start` before it if the app has run and ended between two polls."""
        self._start(response)
        self._call("on_end", self._on_end, response)

    def _start(self, response: DescribeAppResponse) -> None:
        if not self.has_started and _has_started(response):
            self.has_started = True
            self._call("on_start", self._on_start, response)

    def _call(self, name: str, function: Callback | None, response: DescribeAppResponse) -> None:
        if function is None:
            return
        try:
            function(response.to_status())
        except Exception:  # noqa: BLE001 - any function of the user
            self._log.exception("%s has failed, which does not change the task", name)


def _has_started(response: DescribeAppResponse) -> bool:
    if response.state in (AppState.RUNNING, AppState.SUCCEEDED):
        return True
    replicas = [replica for status in response.roles_statuses for replica in status.replicas]
    return is_terminal(response.state) and any(replica.exit_code is not None for replica in replicas)


def check_callback(name: str, value: object) -> None:
    """Refuse a value that is not a function.

    Raises:
        InvalidAppError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise InvalidAppError(f"{name}={value!r} must be a function that takes the status of the app")
