"""Each correction of the server is needed: plain moto fails its test. If not, remove the correction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.engines.aws_batch.engine import BatchServer
from tests.engines.aws_batch.names import GROUP, OTHER_QUEUE, QUEUE, REGION
from tests.engines.docker.fixtures import DockerEngine

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(300)]


class Account:
    """Clients of one server."""

    def __init__(self, server: BatchServer, image: str) -> None:
        self.server = server
        self._image = image
        how: dict[str, Any] = {
            "region_name": REGION,
            "endpoint_url": server.url,
            "aws_access_key_id": "x",
            "aws_secret_access_key": "x",
            "config": Config(retries={"total_max_attempts": 1}),
        }
        self.batch, self.logs = boto3.client("batch", **how), boto3.client("logs", **how)

    def container(self, script: str) -> dict[str, Any]:
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        return {"image": self._image, "command": ["sh", "-c", script], "resourceRequirements": needs}

    def register(self, name: str, script: str = "true", **more: Any) -> str:
        found = self.batch.register_job_definition(
            jobDefinitionName=name, type="container", containerProperties=self.container(script), **more
        )
        return f"{name}:{found['revision']}"

    def submit(self, name: str, definition: str, queue: str = QUEUE, **more: Any) -> str:
        return str(self.batch.submit_job(jobName=name, jobDefinition=definition, jobQueue=queue, **more)["jobId"])

    def job(self, job_id: str) -> dict[str, Any]:
        (found,) = self.batch.describe_jobs(jobs=[job_id])["jobs"]
        return found

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while (job := self.job(job_id))["status"] not in states:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def run(self, name: str, script: str, **more: Any) -> dict[str, Any]:
        submission = {key: more.pop(key) for key in ("arrayProperties",) if key in more}
        job_id = self.submit(name, self.register(name, script, **more), **submission)
        return self.until(job_id, "SUCCEEDED", "FAILED")

    def lines(self, stream: str) -> list[str]:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(self.logs.exceptions.ResourceNotFoundException):
                page = self.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)
                if page["events"] or time.monotonic() > deadline:
                    return [event["message"] for event in page["events"]]
            assert time.monotonic() < deadline, f"{stream} has no lines"
            time.sleep(0.1)

    def queue_that_starts_nothing(self, name: str) -> str:
        """Return the name of a queue whose only compute environment is disabled."""
        (environment,) = self.batch.describe_compute_environments()["computeEnvironments"][:1]
        arn = self.batch.create_compute_environment(
            computeEnvironmentName=name, type="UNMANAGED", state="DISABLED", serviceRole=environment["serviceRole"]
        )["computeEnvironmentArn"]
        order = [{"order": 1, "computeEnvironment": arn}]
        self.batch.create_job_queue(jobQueueName=name, priority=1, state="ENABLED", computeEnvironmentOrder=order)
        return name

    def refused(self, call: Callable[[], object]) -> str:
        with pytest.raises(ClientError) as caught:
            call()
        return str(caught.value)


@pytest.fixture(scope="module")
def plain_server(docker_engine: DockerEngine) -> Iterator[BatchServer]:
    with BatchServer(plain=True) as server:
        yield server


@pytest.fixture
def ours(batch_server: BatchServer, docker_engine: DockerEngine) -> Account:
    return Account(batch_server, docker_engine.image)


@pytest.fixture
def plain(plain_server: BatchServer, docker_engine: DockerEngine) -> Account:
    return Account(plain_server, docker_engine.image)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"engine-{abs(hash(request.node.nodeid)) % 10**8}-{time.monotonic_ns() % 10**6}"


def test_attempts_have_exit_codes_streams_and_variables(ours, plain, name) -> None:
    script = "echo attempt $AWS_BATCH_JOB_ATTEMPT; exit 3"
    job = ours.run(name, script, retryStrategy={"attempts": 2})
    ends = [(one["container"]["exitCode"], *ours.lines(one["container"]["logStreamName"])) for one in job["attempts"]]

    assert ends == [(3, "attempt 1"), (3, "attempt 2")]
    assert job["container"]["exitCode"] == 3
    assert len(plain.run(name, script, retryStrategy={"attempts": 2})["attempts"]) == 1


def test_a_rule_ends_the_retries(ours, name) -> None:
    rules = [{"onExitCode": "4", "action": "RETRY"}, {"onExitCode": "*", "action": "EXIT"}]
    strategy = {"attempts": 3, "evaluateOnExit": rules}

    assert len(ours.run(name, "exit 3", retryStrategy=strategy)["attempts"]) == 1
    assert len(ours.run(name, "exit 4", retryStrategy=strategy)["attempts"]) == 3


def test_a_lost_host_is_distinguished(ours, name) -> None:
    rules = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    strategy = {"attempts": 2, "evaluateOnExit": rules}
    job_id = ours.submit(
        name, ours.register(name, "test $AWS_BATCH_JOB_ATTEMPT = 2 || sleep 60", retryStrategy=strategy)
    )
    ours.until(job_id, "RUNNING")
    ours.server.control(lose_host=job_id)
    job = ours.until(job_id, "SUCCEEDED", "FAILED")

    assert job["status"] == "SUCCEEDED"
    assert [one["statusReason"][:8] for one in job["attempts"][:1]] == ["Host EC2"]


def test_lines_come_while_a_container_runs_and_keep_their_blanks(ours, name) -> None:
    job_id = ours.submit(name, ours.register(name, "echo '  a  '; sleep 30"))
    stream = ours.until(job_id, "RUNNING")["container"]["logStreamName"]

    assert ours.lines(stream) == ["  a  "]
    assert ours.job(job_id)["status"] == "RUNNING"
    ours.batch.terminate_job(jobId=job_id, reason="enough")
    ours.until(job_id, "FAILED")


def test_plain_moto_has_no_stream_while_a_job_runs(plain, name) -> None:
    job_id = plain.submit(name, plain.register(name, "echo a; sleep 3"))

    assert "logStreamName" not in plain.until(job_id, "RUNNING")["container"]
    plain.until(job_id, "SUCCEEDED")


def test_a_terminated_job_reports_it(ours, name) -> None:
    job_id = ours.submit(name, ours.register(name, "trap 'exit 0' TERM; sleep 60 & wait"))
    ours.until(job_id, "RUNNING")
    ours.batch.terminate_job(jobId=job_id, reason="enough")
    ours.batch.terminate_job(jobId=job_id, reason="again")
    job = ours.until(job_id, "SUCCEEDED", "FAILED")

    assert (job["status"], job["isTerminated"], job["statusReason"]) == ("FAILED", True, "enough")


def test_children_of_an_array_know_their_number_and_the_parent_ends(ours, name) -> None:
    job = ours.run(name, "exit $AWS_BATCH_JOB_ARRAY_INDEX", arrayProperties={"size": 2})
    children = ours.batch.describe_jobs(jobs=[f"{job['jobId']}:0", f"{job['jobId']}:1"])["jobs"]
    failed = ours.batch.list_jobs(arrayJobId=job["jobId"], jobStatus="FAILED")["jobSummaryList"]

    assert job["status"] == "FAILED"
    assert job["arrayProperties"]["statusSummary"]["FAILED"] == 1
    assert [child["container"]["exitCode"] for child in children] == [0, 1]
    assert [(row["arrayProperties"]["index"], row["container"]["exitCode"]) for row in failed] == [(1, 1)]


def test_nodes_have_numbers_streams_and_the_main_nodes_address(ours, plain, name) -> None:
    """And the end of the main node is the end of the job."""
    script = (
        "echo node $AWS_BATCH_JOB_NODE_INDEX of $AWS_BATCH_JOB_NUM_NODES "
        "${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:+knows}; "
        "test $AWS_BATCH_JOB_NODE_INDEX = 0 && { sleep 2; exit 0; }; exec sleep 60"
    )
    groups = [{"targetNodes": "0:2", "container": ours.container(script)}]
    nodes = {"numNodes": 3, "mainNode": 0, "nodeRangeProperties": groups}
    for account in (ours, plain):
        account.batch.register_job_definition(jobDefinitionName=name, type="multinode", nodeProperties=nodes)
    job = ours.until(ours.submit(name, f"{name}:1"), "SUCCEEDED", "FAILED")
    ids = [f"{job['jobId']}#{n}" for n in range(3)]
    found = ours.batch.describe_jobs(jobs=ids)["jobs"]

    assert job["status"] == "SUCCEEDED"
    assert [ours.lines(one["container"]["logStreamName"])[0] for one in found] == [
        "node 0 of 3",
        "node 1 of 3 knows",
        "node 2 of 3 knows",
    ]
    assert [one["status"] for one in found] == ["SUCCEEDED", "FAILED", "FAILED"]
    assert [one["nodeDetails"] for one in found] == [{"nodeIndex": n, "isMainNode": n == 0} for n in range(3)]
    assert len(ours.batch.list_jobs(multiNodeJobId=job["jobId"], jobStatus="FAILED")["jobSummaryList"]) == 2
    other = plain.submit(name, f"{name}:1")
    assert plain.batch.describe_jobs(jobs=[f"{other}#0"])["jobs"] == []
    plain.batch.terminate_job(jobId=other, reason="enough")


def test_an_image_that_cannot_be_pulled_is_named(ours, name) -> None:
    container = {**ours.container("true"), "image": "no-such-image:ever"}
    ours.batch.register_job_definition(jobDefinitionName=name, type="container", containerProperties=container)
    job = ours.until(ours.submit(name, f"{name}:1"), "FAILED")

    assert "CannotPullContainerError" in job["container"]["reason"]
    assert "exitCode" not in job["container"]


def test_revisions_are_given_once_and_inactive_ones_are_refused(ours, plain, name) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = {*pool.map(lambda _: ours.register(name), range(40))}
    assert found == {f"{name}:{n}" for n in range(1, 41)}

    for account in (ours, plain):
        account.batch.deregister_job_definition(jobDefinition=account.register(f"{name}-x"))
    assert "not ACTIVE" in ours.refused(lambda: ours.submit(name, f"{name}-x:1"))
    assert plain.submit(name, f"{name}-x:1")
    assert ours.register(f"{name}-x") == f"{name}-x:2"


def test_what_is_too_large_is_refused(ours, plain, name) -> None:
    large = "x" * 30_000
    groups = [{"targetNodes": f"{n}:{n}", "container": ours.container("true")} for n in range(6)]
    nodes = {"numNodes": 6, "mainNode": 0, "nodeRangeProperties": groups}

    assert "larger" in ours.refused(lambda: ours.register(name, large))
    assert plain.register(name, large)
    for account, words in ((ours, "more than 5"), (plain, "")):

        def register(account: Account = account) -> object:
            return account.batch.register_job_definition(jobDefinitionName=name, type="multinode", nodeProperties=nodes)

        assert words in account.refused(register) if words else register()
    ids = [f"id-{n}" for n in range(101)]
    assert "100" in ours.refused(lambda: ours.batch.describe_jobs(jobs=ids))
    assert plain.batch.describe_jobs(jobs=ids)["jobs"] == []
    assert "60" in ours.refused(lambda: ours.register(name, timeout={"attemptDurationSeconds": 59}))


def test_a_list_without_a_status_is_of_running_jobs(ours, plain, name) -> None:
    for account in (ours, plain):
        account.run(name, "true")
    time.sleep(1)
    ids = [
        [row["jobName"] for row in account.batch.list_jobs(jobQueue=QUEUE)["jobSummaryList"]]
        for account in (ours, plain)
    ]

    assert name not in ids[0]
    assert name in ids[1]


def test_a_list_by_name_has_all_states_in_pages_and_comes_late(ours, name) -> None:
    definition = ours.register(name)
    filters = [{"name": "JOB_NAME", "values": [f"{name[:-1].upper()}*"]}]

    def listed() -> list[str]:
        pages = ours.batch.get_paginator("list_jobs").paginate(jobQueue=OTHER_QUEUE, filters=filters)
        return [row["jobId"] for page in pages for row in page["jobSummaryList"]]

    with ours.server.settings(list_lag_s=3.0, page=2):
        ids = [ours.submit(name, definition, OTHER_QUEUE) for _ in range(5)]
        assert listed() == []
        time.sleep(3.2)
        assert listed() == ids[::-1]
    assert ours.batch.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"] == []
    filters[0] = {"name": "JOB_DEFINITION", "values": [f"{name[:-1]}*"]}
    assert {*listed()} == {*ids}


def test_pages_of_logs_are_bounded_and_tokens_expire(ours, plain, name) -> None:
    script = "n=0; while [ $n -lt 30 ]; do n=$((n + 1)); head -c 99999 /dev/zero | tr '\\0' x; echo; done"
    for account, bounded in ((ours, True), (plain, False)):
        job = account.run(name, script)
        where = {"logGroupName": GROUP, "logStreamName": job["container"]["logStreamName"], "startFromHead": True}
        account.lines(where["logStreamName"])
        time.sleep(1)
        page = account.logs.get_log_events(**where)
        assert (len(page["events"]) <= 11) is bounded
        token = page["nextForwardToken"]
        if bounded:
            with account.server.settings(token_epoch=1):
                assert "nextToken is invalid" in account.refused(
                    lambda where=where, token=token: ours.logs.get_log_events(**where, nextToken=token)
                )


def test_long_lines_are_split_and_empty_ones_lost(ours, name) -> None:
    job = ours.run(name, "echo; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")

    assert [len(line) for line in ours.lines(job["container"]["logStreamName"])] == [262_118, 37_882, 3]


def test_a_queue_without_a_policy_has_no_null(ours, plain) -> None:
    found = [account.batch.describe_job_queues(jobQueues=[QUEUE])["jobQueues"][0] for account in (ours, plain)]

    assert "schedulingPolicyArn" not in found[0]
    # boto3 omits nulls, so check the body itself.
    bodies = []
    for account in (ours, plain):
        account.batch.meta.events.register("after-call", lambda http_response, **_: bodies.append(http_response.text))
        account.batch.describe_job_queues(jobQueues=[QUEUE])
    assert ["null" in body for body in bodies] == [False, True]


def test_definitions_come_in_pages(ours, plain, name) -> None:
    counts = []
    for account in (ours, plain):
        for n in range(101):
            account.register(f"{name}-{n}")
        page = account.batch.describe_job_definitions(status="ACTIVE")
        counts.append((len(page["jobDefinitions"]), "nextToken" in page))

    assert counts[0] == (100, True)
    assert counts[1][0] > 100
    assert not counts[1][1]


def test_a_job_is_submitted_while_others_register(ours, name) -> None:
    """Plain moto answers 500 now and then: its dictionary changes while it is searched."""
    definition = ours.register(name)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(ours.register, f"{name}-{n}") for n in range(60)]
        ids = [pool.submit(ours.submit, name, definition, OTHER_QUEUE) for _ in range(10)]
        assert all(one.result() for one in (*made, *ids))
    for one in ids:
        ours.batch.terminate_job(jobId=one.result(), reason="enough")


def test_a_queue_has_a_front(ours, plain, name) -> None:
    with ours.server.settings(held=True):
        ids = [ours.submit(name, ours.register(name), OTHER_QUEUE) for _ in range(2)]
        for job_id in ids:
            ours.until(job_id, "RUNNABLE")
        jobs = ours.batch.get_job_queue_snapshot(jobQueue=OTHER_QUEUE)["frontOfQueue"]["jobs"]
        for job_id in ids:
            ours.batch.terminate_job(jobId=job_id, reason="enough")

    assert [row["jobArn"].rpartition("/")[2] for row in jobs if row["jobArn"].rpartition("/")[2] in ids] == ids
    plain.refused(lambda: plain.batch.get_job_queue_snapshot(jobQueue=OTHER_QUEUE))


def test_a_disabled_environment_starts_no_job(ours, plain, name) -> None:
    ids, states = [], []
    for account in (ours, plain):
        ids.append(account.submit(name, account.register(name), account.queue_that_starts_nothing(name)))
        time.sleep(3)
        states.append(account.job(ids[-1])["status"])
    ours.batch.update_compute_environment(computeEnvironment=name, state="ENABLED")

    assert states[0] == "RUNNABLE"
    assert states[1] in {"STARTING", "RUNNING", "SUCCEEDED"}
    ours.until(ids[0], "SUCCEEDED")


def test_streams_are_filtered_together(ours, plain, name) -> None:
    found = []
    for account in (ours, plain):
        jobs = [account.run(name, f"echo {n}; sleep 1; echo {n}") for n in range(2)]
        names = [job["container"]["logStreamName"] for job in jobs]
        for stream in names:
            account.lines(stream)
        time.sleep(1)
        page = account.logs.filter_log_events(logGroupName=GROUP, logStreamNames=names)
        found.append([event["message"] for event in page["events"]])
        if account is ours:
            missing = account.refused(
                lambda account=account: account.logs.filter_log_events(logGroupName=GROUP, logStreamNames=["none"])
            )
        else:
            plain_page = account.logs.filter_log_events(logGroupName=GROUP, logStreamNames=["none"])

    assert found[0] == ["0", "0", "1", "1"]
    assert "does not exist" in missing
    assert plain_page["events"] == []


def test_requests_beyond_a_rate_are_throttled(ours, plain) -> None:
    with ours.server.settings(rates={"describejobs": 1, "GetLogEvents": 1}):
        found = [_code(lambda: ours.batch.describe_jobs(jobs=["x"])) for _ in range(4)]
        logs = [_code(lambda: ours.logs.get_log_events(logGroupName="x", logStreamName="x")) for _ in range(4)]

    assert "TooManyRequestsException 429" in found
    assert "ThrottlingException 400" in logs


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except ClientError as error:
        return f"{error.response['Error']['Code']} {error.response['ResponseMetadata']['HTTPStatusCode']}"
    return ""
