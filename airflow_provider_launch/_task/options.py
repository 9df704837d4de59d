"""Arguments that operator, sensor and trigger share, checked when the DAG is parsed."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_provider_launch._task.log_limit import check_max_log_bytes
from airflow_provider_launch.schedulers.logs import Stream
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.handles import make_app_handle

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.handles import ParsedAppHandle
    from airflow_provider_launch.specs.roles import AppDef

DELETE_SUCCEEDED = "delete_succeeded"
_ON_FINISH = ("keep", DELETE_SUCCEEDED, "delete")
_RESULTS = ("first", "all")
STDERR_LEVELS = ("warning", "info", "line")
_STREAMS = ("stdout", "stderr", "combined")


@dataclass(frozen=True)
class FollowOptions:
    """How a task follows its app. Operator, sensor and trigger document each field."""

    launch_conn_id: str | Sequence[str] | None = None
    """None: the connection that the handle names; a list: only these are allowed."""
    poll_interval_s: float | None = None
    """Seconds between status polls. None: the scheduler's default."""
    unavailable_for_s: float = 600.0
    """Seconds to keep retrying while the scheduler is unreachable."""
    streams: str | None = None
    """"stdout", "stderr" or "combined". None: all that the scheduler has."""
    log_roles: Sequence[str] | None = None
    """Roles whose lines are shown. None: all roles; empty: no lines."""
    logs_from: str = "start"
    """"start", or "now" to skip older lines."""
    max_log_bytes: int | None = None
    """Log bytes shown per replica: the first and the last half of it. None: all."""
    kill_policy: str = "cancel"
    """"cancel" or "leave": what happens to the app when a user ends the task."""
    watches_start: bool = False
    """Whether an app that cannot start is an error after a minute."""
    start_limit_s: float | None = None
    """Seconds within which the app must have started. None: no limit."""
    log_replicas: Sequence[int] | None = None
    """Numbers of the replicas of each role whose lines are shown. None: all."""
    stderr_level: str = "warning"
    """Level of lines of stderr in the task log: "warning", "info", or "line": as the line itself states."""
    silence_limit_s: float | None = None
    """Seconds without a line of any replica after which the app counts as hanging and is cancelled. None: no limit."""

    def check(self) -> None:
        """Refuse invalid options, which would otherwise show only when the app is followed, or never.

        Raises:
            InvalidAppError: an option has a wrong type or value; the text names it.
        """
        for name, value, allowed in (
            ("logs_from", self.logs_from, ("start", "now")),
            ("on_kill", self.kill_policy, ("cancel", "leave")),
            ("streams", self.streams, (None, *_STREAMS)),
            ("stderr_level", self.stderr_level, STDERR_LEVELS),
        ):
            if value not in allowed:
                raise InvalidAppError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
        check_max_log_bytes(self.max_log_bytes)
        check_seconds("unavailable_for_s", self.unavailable_for_s, may_be_0=True)
        # A text may be empty: a step that another operator runs needs no connection.
        if not isinstance(self.launch_conn_id, (str, type(None))) and not conn_ids(self.launch_conn_id):
            raise InvalidAppError(
                f"launch_conn_id={self.launch_conn_id!r} allows no connection; name one or several, or leave it out"
            )
        roles: object = self.log_roles
        # A text is also a sequence of texts: its letters.
        if roles is not None and (not _is_list(roles) or not all(isinstance(role, str) for role in roles)):
            raise InvalidAppError(f"log_roles={roles!r} must be a list of names of roles, or None for all")
        replicas: object = self.log_replicas
        if replicas is not None and (not _is_list(replicas) or not all(type(k) is int and k >= 0 for k in replicas)):
            raise InvalidAppError(f"log_replicas={replicas!r} must be a list of numbers of replicas, or None for all")
        if self.silence_limit_s is not None:
            check_seconds("silence_limit_s", self.silence_limit_s)
            if roles is not None and not roles:
                raise InvalidAppError(
                    "silence_limit_s needs the lines of the app, but log_roles=[] reads none; leave one of them out, "
                    "or hide lines by log_replicas=[]"
                )

    @property
    def stream(self) -> Stream | None:
        """`streams` as the scheduler takes it."""
        return None if self.streams is None else Stream(self.streams)

    @property
    def may_cancel(self) -> bool:
        """Whether a user who ends the task ends its app."""
        return self.kill_policy == "cancel"

    @classmethod
    def from_json(cls, options: Mapping[str, Any], warn: Callable[..., object]) -> FollowOptions:
        """Return the options that `to_json` gave, without those that only a newer version of this package knows."""
        names = {item.name for item in fields(cls)}
        if unknown := sorted(options.keys() - names):
            warn(
                "this triggerer does not know the options %s and ignores them; upgrade it",
                ", ".join(map(repr, unknown)),
            )
        return cls(**{name: value for name, value in options.items() if name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as plain JSON: keyword arguments of this class."""
        values = {
            **{item.name: getattr(self, item.name) for item in fields(self)},
            "streams": None if self.stream is None else self.stream.value,
            "log_roles": None if self.log_roles is None else [*self.log_roles],
            "log_replicas": None if self.log_replicas is None else [*self.log_replicas],
        }
        return {item.name: values[item.name] for item in fields(self) if values[item.name] != item.default}


def check_seconds(name: str, value: object, *, may_be_0: bool = False) -> None:
    """Refuse a value that is not a valid duration.

    Raises:
        InvalidAppError: it is not a number, is negative, or is 0 where that is not allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidAppError(f"{name}={value!r} must be a number of seconds, not {type(value).__name__}")
    # Locks cannot wait longer.
    if not value <= threading.TIMEOUT_MAX:
        longest = f"{threading.TIMEOUT_MAX:.0f} seconds"
        raise InvalidAppError(f"{name}={value!r} is not a valid time to wait; the longest is {longest}")
    if not (value >= 0 if may_be_0 else value > 0):
        raise InvalidAppError(f"{name}={value!r} must {'not be negative' if may_be_0 else 'be more than 0 seconds'}")


def default_deferrable() -> bool:
    """Return `[operators] default_deferrable` of Airflow's configuration."""
    return _default_deferrable(os.environ.get("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"))


@functools.cache
def _default_deferrable(_variable: str | None) -> bool:
    """Read the configuration once, because this takes as long as the rest of a task's options."""
    from airflow_provider_launch._airflow import conf

    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def check_exit_codes(name: str, value: object) -> None:
    """Refuse a value that is not None, an exit code or several of them.

    Raises:
        InvalidAppError: it is anything else, such as the text of a number.
    """
    codes = value if _is_list(value) else [] if value is None else [value]
    if not all(isinstance(code, int) and not isinstance(code, bool) for code in codes):
        raise InvalidAppError(f"{name}={value!r} must be a whole number, or a list of whole numbers")


def check_on_finish(value: object) -> str:
    """Return the value if it is a valid choice of `on_finish`.

    Raises:
        InvalidAppError: it is not one of them.
    """
    if not isinstance(value, str) or value not in _ON_FINISH:
        raise InvalidAppError(f"on_finish={value!r} must be one of {', '.join(map(repr, _ON_FINISH))}")
    return value


def check_results(value: object) -> str:
    """Return the value if it is a valid choice of `results`.

    Raises:
        InvalidAppError: it is not one of them.
    """
    if value not in _RESULTS:
        raise InvalidAppError(f"results={value!r} must be one of {', '.join(map(repr, _RESULTS))}")
    return str(value)


def check_log_roles(app: AppDef, log_roles: Collection[str] | None) -> None:
    """Refuse names of roles that the app does not have; otherwise its log would silently stay empty.

    Raises:
        InvalidAppError: names the first of them.
    """
    known = [role.name for role in app.roles]
    if unknown := [name for name in log_roles or () if name not in known]:
        raise InvalidAppError(
            f"log_roles names {unknown[0]!r}, which is not a role of app {app.name!r}; "
            f"its roles are {', '.join(map(repr, known))}"
        )


def check_streams(scheduler: Scheduler[Any], streams: str | None) -> None:
    """Refuse a single stream if the scheduler does not separate stdout and stderr.

    Raises:
        UnsupportedError: it does not separate them.
    """
    from airflow_provider_launch.schedulers.capability import Capability

    if streams not in (None, "combined") and Capability.STREAMS not in scheduler.capabilities:
        raise UnsupportedError(
            f"streams={str(streams)!r}: scheduler {scheduler.backend!r} does not keep stdout and stderr apart; "
            f"leave it out, or use 'combined'"
        )


def conn_ids(given: str | Sequence[str] | None) -> list[str]:
    """Return the connections that an argument names; empty if the handle names the connection."""
    return [given] if isinstance(given, str) and given else list(given or ())


def allowed_conn_id(given: str | Sequence[str] | None, handle: ParsedAppHandle) -> str:
    """Return the connection of an app.

    Args:
        given: the connection, or a list of connections that the handle may name. None: any.
        handle: the handle of the app.

    Raises:
        InvalidAppError: the handle names a connection that is not in the list.
    """
    if isinstance(given, str) and given:
        return given
    session = handle.session_name
    # An empty list or text, which may come from a template, allows no connection; only None allows any.
    if given is not None and session not in conn_ids(given):
        raise InvalidAppError(
            f"{make_app_handle(*handle)!r} is an app of connection {session!r}, "
            f"but launch_conn_id allows {', '.join(map(repr, given)) or 'none'}"
        )
    return session


def _is_list(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes))
