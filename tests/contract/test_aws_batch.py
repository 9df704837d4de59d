"""The contract of the AWS Batch scheduler, on a server that runs containers behind a proxy that breaks requests."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import boto3
import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.aws_batch.naming import Tag, definition_name
from airflow_provider_launch.testing import SchedulerContract
from airflow_provider_launch.testing._identity import IdentityTests
from tests.contract.proxied import ProxiedEngine
from tests.engines.aws_batch.engine import BatchServer
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import QUEUE, REGION
from tests.engines.docker.fixtures import DockerEngine
from tests.engines.docker.images import PRINTS_ITS_ARGS
from tests.faults import FaultProxy
from tests.support.capabilities import EVERYWHERE


class ServerEngine(ProxiedEngine):
    """Reads the server and its containers directly, without the proxy."""

    log_path = r"^/$"  # Batch calls have their own path, CloudWatch Logs calls have `/`

    def __init__(self, server: BatchServer, proxy: FaultProxy) -> None:
        super().__init__(proxy)
        self._server = server
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self._client = boto3.client("batch", endpoint_url=server.url, region_name=REGION, **keys)

    def alive(self, app_id: str) -> int:
        return int(self._server.control(app=app_id)["alive"])

    def starts(self, app_id: str) -> int:
        return int(self._server.control(app=app_id)["starts"])

    def left(self, app_id: str) -> int:
        # Jobs cannot be deleted; they expire in Batch.
        return int(self._server.control(app=app_id)["left"])

    def give_up(self, app_id: str, role: str) -> bool:
        # The host of the main node, on which the first role runs.
        self._server.control(lose_host=f"{self._job(app_id)['jobId']}#0")
        return True

    def stop(self, app_id: str, role: str) -> bool:
        self._client.terminate_job(jobId=self._job(app_id)["jobId"], reason="by hand")
        return True

    def _job(self, app_id: str) -> dict[str, Any]:
        filters = [{"name": "JOB_NAME", "values": [app_id]}]
        (job,) = self._client.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"]
        found: dict[str, Any] = job
        return found

    @contextlib.contextmanager
    def damaged(self, app_id: str) -> Iterator[None]:
        arn = self._job(app_id)["jobArn"]
        self._client.tag_resource(resourceArn=arn, tags={str(Tag.DELETED): "nonsense"})
        try:
            yield
        finally:
            self._client.untag_resource(resourceArn=arn, tagKeys=[str(Tag.DELETED)])

    @contextlib.contextmanager
    def forged(self, app_id: str) -> Iterator[None]:
        name = definition_name(app_id)
        self._client.register_job_definition(
            jobDefinitionName=name,
            type="container",
            parameters={"launchRequest": "nonsense"},
            tags={str(Tag.APP_ID): app_id, str(Tag.SPEC_HASH): "x", str(Tag.SUBMITTED): "never"},
            containerProperties={"image": "x", "vcpus": 1, "memory": 64},
        )
        try:
            yield
        finally:
            self._client.deregister_job_definition(jobDefinition=f"{name}:1")


class _OnBatch:
    factory = "airflow_provider_launch.schedulers.aws_batch.scheduler:create_scheduler"
    # CloudWatch cuts lines at 256 KB, and the server of the tests takes minutes for one of 20 MB.
    endless = 1_000_000
    option_names = {"grace_s": None}  # noqa: RUF012 - AWS Batch has a fixed grace
    capabilities = EVERYWHERE | {
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.DEVICE_MOUNT,
        Capability.DISRUPTION_RETRY,
        Capability.WORKSPACE,
    }
    timeout_s = 90.0
    many = 60  # this many containers start in parallel
    requests_per_describe = 12  # ids by 100 a request, and jobs by 100 a page
    xfail = MappingProxyType(
        {
            **dict.fromkeys(
                (
                    "test_args_reach_the_program_unchanged",
                    "test_env_reaches_the_program_unchanged",
                ),
                "a job definition has at most 24 KiB; tests/aws_batch has the shorter texts",
            ),
            "test_odd_and_long_names_of_roles_are_kept": "a multi-node job has at most five groups of nodes",
            "test_odd_output_is_complete": "CloudWatch rejects empty lines",
            "test_a_line_of_1_mb_is_whole": "Docker's awslogs driver splits lines at 256 KB",
            "test_an_app_succeeds_only_when_all_replicas_have": "the main node stays until linger_s has passed, so "
            "its success is reported only then",
            "test_peers_with_different_policies_keep_their_own_count": "Batch cannot restart a single node: REPLICA is "
            "refused for several roles",
            "test_cancel_ends_the_retries": "Batch allows at most ten attempts of one job",
        }
    )

    @pytest.fixture
    def engine(self, batch_server: BatchServer, batch_proxy: FaultProxy) -> ServerEngine:
        return ServerEngine(batch_server, batch_proxy)

    @pytest.fixture
    def params(self, batch_params: dict[str, Any]) -> dict[str, Any]:
        return batch_params

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any]:
        return params_for("http://127.0.0.1:1")

    @pytest.fixture
    def image(self, docker_engine: DockerEngine) -> str:
        return docker_engine.image

    @pytest.fixture
    def cfg(self, batch_queue: str) -> dict[str, Any]:
        return {"queue": batch_queue}

    @pytest.fixture
    def workspace_cfg(self, cfg: dict[str, Any], registry: str) -> dict[str, Any]:
        return {**cfg, "image_repo": f"{registry}/contract", "build_host": os.environ["DOCKER_HOST"]}

    @pytest.fixture
    def program_with_a_space(self) -> str:
        return PRINTS_ITS_ARGS


@pytest.mark.timeout(600)
@pytest.mark.engine("aws_batch")
class TestAwsBatch(_OnBatch, SchedulerContract):
    """Each app has a definition of its own."""


@pytest.mark.timeout(600)
@pytest.mark.engine("aws_batch")
class TestAwsBatchWithADefinition(_OnBatch, IdentityTests):
    """The definition of a user gives the defaults of each launch, which must not weaken the claim."""

    @pytest.fixture
    def cfg(self, batch_queue: str, batch_server: BatchServer, docker_engine: DockerEngine) -> dict[str, Any]:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = boto3.client("batch", endpoint_url=batch_server.url, region_name=REGION, **keys)
        name = f"users-{uuid.uuid4().hex}"
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        container = {"image": docker_engine.image, "command": [], "resourceRequirements": needs}
        client.register_job_definition(jobDefinitionName=name, type="container", containerProperties=container)
        return {"queue": batch_queue, "job_definition": name}
