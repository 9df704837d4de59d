"""Runs one attempt of a job as a real container with a log stream."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from moto.secretsmanager.models import secretsmanager_backends

from tests.engines.aws_batch.names import ACCOUNT, REGION

LABEL = "launch.io/tests-batch"
IDLE_IMAGE = "launch-idle"
"""Jobs with this image do not run a container, see `Idle`."""
_EVENT_BYTES = 262_118
"""Bytes at which Docker's awslogs driver splits lines: 256 KB minus the 26 bytes that CloudWatch adds to each event."""
_MiB = 1024 * 1024


class _PullError(Exception):
    def __init__(self, explanation: str) -> None:
        super().__init__(explanation)
        self.explanation = explanation


class Clock:
    """The clock of the server, as seen in its answers."""

    offset_s = 0.0

    @classmethod
    def now(cls) -> float:
        return time.time() + cls.offset_s


def now_ms() -> int:
    return int(Clock.now() * 1000)


@dataclass
class Attempt:
    """The state of one attempt in Batch."""

    stream: str
    started: int | None = None
    stopped: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    """Of the container."""
    status_reason: str | None = None
    address: str | None = None
    container: Any = field(default=None, repr=False)

    def document(self) -> dict[str, Any]:
        """Return the attempt in the format of DescribeJobs."""
        container = {"logStreamName": self.stream, "exitCode": self.exit_code, "reason": self.reason}
        known = {"startedAt": self.started, "stoppedAt": self.stopped, "statusReason": self.status_reason}
        return {"container": _known(container), **_known(known)}


