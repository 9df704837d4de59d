"""Real processes with a root for each test; no process may be alive when a test ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppUnavailableError, SchedulerRejectedError
from tests.support.apps import until
from tests.support.local import Apps, processes_below


@pytest.fixture
def apps(tmp_path: Path) -> Iterator[Apps]:
    root = tmp_path / "root"
    apps = Apps(create_scheduler("tests", root=str(root)), root)
    yield apps
    for row in apps.scheduler.list():
        # From planted records of other hosts, and damaged ones.
        with contextlib.suppress(SchedulerRejectedError, AppUnavailableError):
            apps.scheduler.cancel(row.app_id)
    until(lambda: not processes_below(root), 30)
