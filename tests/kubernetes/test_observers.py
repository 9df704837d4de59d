"""Several observers that stall or die at any point: exact counts, no double start, no overlap."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.objects import Pod
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.specs import AppState, RetryPolicy, Role, is_terminal
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.support.apps import until
from tests.support.chaos import Chaos, Observers

pytestmark = pytest.mark.engine("kubernetes")


def role(apps: Any, name: str, script: str, policy: RetryPolicy, retries: int, replicas: int) -> Role:
    text = f"echo begun; {script}"
    return apps.sh(text, name, num_replicas=replicas, max_retries=retries, retry_policy=policy)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2])
def test_observers_that_stall_and_die_keep_the_counts(kubernetes_apps, seed):
    apps, application, replica = kubernetes_apps, RetryPolicy.APPLICATION, RetryPolicy.REPLICA
    roles = {
        "application": [
            role(apps, "a", "sleep 0.3; exit 1", application, 2, 2),
            role(apps, "b", "sleep 300", application, 2, 2),
        ],
        "again": [
            role(apps, "a", "sleep 0.2; [ $LAUNCH_ATTEMPT = 1 ]", application, 2, 2),
            role(apps, "b", "true", replica, 0, 1),
        ],
        "replica": [role(apps, "a", "exit 1", replica, 1, 2), role(apps, "b", "sleep 300", replica, 1, 1)],
    }
    ids = {name: apps.start(*each) for name, each in roles.items()}

    def make(chaos: Chaos) -> KubernetesScheduler:
        scheduler = apps.another()
        scheduler.cluster._sent = chaos.around(scheduler.cluster._sent)
        return scheduler

    how: Any = {"stall_s": 3, "chaos_s": 60, "limit_s": 200, "pause_s": 0.5}
    observers = Observers(make, ids.values(), seed, fatal=lambda method: method != "GET", **how)
    ends = observers.ends()
    assert observers.deaths > 3, "the chaos was none"

    expected = {"application": AppState.FAILED, "again": AppState.SUCCEEDED, "replica": AppState.FAILED}
    assert all(each == {ids[name]: state for name, state in expected.items()} for each in ends), ends
    pods = {name: apps.pods(app_id) for name, app_id in ids.items()}
    assert attempts(pods["application"], "a") == {0: 2, 1: 2, 2: 2}
    # If the first role fails at once, an attempt may end before the other role starts: the observer may have died.
    begun = attempts(pods["application"], "b")
    assert begun[0] >= 2
    assert begun.keys() <= {0, 1, 2}
    assert attempts(pods["again"], "a") == {0: 2, 1: 2}
    for found in pods.values():
        assert overlaps(found) == []
    for app_id in ids.values():
        apps.scheduler.delete(app_id)


def attempts(pods: list[Pod], name: str) -> dict[int, int]:
    """Return the number of replicas of a role that were created in each attempt of the app."""
    found: dict[int, int] = {}
    for pod in pods:
        if pod.role == name:
            found[pod.app_attempt] = found.get(pod.app_attempt, 0) + 1
    return found


def overlaps(pods: list[Pod]) -> list[tuple[str, str]]:
    """Return pods of different attempts of the app that ran at the same time; the server's times are whole seconds."""
    ran = [pod for pod in pods if pod.started is not None]
    return [
        (one.name, other.name)
        for one in ran
        for other in ran
        if one.app_attempt < other.app_attempt and (one.finished or time.time()) > (other.started or 0) + 1
    ]


def test_an_unobserved_failure_is_made_up_for(kubernetes_apps):
    """After a while without polls the app continues, with the same counts."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run; exit 3", max_retries=1), apps.sh("echo up; sleep 300", "peer"))
    until(lambda: any(pod.phase == "Failed" for pod in apps.pods(app_id)), 60, 0.5)
    time.sleep(3)
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert found.num_restarts == 1
    assert apps.lines(app_id) == ["run\n"] * 2
    assert apps.lines(app_id, "peer") == ["up\n"] * 2


@pytest.mark.parametrize("nth", [1, 2])
def test_an_attempt_that_starts_while_an_app_is_read_is_not_a_loss(kubernetes_apps, nth):
    """The record then names Jobs that did not exist when they were listed."""
    apps = kubernetes_apps
    role = apps.sh("exit 5", max_retries=1, retry_policy=RetryPolicy.APPLICATION)
    app_id = apps.start(role)
    until(lambda: any(pod.phase == "Failed" for pod in apps.pods(app_id)), 60, 0.2)
    time.sleep(2)  # the Job has failed too
    slow, fast = apps.another(), apps.another()
    sent, read = slow.cluster._sent, 0

    def late(method: str, path: str, *args: Any) -> Any:
        nonlocal read
        if method == "GET" and path.endswith(f"/services/{app_id}"):
            read += 1
            if read == nth:
                fast.describe(app_id)
        return sent(method, path, *args)

    slow.cluster._sent = late
    found = slow.describe(app_id)
    record = fast._catalog.unchecked_record(app_id)

    assert read >= nth
    assert record is not None
    assert (record.attempt, len(record.committed or {})) == (1, 1), "the other observer began no attempt"
    assert found is not None
    assert found.state is AppState.RUNNING, found.msg


@pytest.mark.engine("kube-apiserver")
def test_an_api_server_that_is_killed_and_started_costs_no_line(
    kubernetes_apps, kubernetes_api_server, kubernetes_namespace
):
    """Kill the server twenty times while several apps run; their run times are unknown meanwhile."""
    apps = kubernetes_apps
    through = apps.another(kubeconfig_path=str(kubernetes_api_server.kubeconfig))
    kills = 0
    while kills < 20:
        kills += run_with_kills(apps, through, kubernetes_api_server, most=min(7, 20 - kills))


def run_with_kills(apps, through, server, *, most: int) -> int:
    """Follow an app, kill the server now and then, and return how often."""
    script = "i=0; while [ $i -lt 600 ]; do i=$((i + 1)); echo $i; sleep 0.05; done"
    app_id = through.schedule(apps.info(apps.sh(script)))
    seen: list[str] = []
    cursor, kills, outages = None, 0, 0
    state = AppState.PENDING
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        try:
            found = through.describe(app_id)
            assert found is not None
            state = found.state
            chunk = through.read_logs(app_id, "main", 0, cursor)
        except SchedulerUnavailableError:
            outages += 1
            if kills and outages % 3 == 0:
                server.start()
            continue
        seen += [line.text for line in chunk.lines]
        cursor = chunk.cursor
        if is_terminal(state) and not chunk.lines:
            break
        if len(seen) > 40 * (kills + 1) and kills < most and not is_terminal(state):
            server.kill()
            kills += 1
        time.sleep(0.1)

    assert kills
    assert state is AppState.SUCCEEDED
    assert seen == [f"{n}\n" for n in range(1, 601)]
    return kills