class Idle:
    """Replaces the container in measures with a thousand jobs, which a test machine cannot run: it only waits.

    It prints one line, and ends when it is stopped, or by `Server.control`.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._code = 0

    def wait(self) -> int:
        self._over.wait()
        return self._code

    def stop(self, timeout: int = 0) -> None:
        self.end(143)

    def kill(self) -> None:
        self.end(137)

    def end(self, code: int) -> None:
        self._code = code
        self._over.set()


class Containers:
    """Starts containers in the tests' Docker engine and counts them by the name of their job."""

    def __init__(self, server: str, put_events: Callable[[str, list[dict[str, Any]]], None]) -> None:
        self._server = server
        self._put_events = put_events
        self._client = docker.from_env(timeout=120, max_pool_size=400)
        self._lock = threading.Lock()
        self.starts: dict[str, int] = {}
        self.alive: dict[str, int] = {}
        self.started: list[tuple[str, str]] = []
        """Job and number of the replica, for each start."""
        self.idle: dict[str, Idle] = {}
        """Job id to its container or replacement."""
        self.stop_timeout_s = 5
        """ECS_CONTAINER_STOP_TIMEOUT of the instances: seconds between TERM and KILL."""
        self.flush_s = 0.2
        """Seconds between two batches of the awslogs driver; 5 s in reality."""
        self.log_delay_s = 0.2
        """Seconds from the end of a container until its last lines are in CloudWatch."""

    def run(
        self,
        job: str,
        properties: Mapping[str, Any],
        env: Mapping[str, str],
        attempt: Attempt,
        *,
        started: Callable[[], None],
        stopped: Callable[[], bool],
        limit_s: float | None = None,
    ) -> None:
        """Run one attempt to its end; `stopped`: the job was terminated before it started."""
        if properties["image"] == IDLE_IMAGE:
            self._run_idle(env["AWS_BATCH_JOB_ID"], attempt, started, stopped)
            return
        try:
            self._pull(properties["image"])
            container = self._create(job, properties, env)
        except (ImageNotFound, _PullError) as error:
            attempt.reason = f"CannotPullContainerError: {error.explanation}"
            attempt.stopped = now_ms()
            return
        except APIError as error:
            attempt.reason = f"CannotCreateContainerError: {error.explanation}"
            attempt.stopped = now_ms()
            return
        output = self._client.api.attach(container.id, stream=True, demux=True)
        copier = threading.Thread(target=self._copy, args=(output, attempt.stream), daemon=True)
        try:
            if stopped():
                return
            try:
                container.start()
            except APIError as error:
                attempt.reason = f"CannotStartContainerError: {error.explanation}"
                attempt.exit_code = 127 if "not found" in str(error) else None
                return
            self._count(job, 1)
            index = env.get("AWS_BATCH_JOB_ARRAY_INDEX", env.get("AWS_BATCH_JOB_NODE_INDEX", "0"))
            self.started.append((job, index))
            container.reload()
            attempt.container, attempt.started = container, now_ms()
            attempt.address = container.attrs["NetworkSettings"]["IPAddress"]
            copier.start()
            started()
            if stopped():
                self.stop(attempt)
            timer = threading.Timer(limit_s or 0, self._time_out, (attempt,))
            timer.daemon = True
            if limit_s:
                timer.start()
            attempt.exit_code = container.wait()["StatusCode"]
            timer.cancel()
            attempt.stopped = now_ms()
            self._count(job, 0)
            container.reload()
            if container.attrs["State"].get("OOMKilled"):
                attempt.reason = "OutOfMemoryError: Container killed due to memory usage"
        finally:
            attempt.stopped = attempt.stopped or now_ms()
            # The end is reported; the last lines still follow.
            threading.Thread(target=self._remove, args=(container, copier), daemon=True).start()

    def _run_idle(
        self, job_id: str, attempt: Attempt, started: Callable[[], None], stopped: Callable[[], bool]
    ) -> None:
        attempt.container, attempt.started = Idle(), now_ms()
        self.idle[job_id] = attempt.container
        self._put_events(attempt.stream, [{"timestamp": now_ms(), "message": "up"}])
        started()
        if stopped():
            attempt.container.stop()
        attempt.exit_code = attempt.container.wait()
        attempt.stopped = now_ms()
        self.idle.pop(job_id, None)

    def stop(self, attempt: Attempt) -> None:
        """Stop the attempt like ECS: TERM, and KILL after a while."""
        if attempt.container is not None and attempt.stopped is None:
            with contextlib.suppress(NotFound, APIError):
                attempt.container.stop(timeout=self.stop_timeout_s)

    def lose(self, attempt: Attempt) -> None:
        """End the attempt like a loss of its host."""
        attempt.status_reason = "Host EC2 (instance i-0123456789abcdef0) terminated."
        with contextlib.suppress(NotFound, APIError):
            attempt.container.kill()

    def _time_out(self, attempt: Attempt) -> None:
        attempt.status_reason = "Job attempt duration exceeded timeout"
        self.stop(attempt)

    def _remove(self, container: Any, copier: threading.Thread) -> None:
        if copier.ident:
            copier.join(20)
        with contextlib.suppress(APIError):
            container.remove(force=True)

    def remove_all(self) -> None:
        """Remove the containers of this server."""
        for container in self._client.containers.list(all=True, filters={"label": f"{LABEL}={self._server}"}):
            with contextlib.suppress(APIError):
                container.remove(force=True)

    def _count(self, job: str, started: int) -> None:
        with self._lock:
            self.starts[job] = self.starts.get(job, 0) + started
            self.alive[job] = self.alive.get(job, 0) + (1 if started else -1)

    def _pull(self, image: str) -> None:
        """Pull an image whose name has a registry, like the agent of ECS; other images are in the engine."""
        host, slash, _ = image.partition("/")
        if not slash or not any(sign in host for sign in ".:"):
            return
        try:
            self._client.images.pull(image)
        except APIError as error:
            raise _PullError(error.explanation) from error

    def _create(self, job: str, properties: Mapping[str, Any], env: Mapping[str, str]) -> Any:
        linux = properties.get("linuxParameters", {})
        needs = {need["type"]: need["value"] for need in properties.get("resourceRequirements", [])}
        volumes = {volume["name"]: volume for volume in properties.get("volumes", [])}
        return self._client.containers.create(
            properties["image"],
            # Docker's Cmd: Batch on ECS has no entry point of its own.
            properties.get("command") or None,
            environment={
                **{one["name"]: one["value"] for one in properties.get("environment", [])},
                **{one["name"]: _secret(one["valueFrom"]) for one in properties.get("secrets", [])},
                **env,
            },
            labels={LABEL: self._server, f"{LABEL}-job": job},
            log_config=docker.types.LogConfig(type="none"),
            mem_limit=int(needs.get("MEMORY", 512)) * _MiB,
            init=linux.get("initProcessEnabled", False),
            shm_size=linux["sharedMemorySize"] * _MiB if "sharedMemorySize" in linux else None,
            privileged=properties.get("privileged", False),
            read_only=properties.get("readonlyRootFilesystem", False),
            user=properties.get("user"),
            devices=[_device(one) for one in linux.get("devices", [])],
            mounts=[_mount(one, volumes[one["sourceVolume"]]) for one in properties.get("mountPoints", [])],
            ulimits=[
                docker.types.Ulimit(name=one["name"], soft=one["softLimit"], hard=one["hardLimit"])
                for one in properties.get("ulimits", [])
            ],
        )

    def _copy(self, output: Any, stream: str) -> None:
        driver = _AwslogsDriver(lambda events: self._put_events(stream, events), self.flush_s)
        try:
            for out, err in output:
                driver.write(out or b"", err or b"")
        finally:
            time.sleep(self.log_delay_s)
            driver.close()


