"""Jobs of the AWS Batch of the tests, for the tests of the guarantees; the tasks reach it through a proxy."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from airflow_provider_launch.specs import Resource, Role
from tests.engines.aws_batch.containers import LABEL
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import QUEUE

__all__ = ["BatchPlace"]


class BatchPlace:
    """Jobs of one server, whose containers run in Docker."""

    lag_s, drain_s = 12.0, 3.0

    def __init__(self, server: Any, docker: Any, proxy: Any) -> None:
        from tests.faults import error

        self._server, self._docker, self._proxy = server, docker, proxy
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        extra = {**params_for(proxy.url, timeout_s=10), "queue": QUEUE}
        self.connection = {"conn_type": "launch_aws_batch", "extra": extra}
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

    def another(self) -> BatchPlace:
        return BatchPlace(self._server, self._docker, self._proxy)

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
        for container in self._running():
            container.exec_run(["touch", "/tmp/go"])

    def vanish(self, app_id: str) -> None:
        self._server.control(remove=app_id)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        # Calls of Batch have a path of their own, those of CloudWatch Logs have `/`.
        return self._proxy.stalled(r"^/$")

    def _running(self) -> list[Any]:
        found = self._docker.client.containers.list(filters={"label": f"{LABEL}-job"})
        return [one for one in found if self.mark in one.labels[f"{LABEL}-job"]]

    def close(self) -> None:
        for app_id in self.apps():
            self._server.control(remove=app_id)
        for container in self._running():
            container.kill()
        time.sleep(0.1)
