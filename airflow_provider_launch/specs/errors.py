"""Every error of the launcher, grouped by who must act.

```text
LaunchError
  InvalidAppError                 the author of the app: fix it, a retry does not help
    UnsupportedError              the same: this scheduler does not support it
    InvalidRunConfigException     the same: an option is unknown, missing or wrong
    UnknownSchedulerException     the same: no such backend is registered
    MalformedAppHandleException   the same: the text is not a handle
  AppConflictError                the caller: another app has this id
  UnknownAppException             the caller: the app does not exist, or its record was removed
  UnknownOutcomeError             the owner of the app: its record vanished while it was followed
  SessionMismatchException        the caller: the handle belongs to another session
  SchedulerUnavailableError       nothing to fix: retry later
    AppUnavailableError           the same; the scheduler answers, and other apps are not affected
  SchedulerRejectedError          the cluster's administrator: credentials, permission, quota
  MissingDependencyError          the administrator of Airflow: install the extra that the text names
  AppStatusError                  the owner of the app: it did not succeed
    AppFailedError                the same, with the first failed replica in the text
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import MASK, masked_text

if TYPE_CHECKING:
    from airflow_provider_launch.specs.statuses import AppStatus

__all__ = [
    "AppConflictError",
    "AppFailedError",
    "AppNotStartedError",
    "AppStatusError",
    "AppUnavailableError",
    "InvalidAppError",
    "InvalidRunConfigException",
    "LaunchError",
    "MalformedAppHandleException",
    "MissingDependencyError",
    "SchedulerRejectedError",
    "SchedulerUnavailableError",
    "SessionMismatchException",
    "UnknownAppException",
    "UnknownOutcomeError",
    "UnknownSchedulerException",
    "UnsupportedError",
]


class LaunchError(Exception):
    """Base of all errors of this package."""


class InvalidAppError(LaunchError, ValueError):
    """The app or its options are wrong; only a change of the DAG helps."""


class UnsupportedError(InvalidAppError):
    """The scheduler does not support what the app requests; no request is dropped silently."""


class InvalidRunConfigException(InvalidAppError):
    """The options do not match the schema of the scheduler."""

    def __init__(self, invalid_reason: str, cfg_key: str, cfg: Mapping[str, object] | None) -> None:
        self.cfg_key = cfg_key
        # Names only: a value may be a secret, most of all under a misspelt name.
        names = ", ".join(name if name.isprintable() else repr(name) for name in map(str, cfg or ()))
        super().__init__(f"{invalid_reason}. Given: {names or '<EMPTY>'}")


class UnknownSchedulerException(InvalidAppError, KeyError):
    """No scheduler is registered under the name."""

    def __init__(self, scheduler_backend: str, known: Iterable[str] = ()) -> None:
        self.scheduler_backend = scheduler_backend
        names = ", ".join(known) or "<none>"
        super().__init__(f"unknown scheduler {scheduler_backend!r}; registered are: {names}")

    # KeyError would show the text as a quoted literal.
    def __str__(self) -> str:
        return str(self.args[0])


class MalformedAppHandleException(InvalidAppError):
    """The text is not of the form `scheduler://session/app_id`."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(f"{app_handle!r} is not an app handle; expected scheduler://session/app_id")


class AppConflictError(LaunchError):
    """Another app already has this id; nothing was started."""


class UnknownAppException(LaunchError):
    """The scheduler has no such app, or has removed its record."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(f"unknown app {app_handle!r}: it was never launched here, or its record has been removed")


class UnknownOutcomeError(LaunchError):
    """The record of a launched app vanished, so its outcome is unknown."""


class SessionMismatchException(LaunchError):
    """The handle belongs to another session, and this runner may not change its app."""

    def __init__(self, app_handle: str, session_name: str) -> None:
        super().__init__(f"{app_handle!r} does not belong to session {session_name!r}")


class SchedulerUnavailableError(LaunchError):
    """The scheduler cannot be reached; the same call may succeed later."""


class AppUnavailableError(SchedulerUnavailableError):
    """The scheduler was reached but failed for this app; its reports on other apps are valid.

    Args:
        *args: the message.
        texts: for a query of many apps: each failed app, and the reason. Empty if the failed apps are not known.
    """

    def __init__(self, *args: object, texts: Mapping[str, str] | None = None) -> None:
        super().__init__(*args)
        self.texts: Mapping[str, str] = texts or {}


class SchedulerRejectedError(LaunchError):
    """The scheduler was reached and refused the call: credentials, permission, quota."""


class MissingDependencyError(LaunchError, ImportError):
    """An optional package is not installed; the text names the extra to install."""


class AppStatusError(LaunchError):
    """The app did not succeed; `status` has the details."""

    def __init__(self, status: AppStatus, *args: object) -> None:
        super().__init__(*args)
        self.status = status

    # By default, unpickling would call the class with the text alone, and fail.
    def __reduce__(self) -> tuple[type[AppStatusError], tuple[object, ...]]:
        return type(self), (self.status, *self.args)


class AppNotStartedError(LaunchError):
    """The app did not start in time, or never can; cancel it."""


class AppFailedError(AppStatusError):
    """The app ended as FAILED or CANCELLED."""


def is_outage(error: object) -> TypeGuard[SchedulerUnavailableError]:
    """Return whether this is an error that concerns all apps of the scheduler: it cannot be reached."""
    return isinstance(error, SchedulerUnavailableError) and not isinstance(error, AppUnavailableError)


_MOST_SHOWN = 500


def _shown(key: str, value: object) -> str:
    """Return a value for an error text, which ends up in task logs: without secrets, and not long."""
    if is_secret_name(key):
        return MASK
    text = masked_text(repr(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
