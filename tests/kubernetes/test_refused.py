"""Steps the cluster refuses, and records that somebody has damaged: told, tried again, at nobody else's cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.naming import Note
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.specs import AppState

pytestmark = pytest.mark.engine("kubernetes")


class Requests:
    """Records what one scheduler asks for."""

    def __init__(self, scheduler: KubernetesScheduler) -> None:
        self.made: list[str] = []
        self._sent = scheduler.cluster._sent
        scheduler.cluster._sent = self._record  # type: ignore[method-assign]

    def _record(self, method: str, path: str, *args: Any) -> Any:
        self.made.append(f"{method} {path}")
        return self._sent(method, path, *args)


def test_a_retry_that_is_refused_waits_and_costs_the_others_nothing(apps_in, kubernetes_make_namespace):
    """The cluster may have room for it later; nobody but this app waits for that."""
    apps = apps_in(kubernetes_make_namespace())
    others = [apps.start(apps.sh("exec sleep 300")) for _ in range(4)]
    for app_id in others:
        apps.running(app_id)
    app_id = apps.start(apps.sh("sleep 3; exit 3", max_retries=1))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "5"}}}
    apps.call("POST", "/api/v1/{ns}/resourcequotas", quota)
    waits = apps.until(app_id, lambda found: "exceeded quota" in found.msg)
    assert waits.state is AppState.RUNNING

    requests = Requests(apps.scheduler)
    until = time.monotonic() + 4
    looks = 0
    while time.monotonic() < until:
        found = apps.scheduler.describe_many([*others, app_id])
        assert {response.state for response in found.values() if response} == {AppState.RUNNING}
        looks += 1
        time.sleep(0.1)
    assert sum(one.startswith("POST") for one in requests.made) <= 1
    # The Jobs of all, the anchor of this one; and once a few more for the step.
    assert len(requests.made) <= 2 * looks + 8
    apps.call("DELETE", "/api/v1/{ns}/resourcequotas/q")
    found = apps.end(app_id)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 1)


@pytest.mark.parametrize("notes", [{Note.REQUEST: "x"}, {Note.REQUEST: "eJyrVgIAAW4AuQ=="}, {Note.ATTEMPT: "x"}])
def test_a_damaged_record_costs_the_others_nothing(kubernetes_apps, notes):
    apps = kubernetes_apps
    good, bad = apps.start(apps.sh("exec sleep 300")), apps.start(apps.sh("sleep 5; exit 3", max_retries=1))
    for app_id in (good, bad):
        apps.running(app_id)
    apps.cluster.patch("services", bad, {"metadata": {"annotations": notes}})
    fresh = apps.another()

    told = fresh.describe(bad)
    assert told is not None
    assert told.state is AppState.RUNNING
    assert "damaged" in told.msg
    time.sleep(8)
    found = fresh.describe_many([good, bad])
    assert (found[good].state, found[bad].state) == (AppState.RUNNING, AppState.UNKNOWN)
    assert "damaged" in found[bad].msg
    assert {row.app_id for row in fresh.list()} >= {good, bad}
    for app_id in (good, bad):
        fresh.delete(app_id)
