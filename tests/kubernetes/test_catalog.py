"""The cache of apps: everything about polled apps, little about others."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog
from airflow_provider_launch.specs import AppState

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
    for known in catalog._known.values():
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
    assert len(catalog._known) == 5001
    look(catalog, later_s=61)

    assert len(catalog._known) == 5000
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
