"""How long an app may wait for its start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_launch.follow.state_tracker import is_waiting
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.specs.errors import AppNotStartedError
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase

NeverStarts = tuple[Mapping[str, Any], Mapping[str, Any]]


class StartTests(ContractBase):
    """Waiting apps, started apps, and apps that can never start are distinguished."""

    def test_an_app_that_cannot_start_is_reported(self, apps: Apps, never_starts: NeverStarts | None) -> None:
        """Otherwise a task waits for days for an image that does not exist."""
        app_id = self._launch_unstartable(apps, never_starts)
        apps.until_stuck(app_id)
        found = apps.scheduler.describe(app_id)

        assert found is not None
        assert is_waiting(found.state)
        assert found.msg not in ("", NONE), "the message names what it waits for"
        apps.expect_starts(app_id, 0)

    def test_an_app_that_has_not_started_in_time_is_cancelled(
        self, apps: Apps, never_starts: NeverStarts | None
    ) -> None:
        """Otherwise an app in a queue starts when it is no longer wanted."""
        app_id = self._launch_unstartable(apps, never_starts)
        with self._runner(apps) as (runner, backend), pytest.raises(AppNotStartedError, match="start_limit_s"):
            runner.wait(make_app_handle(backend, "", app_id), 0.1, timeout=apps.timeout_s, start_limit_s=0.5)

        assert apps.end(app_id).state is AppState.CANCELLED
        apps.expect_starts(app_id, 0)
        apps.until_nothing_is_alive(app_id)

    def test_an_app_that_never_started_is_not_running_during_its_cancel(
        self, apps: Apps, never_starts: NeverStarts | None
    ) -> None:
        """RUNNING in the task log would mean that the program ran."""
        app_id = self._launch_unstartable(apps, never_starts)
        apps.until_stuck(app_id)
        apps.another().cancel(app_id)
        (history,) = apps.histories(app_id, observers=1)

        assert history[-1] is AppState.CANCELLED
        assert all(map(is_waiting, history[:-1])), history

    def test_an_app_that_has_started_may_continue(self, apps: Apps) -> None:
        """The limit is for the start only, and a running app is not stuck."""
        app_id = apps.start(apps.sh("echo up; sleep 2"))
        apps.until_written(app_id, "up")
        apps.until_running(app_id, ("main", 0))
        assert not self._is_stuck(apps, app_id)
        with self._runner(apps) as (runner, backend):
            handle = make_app_handle(backend, "", app_id)
            status = runner.wait(handle, 0.1, timeout=apps.timeout_s, start_limit_s=0.001)

        assert status is not None
        assert status.state is AppState.SUCCEEDED

    def _launch_unstartable(self, apps: Apps, never_starts: NeverStarts | None) -> str:
        if never_starts is None:
            pytest.skip("the backend declares no launch that is accepted and never starts")
        role, cfg = never_starts
        return apps.start(apps.sh("true", **role), **cfg)

    def _is_stuck(self, apps: Apps, app_id: str) -> bool:
        found = apps.scheduler.describe(app_id)
        assert found is not None, f"app {app_id} is gone"
        return found.is_stuck

    @contextlib.contextmanager
    def _runner(self, apps: Apps) -> Iterator[tuple[Runner, str]]:
        def create(session_name: str, **_params: Any) -> Scheduler[Any]:  # noqa: ARG001 - what a factory takes
            return apps.another()

        with Runner("", {"contract": create}) as runner:
            yield runner, "contract"
