"""Waits, and apps on an engine: shared by the tests of all backends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role, is_terminal
from airflow_provider_launch.specs.dryrun import AppDryRunInfo

_S = TypeVar("_S", bound=Scheduler[Any])


def until(condition: Callable[[], object], timeout_s: float = 60.0, pause_s: float = 0.02) -> None:
    """Wait for the condition, or fail."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(pause_s)


def described(
    scheduler: Scheduler[Any],
    app_id: str,
    condition: Callable[[DescribeAppResponse], object] = lambda found: is_terminal(found.state),
    timeout_s: float = 60.0,
    pause_s: float = 0.1,
    *,
    missing_ok: bool = False,
) -> DescribeAppResponse:
    """Return the first description for which the condition is true; without one, that of the ended app.

    `missing_ok`: whether an app may be reported as missing at first, by an engine whose lists are late.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = scheduler.describe(app_id)
        assert missing_ok or found is not None, f"app {app_id} is gone"
        if found is not None and condition(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(pause_s)


def until_state(
    scheduler: Scheduler[Any], app_id: str, state: AppState, timeout_s: float = 60.0
) -> DescribeAppResponse:
    """Return the description of the app in this state; fail if it ends in another one."""
    found = described(scheduler, app_id, lambda found: found.state is state or is_terminal(found.state), timeout_s)
    assert found.state is state, found
    return found


class Apps(Generic[_S]):
    """Launches apps and waits for them.

    Args:
        make: makes a scheduler from the fields of a connection that differ from the usual ones.
        scheduler: that of the launches; otherwise one is made.
    """

    cfg: ClassVar[Mapping[str, object]] = {}
    """Options of every launch."""
    timeout_s: ClassVar[float] = 60.0
    pause_s: ClassVar[float] = 0.05
    image = ""
    resource: Resource | None = None

    def __init__(self, make: Callable[..., _S], scheduler: _S | None = None) -> None:
        self._make = make
        self._made: list[_S] = []
        self.scheduler = scheduler or self.another()

    def another(self, **connection: Any) -> _S:
        """Return a separate scheduler, as another process has; it is closed at the end of the test."""
        self._made.append(self._make(**connection))
        return self._made[-1]

    def sh(self, script: str, name: str = "main", **fields: Any) -> Role:
        """Return a role that runs a shell script; `$$` gives a `$`."""
        known: dict[str, Any] = {"resource": dataclasses.replace(self.resource)} if self.resource else {}
        return Role(name, **{"image": self.image, "entrypoint": "sh", "args": ["-c", script], **known, **fields})

    def info(self, *roles: Role, app_id: str | None = None, **cfg: object) -> AppDryRunInfo[Any]:
        app_id = app_id or make_unique("test")
        return self.scheduler.submit_dryrun(AppDef("app", [*roles]), {**self.cfg, **cfg}, app_id=app_id)

    def start(self, *roles: Role, **how: Any) -> str:
        return self.scheduler.schedule(self.info(*roles, **how))

    def until(
        self, app_id: str, condition: Callable[[DescribeAppResponse], object], timeout_s: float | None = None
    ) -> DescribeAppResponse:
        """Return the first description for which the condition is true."""
        return described(self.scheduler, app_id, condition, timeout_s or self.timeout_s, self.pause_s)

    def end(self, app_id: str, scheduler: _S | None = None, timeout_s: float | None = None) -> DescribeAppResponse:
        """Return the description of the ended app."""
        how = {"timeout_s": timeout_s or self.timeout_s, "pause_s": self.pause_s}
        return described(scheduler or self.scheduler, app_id, **how)

    def running(self, app_id: str) -> DescribeAppResponse:
        return self.until(app_id, lambda found: found.state is AppState.RUNNING)

    def run(self, *roles: Role, **how: Any) -> DescribeAppResponse:
        return self.end(self.start(*roles, **how))

    def lines(self, app_id: str, role: str = "main", k: int = 0, **how: Any) -> list[str]:
        return [str(line) for line in self.scheduler.log_iter(app_id, role, k, **how)]

    def close(self) -> None:
        for scheduler in self._made:
            scheduler.close()
