"""The costs of polling many apps, counted in requests at the proxy."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.specs import AppState, RetryPolicy
from tests.support.apps import until

pytestmark = pytest.mark.engine("docker")

LIST = ("GET", "/containers/json")


@pytest.fixture
def asked(docker_proxy):
    """Return a function that returns the requests for describing these apps, and their states."""

    def ask(scheduler: DockerScheduler, app_ids: list[str]) -> tuple[Counter[tuple[str, str]], list[AppState]]:
        before = docker_proxy.count()
        found = scheduler.describe_many(app_ids)
        requests = docker_proxy.requests[before:]
        states = [answer.state for app_id in app_ids if (answer := found[app_id]) is not None]
        # The path starts with `/v1.41`.
        return Counter((one.method, one.path[one.path.index("/", 1) :]) for one in requests), states

    return ask


@pytest.fixture
def connected(docker_apps):
    """Return a scheduler like in another process, which has negotiated the API version with the engine."""
    scheduler = docker_apps.another()
    assert scheduler.describe_many(["unknown-app"]) == {"unknown-app": None}
    return scheduler


def test_many_apps_cost_one_list(docker_apps, connected, asked):
    """A follower of a thousand apps sends one request for all of them, also the first time, in any state."""
    running = [docker_apps.start(docker_apps.sh("sleep 60", "a"), docker_apps.sh("sleep 60", "b")) for _ in range(8)]
    ended = [docker_apps.run(docker_apps.sh("true")).app_id for _ in range(4)]
    app_ids = [*running, *ended, "never-launched-1", "never-launched-2"]

    for number in range(3):
        requests, states = asked(connected, app_ids)

        # One request for all of them: whether those that ended with 0 were stopped from outside.
        assert requests == {LIST: 1, **({("GET", "/events"): 1} if number == 0 else {})}
        assert states == [AppState.RUNNING] * 8 + [AppState.SUCCEEDED] * 4


def test_an_app_that_failed_costs_two_more_requests_once(docker_apps, connected, asked):
    """The cause of a failure and the error file are not in a list; neither changes later."""
    failed = [docker_apps.start(docker_apps.sh(f"exit {code}")) for code in (1, 2, 3)]
    running = [docker_apps.start(docker_apps.sh("sleep 60")) for _ in range(3)]
    app_ids = [*running, *failed]
    until(lambda: all(docker_apps.container(app_id)["State"]["Status"] == "exited" for app_id in failed))

    requests, states = asked(connected, app_ids)

    assert states == [AppState.RUNNING] * 3 + [AppState.FAILED] * 3
    assert requests.pop(LIST) == 1
    ids = [docker_apps.container(app_id)["Id"] for app_id in failed]
    assert requests == {("GET", f"/containers/{one}/{what}"): 1 for one in ids for what in ("json", "archive")}
    for _ in range(3):
        assert asked(connected, app_ids) == ({LIST: 1}, states)
    # Also for a single app, except for its request, which is read once too.
    requests, _ = asked(connected, failed[:1])
    assert requests.pop(LIST) == 1
    assert requests.total() == 1
    assert asked(connected, failed[:1])[0] == {LIST: 1}


def test_an_app_that_was_cancelled_costs_nothing_later(docker_apps, connected, asked):
    """Its mark and its containers are inspected once; no request asks why a stopped container ended."""
    app_ids = [docker_apps.start(docker_apps.sh("sleep 60")) for _ in range(2)]
    for app_id in app_ids:
        docker_apps.scheduler.cancel(app_id)
        assert docker_apps.end(app_id).state is AppState.CANCELLED

    requests, states = asked(connected, app_ids)

    assert states == [AppState.CANCELLED] * 2
    assert requests[LIST] == 1
    # Mark and container; for killed containers also the start time of the engine.
    assert requests.total() <= 1 + 3 * len(app_ids)
    assert asked(connected, app_ids) == ({LIST: 1}, states)


def test_an_app_with_an_earlier_attempt_costs_one_list(docker_apps, connected, asked):
    """A failed attempt is inspected once, and not in each poll of the next one."""
    script = '[ "$LAUNCH_ATTEMPT" = 1 ] || exit 1; sleep 60'
    app_id = docker_apps.start(docker_apps.sh(script, max_retries=1, retry_policy=RetryPolicy.REPLICA))
    until(lambda: docker_apps.scheduler.describe(app_id).num_restarts == 1)
    until(lambda: any(one["State"]["Running"] for one in docker_apps.containers(app_id)))
    requests, states = asked(connected, [app_id, "never-launched"])
    assert states == [AppState.RUNNING]
    assert requests.pop(LIST) == 1
    assert requests.total() <= 2

    assert asked(connected, [app_id, "never-launched"]) == ({LIST: 1}, states)
