"""Refusals by the engine for an app that has started: it ends with the reason, and can be cancelled and deleted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppState, BindMount, RetryPolicy

pytestmark = pytest.mark.engine("docker")

POLICIES = pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the source of a bind mount; an app can be retried as long as it exists."""
    path = tmp_path / "source"
    path.mkdir()
    return path


def failing(docker_apps, source: Path, policy: RetryPolicy = RetryPolicy.REPLICA):
    mounts = [BindMount(str(source), "/data")]
    return docker_apps.sh("exit 3", "a", max_retries=1, retry_policy=policy, mounts=mounts)


def ended(docker_apps, app_id: str, role: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for container in docker_apps.containers(app_id):
            if container["Config"]["Labels"]["launch.io/role"] == role and container["State"]["Status"] == "exited":
                return
        time.sleep(0.05)
    raise AssertionError("has not ended")


@POLICIES
@pytest.mark.parametrize("siblings", [True, False], ids=["siblings", "alone"])
def test_a_retry_that_is_refused_fails_the_app(docker_apps, source, policy, siblings):
    """Otherwise it could not be described, nor others together with it, and its siblings would continue to run."""
    other = docker_apps.start(docker_apps.sh("sleep 60"))
    roles = [failing(docker_apps, source, policy), *([docker_apps.sh("sleep 60", "b")] if siblings else [])]
    app_id = docker_apps.start(*roles)
    ended(docker_apps, app_id, "a")
    source.rmdir()

    docker_apps.scheduler.describe_many([app_id, other])
    found = docker_apps.end(app_id)

    assert found.state is AppState.FAILED
    assert found.msg.startswith("a/0 could not be started again: ")
    assert str(source) in found.msg
    states = [role.replicas[0].state for role in found.roles_statuses]
    assert states == [AppState.FAILED, AppState.CANCELLED][: len(states)]
    assert not any(container["State"]["Running"] for container in docker_apps.containers(app_id))
    assert docker_apps.end(app_id, docker_apps.another()).msg == found.msg
    docker_apps.scheduler.cancel(other)


def test_a_foreign_container_under_the_name_of_a_retry_fails_the_app(docker_apps, source):
    app_id = docker_apps.start(failing(docker_apps, source))
    ended(docker_apps, app_id, "a")
    foreign = docker_apps.client.containers.create(docker_apps.image, ["true"], name=f"{app_id}-a-0-r1")
    try:
        found = docker_apps.end(app_id)

        assert found.state is AppState.FAILED
        assert "a/0 could not be started again: " in found.msg
        assert f"{app_id}-a-0-r1" in found.msg
    finally:
        foreign.remove(force=True)


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_an_end_is_asked_for_without_the_retry(docker_apps, docker_proxy, source, how):
    """A cancel or delete must not first perform the next step of the app."""
    app_id = docker_apps.start(failing(docker_apps, source), docker_apps.sh("sleep 60", "b"))
    ended(docker_apps, app_id, "a")
    source.rmdir()
    before = docker_proxy.count("POST", "/containers/create")

    getattr(docker_apps.another(), how)(app_id)

    if how == "cancel":
        assert docker_apps.end(app_id).state is AppState.CANCELLED
        assert docker_proxy.count("POST", "/containers/create") == before + 1  # the mark
    else:
        assert docker_apps.left(app_id) == []
