"""Follow an app in a shell: its states on stderr, its lines where the command wants them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_launch.cli.apps import state_text
from airflow_provider_launch.follow.events import AttemptEnded, Ended, LogGap, LogLines, Reached, StateChanged
from airflow_provider_launch.follow.events import Unreachable as NotReached
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.logs import last_refresh
from airflow_provider_launch.specs.errors import UnknownOutcomeError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.util.untrusted import one_line

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, LogLine, Scheduler, Stream
    from airflow_provider_launch.specs.states import AppState

Show = Callable[[str, int, "LogLine"], None]
"""Takes role, number of the replica, and a line of it."""
_UNREACHABLE_S = 600.0


def follow(
    scheduler: Scheduler[Any],
    handle: str,
    output: Output,
    *,
    logs: bool,
    show: Show | None = None,
    streams: Stream | None = None,
    roles: tuple[str, ...] | None = None,
    cursors: Mapping[str, JsonValue] | None = None,
    is_new: bool = False,
) -> DescribeAppResponse:
    """Return the last description of an app, once it has ended; show its states on the way, with `logs` its lines.

    `show` shows a line, otherwise on stderr with its replica; `cursors` are where to continue, by `role/k`. With
    `is_new` the caller has just launched it.

    Raises:
        UnknownAppException: the scheduler does not know the app.
        SchedulerUnavailableError: it was not reached for ten minutes.
        UnknownOutcomeError: the record of the app vanished.
    """
    app_id = parse_app_handle(handle).app_id
    states = _States(app_id, output)
    show = show or (lambda role, k, line: show_line(output, role, k, line, to=sys.stderr))
    with Follower(
        scheduler,
        app_id,
        app_handle=handle,
        unavailable_for_s=_UNREACHABLE_S,
        logs=logs,
        streams=streams,
        log_roles=roles,
        cursors=cursors,
        scheduled=is_new,
        known=is_new,
    ) as events:
        for event in events:
            if isinstance(event, LogLines):
                for line in event.lines:
                    show(event.role, event.replica, line)
                output.flush()
            elif isinstance(event, Ended):
                # Not at the change of the state: the last lines come before the end.
                states.end(event.response)
                return event.response
            else:
                states.show(event)
    raise UnknownOutcomeError(f"the outcome of {handle} is not known")


def show_line(output: Output, role: str, k: int, line: LogLine, *, to: TextIO | None = None) -> None:
    """Write a line of a replica with its prefix, as the task log does."""
    key = f"{role}/{k}"
    text = line.text.removesuffix("\n") if "\r" not in line.text else last_refresh(line.text)
    output.line(key, f"{key} {line.container}" if line.container else key, text, to=to)


class _States:
    """Writes each state once."""

    def __init__(self, name: str, output: Output) -> None:
        self._name = name
        self._output = output
        self._last = ""

    def show(self, event: object) -> None:
        if isinstance(event, StateChanged) and not is_terminal(event.new):
            self._write(event.new, event.response)
        elif isinstance(event, AttemptEnded):
            ending = one_line(event.ending or "cause unknown")
            self._output.note(f"[{event.role}/{event.replica}] --- attempt {event.attempt} ended: {ending} ---")
        elif isinstance(event, LogGap):
            self._output.note(f"warning: log: {event.message}")
        elif isinstance(event, NotReached):
            self._output.note(f"warning: the scheduler does not answer, asking again: {event.error}")
        elif isinstance(event, Reached):
            self._output.note(f"the scheduler answers again after {event.after_s:.0f} s")

    def end(self, response: DescribeAppResponse) -> None:
        self._write(response.state, response)

    def _write(self, state: AppState, response: DescribeAppResponse) -> None:
        text = state_text(response)
        if text == self._last:
            return
        self._last = text
        now = time.strftime("%H:%M:%S")
        self._output.note(f"{now} {self._name}: {self._output.state(str(state))}{text.removeprefix(str(state))}")
