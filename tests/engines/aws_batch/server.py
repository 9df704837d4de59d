"""The server, `python -m tests.engines.aws_batch.server`: corrected moto in a separate process, with containers.

Prints its address when ready, and ends at the end of its stdin, so that it never outlives its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from moto.batch.models import batch_backends
from moto.logs.models import logs_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.engines.aws_batch import corrections
from tests.engines.aws_batch.containers import Clock, Containers
from tests.engines.aws_batch.execution import Execution, Node, execution_of
from tests.engines.aws_batch.names import ACCOUNT, CONTROL, GROUP, OTHER_QUEUE, QUEUE, REGION
from tests.engines.aws_batch.settings import Settings


class Server:
    """The state of the process."""

    def __init__(self, *, plain: bool) -> None:
        self.settings = Settings()
        self.containers = Containers(uuid.uuid4().hex, self._put)
        Execution.containers = self.containers
        if not plain:
            corrections.apply(self.settings)
        self._lock = threading.Lock()
        self._streams: set[str] = set()
        self._make_queue()

    def _make_queue(self) -> None:
        backend = batch_backends[ACCOUNT][REGION]
        role = backend.iam_backend.create_role(
            role_name="launch",
            assume_role_policy_document="{}",
            path="/",
            permissions_boundary=None,
            description="",
            tags=[],
            max_session_duration=3600,
        )
        environment = backend.create_compute_environment("launch", "UNMANAGED", "ENABLED", None, role.arn, {})
        order = [{"order": 1, "computeEnvironment": environment.arn}]
        for name in (QUEUE, OTHER_QUEUE):
            backend.create_job_queue(name, 1, None, "ENABLED", order, {})
        logs_backends[ACCOUNT][REGION].create_log_group(GROUP, {})

    def _put(self, stream: str, events: list[dict[str, Any]]) -> None:
        logs = logs_backends[ACCOUNT][REGION]
        with self._lock:
            if stream not in self._streams:
                logs.create_log_stream(GROUP, stream)
                self._streams.add(stream)
            logs.put_log_events(GROUP, stream, [event for event in events if event["message"]])

    def control(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Change settings, and return counts of an app: running and started containers, kept objects."""
        before = {}
        for name, value in asked.get("settings", {}).items():
            owner: Any = next(one for one in (self.settings, self.containers, Execution, Clock) if hasattr(one, name))
            before[name] = getattr(owner, name)
            setattr(owner, name, value)
        if job := asked.get("lose_host"):
            lost = batch_backends[ACCOUNT][REGION]._jobs[job]
            self.containers.lose((lost if isinstance(lost, Node) else execution_of(lost)).attempts[-1])
        for job, code in asked.get("end_idle", {}).items():
            self.containers.idle[job].end(code)
        for job in asked.get("forget", []):
            del batch_backends[ACCOUNT][REGION]._jobs[job]
        if app_id := asked.get("remove"):
            self._remove(app_id)
        if mark := asked.get("of"):
            return self._all_of(mark)
        found: dict[str, Any] = {"calls": dict(self.settings.calls), "before": before}
        if app_id := asked.get("app"):
            names = [name for name in self.containers.starts if name == app_id or name.startswith(f"{app_id}_a")]
            definitions = [*batch_backends[ACCOUNT][REGION]._job_definitions.values()]
            mine = [
                one
                for one in definitions
                if one.name == f"launch-{app_id}" or one.name.startswith(f"launch-{app_id}_a")
            ]
            found |= {
                "starts": sum(self.containers.starts[name] for name in names),
                "alive": sum(self.containers.alive[name] for name in names),
                "left": sum(one.status == "ACTIVE" for one in mine),
            }
        return found

    def _remove(self, app_id: str) -> None:
        """Remove an app and its containers."""
        backend = batch_backends[ACCOUNT][REGION]
        for job_id, job in [*backend._jobs.items()]:
            name = getattr(job, "job_name", None) or job.parent.job.job_name
            if name == app_id or name.startswith(f"{app_id}_a"):
                if hasattr(job, "job_name"):
                    execution_of(job).terminate("removed")
                del backend._jobs[job_id]
        for queue in backend._job_queues.values():
            queue.jobs = [one for one in queue.jobs if one.job_id in backend._jobs]
        for arn, one in [*backend._job_definitions.items()]:
            if one.name == f"launch-{app_id}" or one.name.startswith(f"launch-{app_id}_a"):
                del backend._job_definitions[arn]

    def _all_of(self, mark: str) -> dict[str, Any]:
        """Return ids of all apps ever with this text in their id, and the number of each started replica."""
        definitions = [*batch_backends[ACCOUNT][REGION]._job_definitions.values()]
        names = {one.name.removeprefix("launch-") for one in definitions} | {job for job, _ in self.containers.started}
        replicas = [replica for job, replica in self.containers.started if mark in job]
        return {
            "apps": sorted({name.partition("_")[0] for name in names if mark in name}),
            "replicas": sorted(replicas),
        }

    def app(self) -> Callable[..., Iterable[bytes]]:
        moto = DomainDispatcherApplication(create_backend_app)

        def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] != CONTROL:
                return moto(environ, start_response)  # type: ignore[no-any-return]
            asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or "{}")
            body = json.dumps(self.control(asked)).encode()
            start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]

        return serve


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as with AWS

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(Clock.now() if timestamp is None else timestamp)

    def log_request(self, *_: Any) -> None:
        """Do not log requests."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without corrections, as moto is")
    arguments = parser.parse_args()
    server = Server(plain=arguments.plain)
    http = make_server("127.0.0.1", arguments.port, server.app(), threaded=True, request_handler=_Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{http.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.containers.remove_all()
    # Threads of jobs may wait for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
