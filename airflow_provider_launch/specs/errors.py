"""Every error of the launcher, divided by who must act.

```text
LaunchError
  InvalidAppError                 the author of the app: fix it, no retry helps
    UnsupportedError              the same: this scheduler does not support it
    InvalidRunConfigException     the same: an option is unknown, missing or wrong
    UnknownSchedulerException     the same: no such backend is registered
    MalformedAppHandleException   the same: text is not a handle
  AppConflictError                the caller: the id is taken by another app
  UnknownAppException             who asked: no such app, or it was forgotten
  UnknownOutcomeError             who owns the app: it vanished while it was followed
  SessionMismatchException        the caller: the handle belongs to another session
  SchedulerUnavailableError       nobody: the same call may succeed later
    AppUnavailableError           the same; the scheduler answers, and other apps are not concerned
  SchedulerRejectedError          who runs the cluster: credentials, permission, quota
  MissingDependencyError          who installs: the extra is named
  AppStatusError                  who owns the app: it did not succeed
    AppFailedError                the same, with the first failed replica in the text
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.secrets import MASK, is_secret_name, masked_text

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
    """The cfg violates the schema of the scheduler's options."""

    def __init__(self, invalid_reason: str, cfg_key: str, cfg: Mapping[str, object] | None) -> None:
        self.cfg_key = cfg_key
        # Names only: a value may be a secret, above all under a misspelt name.
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
    """The scheduler has no such app, or has forgotten it."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(f"unknown app {app_handle!r}: it was never launched here, or its record has been removed")


class UnknownOutcomeError(LaunchError):
    """The record of a launched app vanished, so it is not known how it ended."""


class SessionMismatchException(LaunchError):
    """The handle belongs to another session, which this runner may not change."""

    def __init__(self, app_handle: str, session_name: str) -> None:
        super().__init__(f"{app_handle!r} does not belong to session {session_name!r}")


class SchedulerUnavailableError(LaunchError):
    """The scheduler was not reached; the same call may succeed later."""


class AppUnavailableError(SchedulerUnavailableError):
    """The scheduler was reached and fails at this app; what it reports of other apps holds.

    Args:
        *args: the message.
        texts: of a question about many apps, each app that it fails at, and why. Empty: it is not known which.
    """

    def __init__(self, *args: object, texts: Mapping[str, str] | None = None) -> None:
        super().__init__(*args)
        self.texts: Mapping[str, str] = texts or {}


class SchedulerRejectedError(LaunchError):
    """The scheduler was reached and refused: credentials, permission, quota."""


class MissingDependencyError(LaunchError, ImportError):
    """An optional package is not installed; the text names the extra."""


class AppStatusError(LaunchError):
    """The app did not succeed; `status` holds all that is known."""

    def __init__(self, status: AppStatus, *args: object) -> None:
        super().__init__(*args)
        self.status = status

    # The default calls the class with the text alone, which fails where the error is unpickled.
    def __reduce__(self) -> tuple[type[AppStatusError], tuple[object, ...]]:
        return type(self), (self.status, *self.args)


class AppNotStartedError(LaunchError):
    """The app has not begun in time, or never can; it is to be cancelled."""


class AppFailedError(AppStatusError):
    """The app ended as FAILED or CANCELLED."""


def _shown(key: str, value: object) -> str:
    """Keep secrets out of error texts, which end up in task logs."""
    return MASK if is_secret_name(key) else masked_text(repr(value))
