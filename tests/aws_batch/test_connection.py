"""Connections of type `launch_aws_batch`: the connection test, and the credentials in use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_launch.hooks.aws_batch import AwsBatchLaunchHook, clients_of_aws_connection
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.schedulers.aws_batch.scheduler import create_scheduler
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.engines.aws_batch.fixtures import params_for
from tests.faults import Fault, FaultProxy, error


@pytest.fixture
def define(monkeypatch):
    def define(**extra: Any) -> LaunchHook:
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_aws_batch", "extra": extra}))
        return LaunchHook.for_connection("c")

    return define


@pytest.mark.engine("aws_batch")
def test_the_test_asks_and_changes_nothing(define, batch_params, batch_queue, batch_proxy: FaultProxy) -> None:
    is_fine, text = define(**batch_params, queue=batch_queue).test_connection()

    assert is_fine, text
    assert "us-east-1" in text
    assert not batch_proxy.matching("POST", "/registerjobdefinition$")


@pytest.mark.engine("aws_batch")
def test_a_missing_queue_is_named(define, batch_params) -> None:
    is_fine, text = define(**batch_params, queue="no-such-queue").test_connection()

    assert not is_fine
    assert "no-such-queue" in text


@pytest.mark.engine("aws_batch")
def test_a_missing_permission_is_named(define, batch_params, batch_queue, batch_proxy: FaultProxy) -> None:
    denied = {"__type": "AccessDeniedException", "message": "not authorized to perform: batch:TerminateJob"}
    batch_proxy.add(Fault(error(403, body=denied), "POST", "/terminatejob$", times=None))
    is_fine, text = define(**batch_params, queue=batch_queue).test_connection()

    assert not is_fine
    assert "batch:TerminateJob" in text
    assert "batch:DescribeJobs" not in text


def test_an_unreachable_service_is_an_outage() -> None:
    scheduler = create_scheduler("c", **params_for("http://127.0.0.1:1"))

    with pytest.raises(SchedulerUnavailableError, match="is unreachable"):
        scheduler.describe("app-1")


@pytest.mark.engine("aws_batch")
def test_expired_credentials_are_an_outage_and_not_an_end(batch_params, batch_proxy: FaultProxy) -> None:
    body = {"__type": "ExpiredTokenException", "message": "The security token included in the request is expired"}
    batch_proxy.add(Fault(error(403, body=body), "POST", times=None))

    with pytest.raises(SchedulerUnavailableError, match="expired"):
        create_scheduler("c", **batch_params).describe("app-1")


def test_a_connection_of_airflow_is_read_by_its_hook_only(define) -> None:
    hook = define(aws_conn_id="aws_default", queue="q")

    assert isinstance(hook, AwsBatchLaunchHook)
    assert hook.options.params["make_clients"] is clients_of_aws_connection
    with pytest.raises(InvalidAppError, match="only its hook"):
        create_scheduler("c", aws_conn_id="aws_default").describe("app-1")


def test_without_the_amazon_provider_the_cure_is_named() -> None:
    pytest.importorskip("boto3")
    try:
        import airflow.providers.amazon  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match="apache-airflow-providers-amazon"):
            clients_of_aws_connection(AwsBatchConnection(aws_conn_id="aws_default"))
    else:
        pytest.skip("the amazon provider is installed")


def test_a_missing_connection_of_type_aws_is_refused() -> None:
    """The amazon provider would take the credentials of the host, which may be another account."""
    pytest.importorskip("airflow.providers.amazon")

    with pytest.raises(SchedulerRejectedError, match=r"'nowhere' is not a connection of Airflow; create it"):
        clients_of_aws_connection(AwsBatchConnection(aws_conn_id="nowhere", region_name="eu-west-1"))
