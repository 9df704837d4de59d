"""Shared fixtures of the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import boto3
import pytest

from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from tests.engines.aws_batch.names import REGION
from tests.support import apps

described = partial(apps.described, missing_ok=True)  # lists of jobs are late


@pytest.fixture
def definition(batch_server, docker_engine) -> str:
    """A job definition of a user, which has an image, resources and a variable."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("batch", endpoint_url=batch_server.url, region_name=REGION, **keys)
    name = make_unique("users")
    made = client.register_job_definition(
        jobDefinitionName=name,
        type="container",
        containerProperties={
            "image": docker_engine.image,
            "command": ["echo", "the command of the definition"],
            "environment": [{"name": "GREETING", "value": "cost $5"}, {"name": "PLACE", "value": "moon"}],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "96"}],
            "user": "1000",
        },
    )
    assert made["revision"] == 1
    return name


@pytest.fixture
def scheduler(batch_params) -> Iterator[AwsBatchScheduler]:
    """A scheduler behind the proxy."""
    scheduler = create_scheduler("tests", **batch_params)
    yield scheduler
    scheduler.close()
