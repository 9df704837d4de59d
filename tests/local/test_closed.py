"""Programs that do not run as root remove permissions of their app's files: other apps are not affected."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.states import AppState
from tests.support.apps import until
from tests.support.local import Apps, lock_holder, sh

pytestmark = pytest.mark.engine("local")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what is closed")
@pytest.mark.parametrize("name", ["supervisor.log", "lock", "app.json", "."])
def test_a_closed_file_of_an_app_without_supervisor_concerns_no_other_app(apps: Apps, name: str) -> None:
    damaged, other = apps.start(sh("sleep 300")), apps.start(sh("sleep 300"))
    until(lambda: lock_holder(apps.dir(damaged) / layout.LOCK))
    os.kill(lock_holder(apps.dir(damaged) / layout.LOCK) or 0, signal.SIGKILL)
    path: Path = apps.dir(damaged) / name
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        scheduler = apps.another()
        answers = poll_many(scheduler, [damaged, other])
        assert answers[other].state in {AppState.PENDING, AppState.RUNNING}
        assert isinstance(answers[damaged], AppUnavailableError)
        assert other in {row.app_id for row in scheduler.list()}
    finally:
        path.chmod(mode)
