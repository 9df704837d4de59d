"""The maintenance DAG that cancels apps whose tasks are over, where one cancel fails."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

DAG = Path(__file__).parents[2] / "example_dags" / "launch_orphans.py"


def test_a_cancel_that_fails_leaves_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    counted: list[Any] = []

    def cancel(handle: str) -> None:
        if handle.endswith("/b"):
            raise SchedulerUnavailableError("its node is away")
        cancelled.append(handle)

    orphans = [f"local://c/{name}" for name in "abc"]
    hook = SimpleNamespace(orphans=lambda: orphans, runner=SimpleNamespace(cancel=cancel), close=lambda: None)
    monkeypatch.setattr(LaunchHook, "for_connection", lambda _conn_id: hook)
    monkeypatch.setattr("airflow_provider_launch._airflow.Stats.incr", lambda name, **how: counted.append((name, how)))
    work = runpy.run_path(str(DAG))["cancel_orphans"].function

    with pytest.raises(RuntimeError, match="local://c/b could not be cancelled: its node is away"):
        work("c")
    assert cancelled == ["local://c/a", "local://c/c"]
    assert counted == [("launch.orphans", {"tags": {"backend": "local", "reason": "dag"}})] * 2

    orphans.remove("local://c/b")
    assert work("c") == ["local://c/a", "local://c/c"]
