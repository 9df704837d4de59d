"""The cache of polled apps; no engine is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker import catalog as module
from airflow_provider_launch.schedulers.docker.catalog import Catalog

Request: Any = SimpleNamespace


@pytest.fixture
def catalog() -> Catalog:
    """Return the catalog of an engine that is never called."""
    engine: Any = None
    return Catalog(engine)


def test_old_requests_are_dropped_and_used_ones_are_kept(catalog):
    """A triggerer runs for months, and a request may have 50 KB."""
    for number in range(3 * module._KEPT_REQUESTS):
        catalog.remember(Request(app_id=f"app-{number}"))
        assert catalog.cached_request("app-0") is not None

    kept = sum(catalog.cached_request(f"app-{number}") is not None for number in range(3 * module._KEPT_REQUESTS))
    assert kept == module._KEPT_REQUESTS
    assert catalog.cached_request("app-1") is None


def test_a_request_that_is_remembered_again_is_kept_once(catalog):
    for _ in range(2 * module._KEPT_REQUESTS):
        catalog.remember(Request(app_id="app"))
    catalog.remember(Request(app_id="other"))

    assert catalog.cached_request("app") is not None
    catalog.forget("app")
    assert catalog.cached_request("app") is None
