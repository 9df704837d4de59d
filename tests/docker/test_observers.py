"""Any number of observers, each of which may stall or die at any point: exact counts, no double start, no overlap."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_launch.follow.events import Ended
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.docker.containers import epoch_ns
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, AppState, LaunchError, RetryPolicy, Role, is_terminal
from tests.engines.docker.fixtures import DockerEngine
from tests.support.chaos import Chaos, Observers

pytestmark = pytest.mark.engine("docker")


def attempts(engine: DockerEngine, app_id: str) -> list[dict[str, Any]]:
    labels = [f"{Label.APP_ID}={app_id}", f"{Label.KIND}={Kind.REPLICA}"]
    rows = engine.client.api.containers(all=True, filters={"label": labels})
    return [engine.client.api.inspect_container(row["Id"]) for row in rows if row["State"] != "created"]


def starts_in(engine: DockerEngine, container: dict[str, Any]) -> int:
    return engine.client.api.logs(container["Id"]).count(b"begun\n")


@pytest.fixture
def launched(docker_engine: DockerEngine) -> Iterator[dict[str, str]]:
    """Apps under each policy: name to id."""
    scheduler = DockerScheduler("tests", DockerConnection(host=docker_engine.host))
    image = docker_engine.image

    def sh(name: str, script: str, policy: RetryPolicy, retries: int, replicas: int) -> Role:
        text = f"echo begun; {script}"
        return Role(
            name,
            image,
            entrypoint="sh",
            args=["-c", text],
            num_replicas=replicas,
            max_retries=retries,
            retry_policy=policy,
        )

    application, replica = RetryPolicy.APPLICATION, RetryPolicy.REPLICA
    apps = {
        "replica": [sh("a", "sleep 0.$LAUNCH_REPLICA_ID; exit 1", replica, 2, 2), sh("b", "sleep 4", replica, 2, 1)],
        "recovers": [sh("a", "sleep 0.2; [ $LAUNCH_ATTEMPT = 2 ]", replica, 3, 2)],
        "application": [sh("a", "sleep 0.3; exit 1", application, 2, 2), sh("b", "sleep 60", application, 2, 1)],
        "again": [sh("a", "sleep 0.2; [ $LAUNCH_ATTEMPT = 1 ]", application, 2, 2), sh("b", "true", replica, 0, 1)],
    }
    ids = {}
    for name, roles in apps.items():
        info = scheduler.submit_dryrun(AppDef("chaos", roles), {"grace_s": 1}, app_id=make_unique(f"chaos-{name}"))
        ids[name] = scheduler.schedule(info)
    yield ids
    for app_id in ids.values():
        scheduler.delete(app_id)
    scheduler.close()


@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", [1, 2])
def test_observers_that_stall_and_die_keep_the_counts(
    docker_engine: DockerEngine, launched: dict[str, str], seed: int
) -> None:
    def make(chaos: Chaos) -> DockerScheduler:
        scheduler = DockerScheduler("observer", DockerConnection(host=docker_engine.host))
        scheduler.engine.wire.open = chaos.around(scheduler.engine.wire.open)  # type: ignore[method-assign]
        return scheduler

    how: Any = {"stall_s": 1.5, "chaos_s": 25, "limit_s": 60, "pause_s": 0.3}
    observers = Observers(make, launched.values(), seed, fatal=lambda method: method == "POST", **how)
    ends = observers.ends()

    expected = {
        # Three attempts of the replica that fails first, up to three of the other, one of the peer.
        "replica": (AppState.FAILED, range(5, 8)),
        "recovers": (AppState.SUCCEEDED, range(6, 7)),
        # An attempt whose first replica fails at once may end before the others have started.
        "application": (AppState.FAILED, range(3, 10)),
        "again": (AppState.SUCCEEDED, range(4, 7)),
    }
    assert observers.deaths > 0
    for name, (state, counts) in expected.items():
        assert {each[launched[name]] for each in ends} == {state}, name
        ran = attempts(docker_engine, launched[name])
        assert len(ran) in counts, name
        # Each container was started once, regardless of the number of observers.
        assert all(starts_in(docker_engine, container) <= 1 for container in ran), name
        assert all(container["State"]["Running"] is False for container in ran), name
    keys = [
        (c["Config"]["Labels"][Label.ROLE], c["Config"]["Labels"][Label.REPLICA], c["Config"]["Labels"][Label.ATTEMPT])
        for c in attempts(docker_engine, launched["replica"])
    ]
    assert len(keys) == len(set(keys))
    assert max(int(attempt) for _, _, attempt in keys) == 2
    for name in ("application", "again"):
        _assert_no_overlap(attempts(docker_engine, launched[name]))


def _assert_no_overlap(containers: list[dict[str, Any]]) -> None:
    """All attempts of the app ran, and no two attempts overlapped."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for container in containers:
        number = int(container["Config"]["Labels"][Label.APP_ATTEMPT])
        state = container["State"]
        spans.setdefault(number, []).append((epoch_ns(state["StartedAt"]), epoch_ns(state["FinishedAt"])))
    assert sorted(spans) == list(range(len(spans)))
    assert len(spans) > 1
    for number in range(1, len(spans)):
        assert max(end for _, end in spans[number - 1]) <= min(start for start, _ in spans[number])


