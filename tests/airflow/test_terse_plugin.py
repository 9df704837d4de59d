"""A plug-in whose `describe` gives id and state only, as the minimal scheduler of TorchX's documentation does."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import launch, run_to_end, sh
from tests.support.fake_scheduler import FakeScheduler

in_modes = pytest.mark.parametrize("how", [{}, {"deferrable": True, "defer_after_s": 0}], ids=["worker", "triggerer"])


def on_cluster(**how):
    how = {"launch_conn_id": "cluster", "poll_interval_s": 0.05, "on_finish": "delete_succeeded", **how}
    return launch(sh("x", num_replicas=2), **how)


@pytest.fixture
def terse(engine, monkeypatch):
    """Its apps write two lines for each replica, and succeed."""
    plain = FakeScheduler.describe_many

    def describe_many(self, app_ids):
        found = plain(self, app_ids)
        for response in filter(None, found.values()):
            response.roles, response.roles_statuses = [], []
        return found

    def begin(app_id: str) -> None:
        engine.state(app_id, AppState.RUNNING)
        for k in (0, 1):
            engine.write(app_id, "worker", k, f"early {k}\n")

        def end() -> None:
            for k in (0, 1):
                engine.write(app_id, "worker", k, f"late {k}\n")
            engine.state(app_id, AppState.SUCCEEDED)

        threading.Timer(1.0, end).start()

    monkeypatch.setattr(FakeScheduler, "describe_many", describe_many)
    engine.on_scheduled = begin
    return engine


@in_modes
def test_its_lines_are_in_the_task_log(terse, api, how) -> None:
    """The operator knows the roles: only after that the app is removed."""
    ran, _ = run_to_end(on_cluster(**how), api)

    assert ran.state == "success", ran.lines
    lines = [line for line in ran.lines if line.startswith("[worker/")]
    assert sorted(lines) == sorted(f"[worker/{k}] {when} {k}" for k in (0, 1) for when in ("early", "late"))
    assert terse.apps == {}


def test_an_app_whose_log_was_not_shown_is_kept(terse, api, monkeypatch) -> None:
    """Its lines are nowhere else."""
    monkeypatch.setattr("airflow_provider_launch.operators._run.BACKENDS", {"fake": None})
    ran, _ = run_to_end(on_cluster(), api)

    assert ran.state == "success"
    assert ran.logged("reports no roles of the app, so no log was read")
    assert len(terse.apps) == 1


def test_an_app_is_removed_if_its_log_is_not_shown(terse, api) -> None:
    ran, _ = run_to_end(on_cluster(log_roles=[]), api)

    assert ran.state == "success"
    assert terse.apps == {}
