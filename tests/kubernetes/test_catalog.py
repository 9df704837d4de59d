"""The cache of apps: everything about polled apps, little about others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.follow.poll_schedule import PollSchedule
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog
from airflow_provider_launch.schedulers.kubernetes.reconcile import Assessment
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.specs import AppState
from tests.follow.test_poll_schedule import Asked
from tests.kubernetes.test_reconcile import STARTED, app, job

MANY = 5100


class Nothing:
    """A cluster without objects."""

    def list(self, _kind: str, _selector: str) -> tuple[list[dict[str, Any]], float]:
        return [], 0.0


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(Nothing())  # type: ignore[arg-type]


def look(catalog: Catalog, *, later_s: float = 0.0) -> None:
    """Poll as if this many seconds had passed since the last poll."""
    for known in catalog._cached.values():
        known.asked_at -= later_s
    catalog._tidied_at -= later_s
    catalog.jobs([])


def test_however_many_apps_are_asked_for_none_is_forgotten(catalog):
    """Otherwise each poll would read the pods of all of them again."""
    known = [catalog.of(f"app{n}") for n in range(MANY)]
    look(catalog, later_s=61)

    assert all(catalog.of(f"app{n}") is one for n, one in enumerate(known))


def test_of_many_apps_those_that_were_asked_for_last_are_remembered(catalog):
    for n in range(MANY):
        catalog.of(f"app{n}")
    look(catalog, later_s=700)
    first = catalog.of("app0")
    assert len(catalog._cached) == 5001
    look(catalog, later_s=61)

    assert len(catalog._cached) == 5000
    assert catalog.of("app0") is first


def test_of_an_app_that_has_ended_the_answer_is_remembered(catalog):
    """The pods of a thousand replicas take megabytes."""
    ended, live = catalog.of("ended"), catalog.of("live")
    for known in (ended, live):
        known.pods, known.pods_of = [object()], ("1",)  # type: ignore[list-item]
    ended.final = DescribeAppResponse("ended", AppState.SUCCEEDED)
    look(catalog)
    assert ended.pods
    look(catalog, later_s=61)

    assert (ended.pods, ended.pods_of, ended.request) == ([], None, None)
    assert ended.final is not None
    assert live.pods


def test_an_app_that_waits_costs_fewer_requests_the_longer_it_waits(monkeypatch) -> None:
    """Its Jobs at each poll, its pods more and more rarely; a change of a Job is read at once."""
    asked: list[str] = []
    cluster = SimpleNamespace(list=lambda kind, _: (asked.append(kind), ([], 0.0))[1])
    catalog = Catalog(cluster)  # type: ignore[arg-type]
    clock = SimpleNamespace(monotonic=lambda: polls.now)
    monkeypatch.setattr("airflow_provider_launch.schedulers.kubernetes.catalog.time", clock)
    waits = app(None, job("main", {"active": 2, "startTime": STARTED}))
    requests: list[float] = []

    def poll(app_id: str, now: float) -> DescribeAppResponse:
        before = len(asked)
        catalog.jobs([app_id])
        catalog.read_pods([(waits, Assessment(AppState.PENDING))])
        requests.extend([now] * (len(asked) - before))
        return DescribeAppResponse(app_id, AppState.PENDING)

    polls = Asked(PollSchedule(KubernetesScheduler.poll_interval_s), poll)
    polls.add("app")
    polls.until(600)
    per_minute = [sum(60 * n <= moment < 60 * (n + 1) for moment in requests) for n in range(10)]

    assert per_minute[0] <= 43
    assert max(per_minute[1:]) <= 14
    assert max(per_minute[3:]) <= 8