class _AwslogsDriver:
    """Emulates Docker's driver: an event for each non-empty line, sent in batches."""

    def __init__(self, put: Callable[[list[dict[str, Any]]], None], flush_s: float) -> None:
        self._put = put
        self._flush_s = flush_s
        self._rests = [b"", b""]
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._flush_often, daemon=True).start()

    def write(self, *streams: bytes) -> None:
        with self._lock:
            for k, data in enumerate(streams):
                *lines, self._rests[k] = (self._rests[k] + data).split(b"\n")
                for line in lines:
                    self._add(line)

    def close(self) -> None:
        with self._lock:
            for rest in self._rests:
                self._add(rest)
        self._over.set()
        self._flush()

    def _add(self, line: bytes) -> None:
        for at in range(0, len(line), _EVENT_BYTES):
            text = line[at : at + _EVENT_BYTES].decode("utf-8", "replace")
            self._events.append({"timestamp": now_ms(), "message": text})

    def _flush_often(self) -> None:
        while not self._over.wait(self._flush_s):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            batch, self._events = self._events, []
            if batch:
                self._put(batch)


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _device(device: Mapping[str, Any]) -> str:
    permissions: Sequence[str] = device.get("permissions", ["READ", "WRITE", "MKNOD"])
    letters = "".join({"READ": "r", "WRITE": "w", "MKNOD": "m"}[one] for one in permissions)
    return f"{device['hostPath']}:{device.get('containerPath', device['hostPath'])}:{letters}"


def _secret(arn: str) -> str:
    """Return the value of a secret of Secrets Manager, which the agent of ECS reads."""
    found = secretsmanager_backends[ACCOUNT][REGION].get_secret_value(arn, "", "")
    return str(found["SecretString"])


def _mount(point: Mapping[str, Any], volume: Mapping[str, Any]) -> docker.types.Mount:
    read_only = point.get("readOnly", False)
    if "efsVolumeConfiguration" in volume:
        source = volume["efsVolumeConfiguration"]["fileSystemId"]
        return docker.types.Mount(point["containerPath"], source, type="volume", read_only=read_only)
    source = volume.get("host", {}).get("sourcePath")
    return docker.types.Mount(point["containerPath"], source, type="bind", read_only=read_only)
