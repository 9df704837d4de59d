"""Losses: an engine that lost an app, or the node or supervisor of a program, reports no invented or early end."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, until
from airflow_provider_launch.testing._ending import DEAF, grace_above_lag


class LossTests(ContractBase):
    """A lost app is UNKNOWN. An app that the engine has given up is not reported as ended while its programs run."""

    def test_an_app_that_was_lost_is_unknown(self, apps: Apps) -> None:
        """The end is unknown: an invented end may be wrong, and "no such app" launches the app twice."""
        app_id = apps.new_id()
        request = apps.dryrun(apps.sh("sleep 5"), apps.sh("sleep 120", "other"), app_id=app_id)
        apps.scheduler.schedule(request)
        apps.until_running(app_id, ("other", 0))
        if not apps.engine.lose(app_id, "other"):
            pytest.skip("the engine cannot lose an app")

        for scheduler in (apps.scheduler, apps.another()):
            states: list[AppState | None] = []

            def is_unknown(observer: Scheduler[Any] = scheduler, seen: list[AppState | None] = states) -> bool:
                found = observer.describe(app_id)
                seen.append(found.state if found else None)
                return seen[-1] is AppState.UNKNOWN

            until(is_unknown, apps.timeout_s, f"{app_id} is UNKNOWN")
            # The app is RUNNING while another role runs.
            assert {*states} <= {AppState.RUNNING, AppState.UNKNOWN}
        starts = apps.engine.starts(app_id)
        apps.scheduler.schedule(request)
        apps.until_nothing_is_alive(app_id)
        found = apps.scheduler.describe(app_id)
        assert found is not None
        assert found.state is AppState.UNKNOWN
        assert apps.engine.starts(app_id) == starts

    def test_nothing_runs_once_an_app_is_given_up(self, apps: Apps) -> None:
        """The engine may take a program for dead that still runs, and writes the checkpoint of the next attempt."""
        if apps.engine.alive(apps.new_id()) is None:
            pytest.skip("the engine cannot report what is alive")
        app_id = apps.start(apps.sh(DEAF), apps.sh(DEAF, "peer"), **grace_above_lag(apps))
        for role in ("main", "peer"):
            apps.until_written(app_id, "up", role)
        apps.until_running(app_id, ("main", 0), ("peer", 0))
        if not apps.engine.give_up(app_id, "main"):
            pytest.skip("the engine cannot give up an app")

        assert apps.until_processes_end(app_id).state is AppState.FAILED
