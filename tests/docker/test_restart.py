"""The daemon ends, gracefully or not, and restarts: the ends of the apps are reported correctly."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_launch.follow.events import Ended, Event, LogGap, Reached, Unreachable
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.specs import AppState, RetryPolicy, SchedulerUnavailableError, is_terminal
from tests.docker.conftest import DockerApps
from tests.engines.docker import images
from tests.engines.docker.private import PrivateDocker
from tests.support.apps import until
from tests.support.follow import collect, texts

pytestmark = [pytest.mark.engine("dockerd"), pytest.mark.timeout(200)]

ENDS = pytest.mark.parametrize("end", ["term", "kill"])
COUNT = "i=0; while [ $i -lt 80 ]; do i=$((i+1)); echo $i; echo e$i >&2; sleep 0.1; done"
NUMBERS = [f"{number}\n" for number in range(1, 81)]


@contextlib.contextmanager
def private_apps(*, live_restore: bool) -> Iterator[tuple[PrivateDocker, DockerApps]]:
    with PrivateDocker(live_restore=live_restore) as private, contextlib.closing(private.client()) as client:
        apps = DockerApps(private.host, client, images.busybox(client))
        try:
            yield private, apps
        finally:
            apps.close()


class Following(threading.Thread):
    """A follower that collects its events in the background."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._follower = follower
        self.start()

    def run(self) -> None:
        with self._follower:
            self.events = collect(self._follower, 90)


class Observing(threading.Thread):
    """An observer like a sensor: polls the state of apps without a pause, and performs their next steps."""

    def __init__(self, apps: DockerApps, app_ids: list[str]) -> None:
        super().__init__()
        self.states: dict[str, list[AppState]] = {app_id: [] for app_id in app_ids}
        self.outages = 0
        self._scheduler = apps.another()
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                found = self._scheduler.describe_many(self.states)
            except SchedulerUnavailableError:
                self.outages += 1
            else:
                for app_id, response in found.items():
                    assert response is not None
                    self.states[app_id].append(response.state)
                if all(response and is_terminal(response.state) for response in found.values()):
                    return
            time.sleep(0.05)


@ENDS
def test_with_live_restore_the_app_continues(end: str) -> None:
    """No line is lost and none is repeated, neither for a follower nor for a reader with a stored cursor."""
    with private_apps(live_restore=True) as (private, apps):
        result = """; echo '{"n": 80}' >$LAUNCH_RESULT_PATH"""
        app_id = apps.start(apps.sh(COUNT + result, "a"), apps.sh(COUNT + "; exit 0", "b", num_replicas=2))
        following = Following(Follower(apps.another(), app_id, poll_interval_s=0.2))
        until(lambda: len(apps.lines(app_id, "a")) > 20)
        before = apps.scheduler.read_logs(app_id, "b", 1)

        getattr(private, end)()
        with pytest.raises(SchedulerUnavailableError):
            apps.scheduler.describe(app_id)
        time.sleep(1)
        private.start()

        found = apps.end(app_id)
        following.join()
        assert found.state is AppState.SUCCEEDED, found
        assert found.num_restarts == 0
        assert [c["RestartCount"] for c in apps.containers(app_id)] == [0] * 3
        assert apps.scheduler.result(app_id) == {"n": 80}
        events = [type(event) for event in following.events]
        assert events.index(Unreachable) < events.index(Reached)
        assert events[-1] is Ended
        gaps = [event.message for event in following.events if isinstance(event, LogGap)]
        assert all(gap.startswith("cannot read logs, retrying") for gap in gaps), gaps
        for role, k in (("a", 0), ("b", 0), ("b", 1)):
            told = texts(following.events, role, k)
            assert [text for text in told if text[0] != "e"] == NUMBERS
            assert [text for text in told if text[0] == "e"] == [f"e{text}" for text in NUMBERS]
        rest, cursor = [], before.cursor
        other = apps.another()
        while (chunk := other.read_logs(app_id, "b", 1, cursor)).lines:
            rest += chunk.lines
            cursor = chunk.cursor
        assert [text for line in (*before.lines, *rest) if (text := line.text)[0] != "e"] == NUMBERS


def starts(apps: DockerApps, app_id: str) -> list[tuple[str, int, int]]:
    """Return role, attempt of the app and attempt of each container that was ever started."""
    labels = [c["Config"]["Labels"] for c in apps.containers(app_id) if c["State"]["Status"] != "created"]
    return sorted((row[Label.ROLE], int(row[Label.APP_ATTEMPT]), int(row[Label.ATTEMPT])) for row in labels)


@ENDS
def test_without_live_restore_killed_replicas_have_failed(end: str) -> None:
    """Each counts as one failure of its policy, none is run twice, and the reason names the restart."""
    first = 'echo begun; [ "$LAUNCH_ATTEMPT" = 1 ] || sleep 300'
    deaf = f"trap '' TERM; {first}"
    replica: dict[str, Any] = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    application: dict[str, Any] = {"max_retries": 1, "retry_policy": RetryPolicy.APPLICATION}
    with private_apps(live_restore=False) as (private, apps):
        done = apps.start(apps.sh("echo begun; exit 0"))
        assert apps.end(done).state is AppState.SUCCEEDED
        retried = apps.start(apps.sh(first, "a", num_replicas=2, **replica), apps.sh("echo begun", "b", **replica))
        restarted = apps.start(apps.sh(first, "a", **application), apps.sh(deaf, "b", **application))
        lost = apps.start(apps.sh("echo begun; sleep 300", "a"), apps.sh("sleep 300", "b"))
        until(lambda: sum(map(sum, map(apps.begun, [done, retried, restarted, lost]))) == 7)
        observing = [Observing(apps, [retried, restarted, lost]) for _ in range(2)]

        getattr(private, end)()
        until(lambda: all(observer.outages for observer in observing))
        private.start()
        for observer in observing:
            observer.join()

        assert starts(apps, done) == [("main", 0, 0)]
        assert apps.end(done).state is AppState.SUCCEEDED
        assert starts(apps, retried) == [("a", 0, 0), ("a", 0, 0), ("a", 0, 1), ("a", 0, 1), ("b", 0, 0)]
        assert starts(apps, restarted) == [("a", 0, 0), ("a", 1, 0), ("b", 0, 0), ("b", 1, 0)]
        assert starts(apps, lost) == [("a", 0, 0), ("b", 0, 0)]
        for app_id in (retried, restarted):
            assert set(apps.begun(app_id)) == {1}
            assert apps.end(app_id).state is AppState.SUCCEEDED
        for observer in observing:
            assert {state[-1] for state in observer.states.values()} == {AppState.SUCCEEDED, AppState.FAILED}
            for states in observer.states.values():
                assert set(states) <= {AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED}
                assert is_terminal(states[-1])
                assert len({state for state in states if is_terminal(state)}) == 1
        found = apps.end(lost)
        assert found.state is AppState.FAILED
        for role in found.roles_statuses:
            (status,) = role.replicas
            assert re.fullmatch(r"SIG(TERM|KILL); the engine was restarted at 2\S+Z", status.reason or ""), status
            assert status.exit_code in {137, 143}


@pytest.mark.engine("docker")
def test_an_outside_kill_is_not_a_restart_of_the_engine(docker_apps, docker_proxy) -> None:
    """The engine has run since before its end; that is checked once."""
    found = docker_apps.run(docker_apps.sh("kill -9 $$$$"))
    found = docker_apps.end(found.app_id)
    (status,) = found.roles_statuses[0].replicas
    assert (status.exit_code, status.reason) == (137, "SIGKILL")
    assert docker_proxy.count("GET", "/networks/bridge$") == 1
