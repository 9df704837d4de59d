"""Credentials from Airflow's connection of type aws, and assumed roles, with the token service of the test server."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.engines.aws_batch.containers import IDLE_IMAGE
from tests.engines.aws_batch.names import REGION
from tests.faults import FaultProxy

pytestmark = pytest.mark.timeout(120)
on_batch = pytest.mark.engine("aws_batch")

ROLE = "arn:aws:iam::123456789012:role/launch"


def asked_sts(proxy: FaultProxy) -> list[str]:
    return [one.body.decode() for one in proxy.requests if b"Action=AssumeRole" in one.body]


def keys_used(proxy: FaultProxy) -> set[str]:
    """Return the access keys of the requests to Batch."""
    found = set()
    for one in proxy.matching("POST", "^/v1/"):
        (text,) = [value for name, value in one.headers if name.lower() == "authorization"]
        found.add(text.partition("Credential=")[2].partition("/")[0])
    return found


def run(scheduler: Any, queue: str) -> None:
    role = Role("main", IDLE_IMAGE, entrypoint="x", resource=Resource(1, 0, 64))
    info = scheduler.submit_dryrun(AppDef("aws", [role]), {"queue": queue}, app_id=make_unique("aws"))
    app_id = scheduler.schedule(info)
    assert scheduler.describe(app_id) is not None
    scheduler.delete(app_id)


@pytest.fixture
def hook(monkeypatch, batch_proxy: FaultProxy, batch_queue):
    """Return the hook of a launch connection that names one of type aws with these extras."""
    pytest.importorskip("airflow.providers.amazon")

    def make(login: str = "of-aws", **extra: Any) -> LaunchHook:
        url = batch_proxy.url.replace("tcp://", "http://")
        aws = {"conn_type": "aws", "login": login, "password": "x", "extra": {"region_name": REGION, **extra}}
        aws["extra"].setdefault("endpoint_url", url)
        monkeypatch.setenv("AIRFLOW_CONN_AWS_LAUNCH", json.dumps(aws))
        launch = {"aws_conn_id": "aws_launch", "queue": batch_queue, "claim_wait_s": 2}
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_aws_batch", "extra": launch}))
        return LaunchHook.for_connection("c")

    return make


@on_batch
@pytest.mark.filterwarnings("default")
def test_an_app_runs_by_the_connection_of_type_aws(hook, batch_proxy, batch_queue) -> None:
    found = hook()
    run(found.scheduler, batch_queue)
    is_fine, text = found.test_connection()

    assert is_fine, text
    assert keys_used(batch_proxy) == {"of-aws"}


@on_batch
@pytest.mark.filterwarnings("default")
def test_proxies_retries_and_endpoints_of_both_sides_are_kept(hook, batch_proxy) -> None:
    theirs = {"proxies": {"https": "http://proxy.invalid:3128"}, "retries": {"mode": "legacy"}}
    services = {"logs": {"endpoint_url": "http://127.0.0.1:9"}}
    found = hook(config_kwargs=theirs, service_config=services)
    clients = found.scheduler.aws.clients

    assert clients.batch.meta.config.proxies == theirs["proxies"]
    assert clients.submit.meta.config.retries["total_max_attempts"] == 1
    assert clients.batch.meta.config.retries["total_max_attempts"] == 3
    assert clients.logs.meta.endpoint_url == "http://127.0.0.1:9"
    assert clients.batch.meta.endpoint_url == batch_proxy.url.replace("tcp://", "http://")


@on_batch
@pytest.mark.filterwarnings("default")
def test_the_role_of_the_connection_of_type_aws_is_assumed(hook, batch_proxy, batch_queue) -> None:
    found = hook(
        role_arn=ROLE,
        assume_role_kwargs={"ExternalId": "airflow"},
        service_config={"sts": {"endpoint_url": batch_proxy.url.replace("tcp://", "http://")}},
    )
    run(found.scheduler, batch_queue)

    assert len(asked_sts(batch_proxy)) >= 1
    assert "ExternalId=airflow" in asked_sts(batch_proxy)[0]
    assert keys_used(batch_proxy) != {"of-aws"}


def by_role(params: dict[str, Any], **more: Any) -> AwsBatchScheduler:
    return create_scheduler("role", **{**params, "role_arn": ROLE, "external_id": "airflow", **more})


@on_batch
def test_a_role_is_assumed_by_boto3_alone_and_renewed_before_its_keys_expire(
    batch_params, batch_proxy, batch_queue, monkeypatch
) -> None:
    scheduler = by_role(batch_params, role_session_name="us", role_duration_s=1800)
    run(scheduler, batch_queue)
    (asked,) = asked_sts(batch_proxy)
    first = keys_used(batch_proxy)
    # In their last quarter of an hour, for all clients alike.
    credentials = scheduler.aws.clients.batch._request_signer._credentials

    def later() -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=17)

    monkeypatch.setattr("botocore.credentials._local_now", later)
    monkeypatch.setattr(credentials, "_time_fetcher", later)
    run(scheduler, batch_queue)

    assert all(text in asked for text in ("ExternalId=airflow", "RoleSessionName=us", "DurationSeconds=1800"))
    assert len(asked_sts(batch_proxy)) >= 2
    assert batch_params["aws_access_key_id"] not in first
    assert len(keys_used(batch_proxy)) >= 2


@on_batch
def test_configuration_is_merged_without_the_provider(batch_params) -> None:
    proxies = {"https": "http://proxy.invalid:3128"}
    clients = create_scheduler("c", **batch_params, config_kwargs={"proxies": proxies}).aws.clients

    assert clients.submit.meta.config.proxies == proxies
    assert clients.submit.meta.config.retries["total_max_attempts"] == 1
    with pytest.raises(InvalidAppError, match="config_kwargs"):
        create_scheduler("c", **batch_params, config_kwargs={"no_such": 1}).describe("app-1")


@pytest.mark.parametrize(
    ("extra", "cure"),
    [
        ({"assume_role_method": "assume_role_with_saml"}, "apache-airflow-providers-amazon"),
        ({"assume_role_with_saml": {"x": 1}}, "apache-airflow-providers-amazon"),
        ({"assume_role_with_web_identity": {"federation": "google"}}, "apache-airflow-providers-amazon"),
        ({"assume_role_kwargs": {"ExternalId": "x"}}, "external_id"),
        ({"session_kwargs": {"profile_name": "x"}}, "profile_name"),
        ({"service_config": {"logs": {}}}, "logs_endpoint_url"),
        ({"s3_config_file": "x"}, "profile_name"),
        ({"profile": "x"}, "profile_name"),
        ({"host": "http://x"}, "host"),
    ],
)
def test_extras_of_aws_connections_only_are_refused_with_a_fix(monkeypatch, extra, cure) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_aws_batch", "extra": {"queue": "q", **extra}})
    )

    with pytest.raises(InvalidAppError, match=cure):
        _ = LaunchHook.for_connection("c").options
