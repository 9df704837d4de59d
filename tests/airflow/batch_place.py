"""Jobs of the AWS Batch of the tests, for the tests of the guarantees; the tasks reach it through a proxy."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any, ClassVar

from docker.errors import APIError

from airflow_provider_launch.specs import Resource, Role
from tests.engines.aws_batch.containers import LABEL
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import QUEUE, REGION


class BatchPlace:
    """Jobs of one server, whose containers run in Docker."""

    lag_s, log_lag_s, drain_s = 12.0, 2.0, 3.0
    cfg_without_result: ClassVar[dict[str, Any]] = {"shell": False}

    def __init__(self, server: Any, docker: Any, proxy: Any) -> None:
        from tests.faults import error

        self._server, self._docker, self._proxy = server, docker, proxy
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        extra = {**params_for(proxy.url, timeout_s=10), "queue": QUEUE}
        self.connection: dict[str, Any] = {"conn_type": "launch_aws_batch", "extra": extra}
        expired = {"__type": "ExpiredTokenException", "message": "The security token included is expired"}
        denied = {"__type": "AccessDeniedException", "message": "not authorized to perform: batch:DescribeJobs"}
        busy = {"__type": "TooManyRequestsException", "message": "Too Many Requests"}
        self.outages = {
            "connections are refused": proxy.refused,
            "429": lambda: proxy.answering(error(429, body=busy)),
            "500": lambda: proxy.answering(error(500, body={"__type": "ServerException", "message": "internal error"})),
            "credentials have expired": lambda: proxy.answering(error(403, body=expired)),
            "credentials are refused": lambda: proxy.answering(error(403, body=denied)),
        }

        self._others: list[BatchPlace] = []
        self._closed = threading.Event()
        self._gone: set[str] = set()
        """Containers that were let go."""

    def another(self) -> BatchPlace:
        self._others.append(BatchPlace(self._server, self._docker, self._proxy))
        self._others[-1].connection = self.connection
        return self._others[-1]

    def use_definition(self) -> None:
        """Let the connection name the job definition of a user."""
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        container = {"image": self._docker.image, "command": [], "resourceRequirements": needs}
        name = f"users-{uuid.uuid4().hex}"
        self._client().register_job_definition(jobDefinitionName=name, type="container", containerProperties=container)
        self.connection["extra"]["job_definition"] = name

    def role(self, script: str, **fields: Any) -> Role:
        known = {"resource": Resource(1, 0, 64), **fields}
        return Role("main", self._docker.image, entrypoint="sh", args=["-c", f"GO=/tmp/go; {script}"], **known)

    def apps(self) -> list[str]:
        found: list[str] = self._server.control(of=self.mark)["apps"]
        return found

    def starts(self) -> list[str]:
        found: list[str] = self._server.control(of=self.mark)["replicas"]
        return found

    def alive(self) -> int:
        return len(self._running())

    def go(self) -> None:
        self._let_go()
        # Also for containers that do not run yet.
        threading.Thread(target=self._let_go_later, daemon=True).start()

    def _let_go(self) -> None:
        for container in self._running():
            if container.id not in self._gone:
                with contextlib.suppress(APIError):  # it has ended meanwhile
                    # Not attached: if the container ends meanwhile, the engine may never close the output.
                    container.exec_run(["touch", "/tmp/go"], detach=True)
                self._gone.add(container.id)

    def _let_go_later(self) -> None:
        while not self._closed.wait(0.5):
            self._let_go()

    def vanish(self, app_id: str) -> None:
        self._server.control(remove=app_id)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        # Calls of Batch have a path of their own, those of CloudWatch Logs have `/`.
        return self._proxy.stalled(r"^/$")

    def queue_that_starts_nothing(self) -> str:
        """Return a queue all whose compute environments are disabled."""
        batch = self._client()
        role = batch.describe_compute_environments()["computeEnvironments"][0]["serviceRole"]
        made = batch.create_compute_environment(
            computeEnvironmentName=self.mark, type="UNMANAGED", state="DISABLED", serviceRole=role
        )
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        batch.create_job_queue(jobQueueName=self.mark, priority=1, state="ENABLED", computeEnvironmentOrder=order)
        return self.mark

    def jobs(self, queue: str = QUEUE) -> list[dict[str, Any]]:
        """Return the jobs of the task's apps in the queue, as DescribeJobs has them."""
        batch = self._client()
        filters = [{"name": "JOB_NAME", "values": ["*"]}]
        rows = batch.list_jobs(jobQueue=queue, filters=filters)["jobSummaryList"]
        ids = [row["jobId"] for row in rows if self.mark in row["jobName"]]
        found: list[dict[str, Any]] = batch.describe_jobs(jobs=ids)["jobs"]
        return found

    def _client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        return boto3.client("batch", endpoint_url=self._server.url, region_name=REGION, **keys)

    def _running(self) -> list[Any]:
        found = self._docker.client.containers.list(filters={"label": f"{LABEL}-job"}, ignore_removed=True)
        return [one for one in found if self.mark in one.labels[f"{LABEL}-job"]]

    def close(self) -> None:
        for other in self._others:
            other.close()
        self._closed.set()
        for app_id in self.apps():
            self._server.control(remove=app_id)
        for container in self._running():
            with contextlib.suppress(APIError):
                container.kill()
        time.sleep(0.1)
