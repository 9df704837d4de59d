"""Shared fixtures of the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from tests.support import apps

described = partial(apps.described, missing_ok=True)  # lists of jobs are late


@pytest.fixture
def scheduler(batch_params) -> Iterator[AwsBatchScheduler]:
    """A scheduler behind the proxy."""
    scheduler = create_scheduler("tests", **batch_params)
    yield scheduler
    scheduler.close()