def test_a_container_whose_creator_died_is_started_by_another(
    docker_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creator counts as dead after some seconds; if it was only slow, its own start must fail then."""
    from airflow_provider_launch.schedulers.docker import observer as module

    monkeypatch.setattr(module, "_TAKEOVER_S", 1.0)
    slow = DockerScheduler("slow", DockerConnection(host=docker_engine.host))
    other = DockerScheduler("other", DockerConnection(host=docker_engine.host))
    script = "echo begun; [ $LAUNCH_ATTEMPT = 1 ]"
    role = Role(
        "a", docker_engine.image, entrypoint="sh", args=["-c", script], max_retries=1, retry_policy=RetryPolicy.REPLICA
    )
    app_id = slow.schedule(slow.submit_dryrun(AppDef("slow", [role]), {}))
    start, late = slow.engine.start, threading.Event()

    def stalled(name: str) -> None:
        late.wait(60)
        start(name)

    monkeypatch.setattr(slow.engine, "start", stalled)
    stalling = threading.Thread(target=_until_ended, args=(slow, app_id))
    stalling.start()
    assert _until_ended(other, app_id) is AppState.SUCCEEDED
    late.set()
    stalling.join()

    ran = attempts(docker_engine, app_id)
    assert sorted(starts_in(docker_engine, container) for container in ran) == [1, 1]
    assert slow.describe(app_id).state is AppState.SUCCEEDED
    other.delete(app_id)
    slow.close()
    other.close()


def _until_ended(scheduler: DockerScheduler, app_id: str) -> AppState:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(LaunchError):
            response = scheduler.describe(app_id)
            if response and is_terminal(response.state):
                return response.state
        time.sleep(0.1)
    raise AssertionError("has not ended")


def test_a_time_limit_is_kept_while_the_log_is_followed(docker_apps):
    """A follower that gets ends from the log polls states every five seconds only, and the observer ends the app."""
    app_id = docker_apps.start(docker_apps.sh("while :; do echo up; sleep 0.2; done"), time_limit_s=2, grace_s=0)
    began = time.monotonic()
    with Follower(docker_apps.scheduler, app_id) as follower:
        events = [event for event in follower if isinstance(event, Ended) or time.monotonic() > began + 20]

    assert isinstance(events[-1], Ended)
    assert "time limit of 2 s reached" in events[-1].response.msg
    # The engine has the creation time of the app in whole seconds.
    assert time.monotonic() - began < 4.5  # a poll every five seconds would see it later
