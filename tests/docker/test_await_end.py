"""Ends that the engine reports, so that followers need not poll."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.specs import UnknownAppException

pytestmark = pytest.mark.engine("docker")

_LONG_S = 60.0


def test_a_running_app_has_no_end(docker_apps):
    app_id = docker_apps.start(docker_apps.sh("sleep 60"))
    docker_apps.scheduler.describe(app_id)
    began = time.monotonic()

    assert docker_apps.scheduler.await_end(app_id, 1.0) is False
    assert 0.9 <= time.monotonic() - began < 15


@pytest.mark.parametrize("seen", [True, False], ids=["seen as running", "not looked at since its start"])
def test_an_end_is_reported(docker_apps, seen):
    app_id = docker_apps.start(docker_apps.sh("sleep 2; exit 3"))
    if seen:
        docker_apps.scheduler.describe(app_id)
    began = time.monotonic()

    assert docker_apps.scheduler.await_end(app_id, _LONG_S) is True
    assert time.monotonic() - began < _LONG_S / 2


def test_a_running_replica_is_waited_for(docker_apps):
    """One that has ended would be reported again and again."""
    roles = [docker_apps.sh("true", "short"), docker_apps.sh("sleep 60", "long")]
    app_id = docker_apps.start(*roles)
    deadline = time.monotonic() + _LONG_S
    while docker_apps.scheduler.await_end(app_id, 0.5):
        docker_apps.scheduler.describe(app_id)
        assert time.monotonic() < deadline, "the end of the first is told without end"


def test_an_unknown_app_has_no_state(docker_apps):
    with pytest.raises(UnknownAppException):
        docker_apps.scheduler.await_end("no-such-app", 1.0)
