"""Measures six facts that AWS does not document, on the test server or, with `LAUNCH_TEST_AWS=1`, on AWS.

See `docs/aws_batch.md` for what it needs and costs there. Never in CI; what is measured is printed with `-s`.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.engines.aws_batch.names import QUEUE, REGION

ON_AWS = os.environ.get("LAUNCH_TEST_AWS") == "1"
WAIT_S = AwsBatchConnection().claim_wait_s
LONGEST_S = 900.0 if ON_AWS else 30.0

pytestmark = [pytest.mark.timeout(3600 if ON_AWS else 120), *([] if ON_AWS else [pytest.mark.engine("aws_batch")])]


def setting(name: str) -> str:
    """Return a variable that a run on AWS needs."""
    text = os.environ.get(f"LAUNCH_TEST_AWS_{name}", "")
    assert text, f"LAUNCH_TEST_AWS=1 needs LAUNCH_TEST_AWS_{name}; see docs/aws_batch.md"
    return text


class Account:
    """The tested service."""

    def __init__(self, image: str, queue: str, execution_role: str | None, **where: Any) -> None:
        config = Config(retries={"total_max_attempts": 1})
        self.batch = boto3.client("batch", config=config, **where)
        self.logs = boto3.client("logs", config=config, **where)
        self.queue = queue
        self._image, self._role = image, execution_role
        self.name = f"launch-probe-{uuid.uuid4().hex[:8]}"

    def register(self, script: str = "true") -> str:
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048" if self._role else "64"}]
        container: dict[str, Any] = {
            "image": self._image,
            "command": ["sh", "-c", script],
            "resourceRequirements": needs,
            **({"executionRoleArn": self._role} if self._role else {}),
        }
        found = self.batch.register_job_definition(
            jobDefinitionName=self.name, type="container", containerProperties=container
        )
        return f"{self.name}:{found['revision']}"

    def submit(self, definition: str, name: str | None = None) -> str:
        found = self.batch.submit_job(jobName=name or self.name, jobQueue=self.queue, jobDefinition=definition)
        return str(found["jobId"])

    def ended(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def is_over() -> bool:
            (found["job"],) = self.batch.describe_jobs(jobs=[job_id])["jobs"]
            return found["job"]["status"] in {"SUCCEEDED", "FAILED"}

        until(is_over)
        job: dict[str, Any] = found["job"]
        return job


def until(test: Callable[[], object], pause_s: float = 0.2) -> float:
    """Wait, and return the seconds it took."""
    began = time.monotonic()
    while not test():
        assert time.monotonic() - began < LONGEST_S
        time.sleep(pause_s)
    return time.monotonic() - began


def measured(text: str) -> None:
    sys.stdout.write(f"\nMEASURED {text}\n")


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    if ON_AWS:
        role = os.environ.get("LAUNCH_TEST_AWS_ROLE")
        made = Account(setting("IMAGE"), setting("QUEUE"), role)
    else:
        server, docker = (request.getfixturevalue(name) for name in ("batch_server", "docker_engine"))
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        made = Account(docker.image, QUEUE, None, endpoint_url=server.url, region_name=REGION, **keys)
    yield made
    for one in made.batch.describe_job_definitions(jobDefinitionName=made.name, status="ACTIVE")["jobDefinitions"]:
        made.batch.deregister_job_definition(jobDefinition=one["jobDefinitionArn"])


def test_1_how_long_a_new_definition_cannot_be_submitted(account: Account) -> None:
    """A submission is repeated for 10 s."""
    definition = account.register()

    def is_accepted() -> bool:
        try:
            account.submit(definition)
        except ClientError:
            return False
        return True

    seconds = until(is_accepted)
    measured(f"register -> submit accepted: {seconds:.2f} s")
    assert seconds < 10


def test_2_how_long_an_inactive_definition_can_still_be_submitted(account: Account) -> None:
    """`claim_wait_s` must be longer."""
    definition = account.register()
    account.submit(definition)
    account.batch.deregister_job_definition(jobDefinition=definition)

    def is_refused() -> bool:
        try:
            account.submit(definition)
        except ClientError:
            return True
        return False

    seconds = until(is_refused)
    measured(f"deregister -> submit refused: {seconds:.2f} s")
    assert seconds < WAIT_S


def test_3_how_late_a_new_job_is_listed(account: Account) -> None:
    """`claim_wait_s` must be longer."""
    account.submit(account.register())
    filters = [{"name": "JOB_NAME", "values": [account.name]}]
    seconds = until(lambda: account.batch.list_jobs(jobQueue=account.queue, filters=filters)["jobSummaryList"])
    measured(f"submit -> listed: {seconds:.2f} s")
    assert seconds < WAIT_S


def test_4_a_job_that_waits_runs_though_its_definition_is_inactive(account: Account) -> None:
    """Otherwise a fence would end an app that was submitted earlier."""
    definition = account.register()
    job_id = account.submit(definition)
    account.batch.deregister_job_definition(jobDefinition=definition)

    assert account.ended(job_id)["status"] == "SUCCEEDED"


def test_5_how_a_token_that_is_not_valid_is_answered(account: Account) -> None:
    """The log reader recognizes it by this code and `nextToken` in the text."""
    job = account.ended(account.submit(account.register("echo hi")))
    where = {"logGroupName": "/aws/batch/job", "logStreamName": job["container"]["logStreamName"]}
    until(lambda: job_has_log(account, where))
    with pytest.raises(ClientError) as caught:
        account.logs.get_log_events(**where, nextToken="f/99/0", startFromHead=True)

    details = caught.value.response["Error"]
    assert details["Code"] == "InvalidParameterException"
    assert "nextToken" in details["Message"]


def job_has_log(account: Account, where: dict[str, str]) -> bool:
    try:
        return bool(account.logs.get_log_events(**where, startFromHead=True)["events"])
    except ClientError:
        return False


def test_6_whether_events_come_late(account: Account) -> None:
    """Read by tokens and by ids: events in only one of them came before the position of a token."""
    count = 50_000 if ON_AWS else 500
    script = f"seq -f 'o%.0f' {count} & seq -f 'e%.0f' {count} >&2; wait"
    if not ON_AWS:
        script = f"n=0; while test $n -lt {count}; do n=$((n+1)); echo o$n; echo e$n >&2; done"
    job_id = account.submit(account.register(script))
    by_token: list[str] = []
    token: dict[str, str] = {}
    ended_at, stream = 0.0, None
    while not ended_at or time.monotonic() - ended_at < (30 if ON_AWS else 1):
        (job,) = account.batch.describe_jobs(jobs=[job_id])["jobs"]
        stream = job["container"].get("logStreamName")
        if job["status"] in {"SUCCEEDED", "FAILED"}:
            ended_at = ended_at or time.monotonic()
        where = {"logGroupName": "/aws/batch/job", "logStreamName": stream}
        if stream and job_has_log(account, where):
            page = account.logs.get_log_events(**where, startFromHead=True, **token)
            by_token += [event["message"] for event in page["events"]]
            token = {"nextToken": page["nextForwardToken"]}
        time.sleep(0.2)
    pages = account.logs.get_paginator("filter_log_events").paginate(
        logGroupName="/aws/batch/job", logStreamNames=[stream]
    )
    by_id = [event["message"] for page in pages for event in page["events"]]
    late = len(set(by_id) - set(by_token))
    measured(f"lines that a token has missed: {late} of {len(by_id)}")

    assert len(by_id) == 2 * count
    assert late == 0


if ON_AWS:

    class TestAws(SchedulerContract):
        """The contract: a queue of EC2 runs all of it, a queue of Fargate all tests without nodes."""

        factory = "airflow_provider_launch.schedulers.aws_batch.scheduler:create_scheduler"
        timeout_s = 900.0
        many = 20
        option_names = {"grace_s": None}  # noqa: RUF012 - AWS Batch has a fixed grace

        @pytest.fixture
        def engine(self) -> Engine:
            return Engine()

        @pytest.fixture
        def params(self) -> dict[str, Any]:
            return {}

        @pytest.fixture
        def unreachable_params(self) -> dict[str, Any]:
            return {"endpoint_url": "http://127.0.0.1:1"}

        @pytest.fixture
        def image(self) -> str:
            return setting("IMAGE")

        @pytest.fixture
        def cfg(self) -> dict[str, Any]:
            role = os.environ.get("LAUNCH_TEST_AWS_ROLE")
            fargate = {"platform": "FARGATE", "execution_role_arn": role} if role else {}
            return {"queue": setting("QUEUE"), **fargate}
