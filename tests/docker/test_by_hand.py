"""Outside changes of containers: they are named, and never count as success without a report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from docker.errors import ImageNotFound

from airflow_provider_launch.specs import AppState, BindMount, Resource, RetryPolicy
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.faults import Fault, FaultProxy, error, new_events

pytestmark = pytest.mark.engine("docker")

POLITE = "trap 'echo got TERM; exit 0' TERM; echo run; while :; do sleep 0.1; done"


def running(apps, script: str = POLITE, **how: object) -> tuple[str, str]:
    """Launch an app; return its id and that of its container once it has written a line."""
    app_id = apps.start(apps.sh(script), **how)
    apps.until(app_id, lambda _: apps.lines(app_id))
    return app_id, apps.container(app_id)["Id"]


@pytest.fixture(params=[False, True], ids=["its own events", "API 1.52"])
def events(request: pytest.FixtureRequest, docker_proxy: FaultProxy) -> None:
    """Events as the engine sends them, and as Docker 29 does."""
    if request.param:
        docker_proxy.add(Fault(new_events(), "GET", r"/events$", times=None))


# ---- stopped ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("events")
def test_an_outside_stop_is_a_failure(docker_apps):
    app_id, container = running(docker_apps)
    docker_apps.client.api.stop(container)
    found = docker_apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "main/0 failed: stopped from outside (SIGTERM)" in found.msg
    assert found.roles_statuses[0].replicas[0].reason == "stopped from outside (SIGTERM)"
    assert docker_apps.end(app_id, docker_apps.another()).msg == found.msg, "another process, from what is written down"


def test_an_outside_stop_may_be_accepted(docker_apps):
    app_id, container = running(docker_apps, on_outside_stop="accept")
    docker_apps.client.api.stop(container)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED


def test_a_signal_that_ends_nothing_is_ignored(docker_apps):
    app_id, container = running(docker_apps, "trap 'exit 0' HUP; echo run; while :; do sleep 0.1; done")
    docker_apps.client.api.kill(container, "SIGHUP")

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED


# ---- restarted, renamed, paused, unhealthy ---------------------------------------------------------------------------


@pytest.mark.usefixtures("events")
def test_an_outside_restart_is_reported(docker_apps):
    script = "trap 'exit 0' TERM; echo run; i=0; while test $((i += 1)) -lt 40; do sleep 0.1; done"
    app_id, container = running(docker_apps, script)
    time.sleep(2)
    docker_apps.scheduler.describe(app_id)
    docker_apps.client.api.restart(container)
    found = docker_apps.until(app_id, lambda found: "restarted" in found.msg)

    assert found.state is AppState.RUNNING
    assert found.msg == "main/0 was restarted from outside, so its program ran more than once"
    ended = docker_apps.end(app_id)
    assert (ended.state, ended.num_restarts) == (AppState.SUCCEEDED, 1)
    late = docker_apps.another().describe(app_id)
    assert "restarted from outside" in late.msg


def test_a_renamed_container_is_followed_and_deleted(docker_apps):
    app_id, container = running(docker_apps)
    name = f"mine-{uuid4().hex[:8]}"
    docker_apps.client.api.rename(container, name)
    found = docker_apps.scheduler.describe(app_id)

    assert found.state is AppState.RUNNING
    assert found.msg == f"main/0 was renamed to '{name}'"
    docker_apps.scheduler.delete(app_id)
    assert docker_apps.left(app_id) == []


def test_a_paused_container_is_shown_as_paused(docker_apps):
    app_id, container = running(docker_apps)
    docker_apps.client.api.pause(container)
    found = docker_apps.scheduler.describe(app_id)

    assert (found.state, found.msg) == (AppState.RUNNING, "main/0 is paused")
    docker_apps.client.api.unpause(container)
    assert docker_apps.scheduler.describe(app_id).msg == "<NONE>"
    docker_apps.scheduler.delete(app_id)


@pytest.fixture
def image(docker_apps) -> Iterator[Callable[[str], str]]:
    """Create images with a tag for this test only, each with other properties."""
    name = f"launch-tests/own:{uuid4().hex[:8]}"

    def make(changes: str) -> str:
        container = docker_apps.client.containers.create(docker_apps.image, ["true"])
        container.commit(*name.split(":"), changes=changes)
        container.remove()
        return name

    yield make
    with contextlib.suppress(ImageNotFound):
        docker_apps.client.images.remove(name, force=True)


def test_an_unhealthy_container_is_shown_as_unhealthy(docker_apps, image):
    own = image('HEALTHCHECK --interval=1s --retries=1 CMD ["false"]')
    app_id = docker_apps.start(docker_apps.sh("sleep 60", image=own))
    found = docker_apps.until(app_id, lambda found: found.msg != "<NONE>")

    assert (found.state, found.msg) == (AppState.RUNNING, "main/0 is unhealthy: the health check of its image fails")
    docker_apps.scheduler.delete(app_id)


# ---- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
def test_a_retry_runs_the_image_of_the_first_attempt(docker_apps, image, policy):
    own = image("ENV V=1")
    script = "echo V=$V; sleep 2; test $LAUNCH_ATTEMPT = 1"
    app_id = docker_apps.start(docker_apps.sh(script, image=own, max_retries=1, retry_policy=policy))
    image("ENV V=2")
    docker_apps.end(app_id)

    assert docker_apps.lines(app_id) == ["V=1\n", "V=1\n"]


def test_the_status_keeps_the_cause_of_a_retry(docker_apps):
    script = "test $LAUNCH_ATTEMPT = 1 || exit 4; sleep 60"
    app_id = docker_apps.start(docker_apps.sh(script, max_retries=1, retry_policy=RetryPolicy.REPLICA))
    found = docker_apps.until(app_id, lambda found: "started again" in found.msg)

    assert found.msg == "main/0 failed: exit code 4; it was started again (attempt 1)"
    assert docker_apps.another().describe(app_id).msg == found.msg
    docker_apps.scheduler.delete(app_id)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "blamed"),
    [
        ({"mounts": [BindMount("/no/such/dir", "/data")]}, {}, "its mounts"),
        ({"resource": Resource(cpu=0, gpu=0, memMB=1)}, {}, "its resource.memMB"),
        ({"resource": Resource(cpu=4096, gpu=0, memMB=0)}, {}, "its resource.cpu"),
    ],
)
def test_an_impossible_value_is_an_error_of_the_author(docker_apps, fields, options, blamed):
    """Not retried; the message names the role and the field."""
    info = docker_apps.info(docker_apps.sh("true", "wrong", **fields), **options)
    with pytest.raises(InvalidAppError, match=f"role 'wrong': the Docker engine refuses {blamed}: "):
        docker_apps.scheduler.schedule(info)

    assert docker_apps.left(info.request.app_id) == []


def test_a_start_that_is_refused_without_a_trace_fails_with_its_text(docker_apps, docker_proxy):
    """Like engines that leave `State.Error` empty."""
    refusal = error(500, "OCI runtime error: setting rlimit: operation not permitted")
    docker_proxy.add(Fault(refusal, "POST", "/start$", times=2))
    found = docker_apps.run(docker_apps.sh("true"))

    assert found.state is AppState.FAILED
    assert "main/0 could not be started: " in found.msg
    assert "setting rlimit: operation not permitted" in found.msg
