"""Fixtures around the AWS Batch of the tests; a test that uses them is marked `engine("aws_batch")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.aws_batch.engine import BatchServer
from tests.engines.aws_batch.names import QUEUE, REGION
from tests.engines.docker.fixtures import DockerEngine
from tests.faults import FaultProxy


def params_for(url: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of a scheduler that uses this address of the server."""
    return {
        "endpoint_url": url.replace("tcp://", "http://"),
        "region_name": REGION,
        # Airflow masks both texts everywhere, so they must not be ordinary words.
        "aws_access_key_id": "key-of-the-tests",
        "aws_secret_access_key": "no-secret-of-the-tests",
        "requests_per_s": 1000,
        "log_requests_per_s": 1000,
        # A real account needs 60 s; this server lists a job in less than one.
        "claim_wait_s": 2.0,
        **more,
    }


@pytest.fixture(scope="session")
def batch_server(docker_engine: DockerEngine) -> Iterator[BatchServer]:
    """The server of this test process."""
    with BatchServer() as server:
        yield server


@pytest.fixture
def batch_proxy(batch_server: BatchServer) -> Iterator[FaultProxy]:
    """A proxy in front of the server."""
    with FaultProxy(batch_server.url, "tcp") as proxy:
        yield proxy
    assert not proxy.missed()


@pytest.fixture
def batch_params(batch_proxy: FaultProxy) -> dict[str, Any]:
    """Arguments of a scheduler behind the proxy."""
    return params_for(batch_proxy.url)


@pytest.fixture
def batch_queue() -> str:
    """The queue of the tests."""
    return QUEUE
