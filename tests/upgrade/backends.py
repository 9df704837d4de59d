"""The stored forms of an app and of the position in a log, for each scheduler: written today, and read again.

`record.py` writes it for a release, and `test_upgrade.py` reads what each release has written.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.aws_batch import log_reader as aws_log_reader
from airflow_provider_launch.schedulers.aws_batch import request as aws_request
from airflow_provider_launch.schedulers.aws_batch.jobs import AttemptLog
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup
from airflow_provider_launch.schedulers.docker import containers
from airflow_provider_launch.schedulers.docker import log_reader as docker_log_reader
from airflow_provider_launch.schedulers.docker import request as docker_request
from airflow_provider_launch.schedulers.docker.log_frames import frames_in
from airflow_provider_launch.schedulers.kubernetes import manifests, objects
from airflow_provider_launch.schedulers.kubernetes import request as kubernetes_request
from airflow_provider_launch.schedulers.kubernetes.attempts_log import StampedLines
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.schedulers.logs import LogLine
from airflow_provider_launch.schedulers.slurm import script as slurm_script
from airflow_provider_launch.schedulers.slurm import store as slurm_store
from airflow_provider_launch.specs import AppDef
from airflow_provider_launch.specs.owner import OWNER, owner_of
from airflow_provider_launch.specs.states import AppState, is_terminal

LINES = [f"line {number}" for number in range(6)]
_NS = 1_000_000_000
_START_S = 1_790_000_000


class Found(NamedTuple):
    """Facts about a stored app that a later version needs."""

    app: AppDef
    spec_hash: str
    owner: Mapping[str, str]


@dataclass(frozen=True)
class Backend:
    """One scheduler."""

    image: str
    cfg: Mapping[str, Any]
    """Options of the launch."""
    store: Callable[[AppDef, Any], Any]
    """Takes an app and its request, and returns what is written to the scheduler."""
    find: Callable[[str, Any], Found]
    """Takes the id of an app and what `store` returned, and reads it."""
    write_log: Callable[[list[str]], Any]
    """Returns a log with these lines, in the form in which the scheduler gives it out, as JSON."""
    read_log: Callable[[Any, Any], tuple[list[str], Any]]
    """Returns the lines of a log after a cursor, which may be None, and the next cursor."""


def request_of(backend: str, app: AppDef, app_id: str) -> Any:
    """Return the request of an app, as a launch makes it today."""
    runner = Runner("upgrade")
    try:
        return runner.dryrun(app, backend, BACKENDS[backend].cfg, app_id=app_id).request
    finally:
        runner.close()


# ---- local processes ---------------------------------------------------------------------------------------------


def _run_locally(app: AppDef, request: Any) -> dict[str, str]:
    """Run the app, and return the text of each file that it leaves, by path."""
    with tempfile.TemporaryDirectory() as root:
        scheduler = create_scheduler("upgrade", root=root)
        app_id = scheduler.schedule(scheduler.submit_dryrun(app, {}, app_id=request.app_id))
        while not is_terminal(scheduler.describe(app_id).state):
            time.sleep(0.1)
        scheduler.close()
        kept = [path for path in sorted(Path(root).rglob("*")) if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in kept}


def _found_locally(app_id: str, files: Mapping[str, str]) -> Found:
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            Path(root, name).write_text(text, encoding="utf-8")
        scheduler = create_scheduler("upgrade", root=root)
        try:
            (row,) = scheduler.list()
            response, native = scheduler.describe(app_id), scheduler.describe_native(app_id)
            lines = scheduler.read_logs(app_id, "trainer", 1).lines
        finally:
            scheduler.close()
        assert (row.app_id, row.state) == (app_id, AppState.SUCCEEDED)
        assert response is not None
        assert native is not None
        assert response.state == AppState.SUCCEEDED
        assert _texts(lines) == [f"grüße from 1 of {app_id}"]
        app = AppDef(row.name, response.roles, response.metadata)
        return Found(app, native.request.spec_hash, owner_of(response.metadata))


@dataclass(frozen=True)
class _File:
    """A file of a log, in memory."""

    data: bytes
    inode: int = 7
    modified: float = _START_S

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, count: int) -> bytes:
        return self.data[offset : offset + count]


def _read_file(log: str, cursor: Any) -> tuple[list[str], Any]:
    def open_log(_at: object, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(_File(log.encode()) if stream.value == "stdout" else None)

    chunk = file_log.read_chunk([(0, 0)], cursor, None, open_log=open_log, is_complete=lambda _: False)
    return _texts(chunk.lines), chunk.cursor


def _file_text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _texts(lines: list[LogLine]) -> list[str]:
    return [line.text.rstrip("\n") for line in lines]


# ---- Docker ------------------------------------------------------------------------------------------------------


def _containers(_app: AppDef, request: Any) -> list[dict[str, Any]]:
    bodies = [docker_request.record_body(request)]
    for role in request.roles:
        bodies += [docker_request.container_body(request, role, k, 0, 0) for k in range(role.num_replicas)]
    return bodies


def _found_in_docker(app_id: str, bodies: list[dict[str, Any]]) -> Found:
    rows = [
        {
            "Id": f"id{number}",
            "Names": [f"/{body['Labels']['launch.io/name']}"],
            "ImageID": "image",
            "State": "running" if number else "created",
            "Status": "Up 2 seconds" if number else "Created",
            "Created": _START_S,
            "Labels": body["Labels"],
        }
        for number, body in enumerate(bodies)
    ]
    app = containers.apps_in(containers.container_in(row, {}) for row in rows)[app_id]
    request = docker_request.request_in({"Config": {"Env": bodies[0]["Env"]}})
    plan = containers.Plan.of(app)
    assert app.record is not None
    assert plan.replicas == {role.name: role.num_replicas for role in request.app_def.roles}
    assert sorted(app.attempts) == [(role, k) for role, count in sorted(plan.replicas.items()) for k in range(count)]
    assert bodies[0]["Labels"]["launch.io/spec-hash"] == request.spec_hash
    owner = json.loads(app.record.notes["launch.io/task"])
    return Found(request.app_def, request.spec_hash, owner_of({OWNER: owner}))


def _frames(lines: list[str]) -> str:
    """Return the frames of a response with times, in base64."""
    frames = b""
    for number, line in enumerate(lines):
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_START_S + number))
        text = f"{at}.{number:09d}Z {line}\n".encode()
        frames += bytes([1, 0, 0, 0]) + len(text).to_bytes(4, "big") + text
    return base64.b64encode(frames).decode()


class _DockerAnswer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def iter_content(self, _size: int) -> Iterator[bytes]:
        yield self._data

    def close(self) -> None:
        pass


class _DockerEngine:
    """Answers each request for a log with all of it, which an engine may do."""

    def __init__(self, log: str) -> None:
        self._data = base64.b64decode(log)

    def logs(self, _container: str, _since: str | None, _tail: int | None) -> _DockerAnswer:
        return _DockerAnswer(self._data)


def _read_docker(log: str, cursor: Any) -> tuple[list[str], Any]:
    state = dict(cursor or {"at": [0, 0]})
    assert state.pop("at") == [0, 0]
    assert len([*frames_in([base64.b64decode(log)])]) <= len(LINES)
    chunk = docker_log_reader.LogReader(_DockerEngine(log)).read("id1", state, complete=False)
    return _texts(chunk.lines), {"at": [0, 0], **chunk.cursor}


# ---- Kubernetes --------------------------------------------------------------------------------------------------


def _objects(_app: AppDef, request: Any) -> dict[str, Any]:
    return {
        "record": manifests.record_body(request),
        "jobs": [manifests.job_body(request, role, 0) for role in request.roles],
    }


def _found_in_kubernetes(app_id: str, stored: Mapping[str, Any]) -> Found:
    ours = {"uid": "1", "resourceVersion": "1"}
    record = AppRecord.of({**stored["record"], "metadata": {**stored["record"]["metadata"], **ours}})
    assert record is not None
    record.check()
    jobs = [{**job, "metadata": {**job["metadata"], **ours}} for job in stored["jobs"]]
    app = objects.apps_in(jobs)[app_id]
    plan = app.plan()
    request = kubernetes_request.unpacked(stored["jobs"][0]["metadata"]["annotations"][Annotation.REQUEST])
    without_values = kubernetes_request.unpacked(record.annotations[Annotation.REQUEST])
    assert plan is not None
    assert {role.name: role.num_replicas for role in plan.roles} == {
        role.name: role.num_replicas for role in without_values.app_def.roles
    }
    assert record.annotations[Annotation.SPEC_HASH] == request.spec_hash
    owner = json.loads(record.annotations[Annotation.OWNER])
    return Found(request.app_def, request.spec_hash, owner_of({OWNER: owner}))


def _stamped(lines: list[str]) -> str:
    at = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_START_S + number)) for number in range(len(lines))]
    return "".join(f"{each}.{number:09d}Z {line}\n" for number, (each, line) in enumerate(zip(at, lines, strict=True)))


def _read_kubernetes(log: str, cursor: Any) -> tuple[list[str], Any]:
    key = {"at": [0, 0, 0], "uid": "1"}
    state = dict(cursor or key)
    assert key.items() <= state.items()
    parser = StampedLines({name: value for name, value in state.items() if name not in key})
    lines = parser.feed(log.encode())
    assert parser.is_positioned()
    return _texts(lines), {**key, **parser.cursor()}


# ---- AWS Batch ---------------------------------------------------------------------------------------------------


def _definitions(_app: AppDef, request: Any) -> dict[str, Any]:
    return {"definition": request.definition(0, _START_S), "job": request.submission(0, 1)}


def _found_in_batch(app_id: str, stored: Mapping[str, Any]) -> Found:
    request = aws_request.request_in(stored["definition"])
    assert request is not None
    assert request.app_id == app_id == stored["job"]["tags"]["launch.io/app-id"]
    assert stored["job"]["tags"]["launch.io/spec-hash"] == request.spec_hash
    return Found(request.app_def, request.spec_hash, owner_of(request.app_def.metadata))


def _events(lines: list[str]) -> list[dict[str, Any]]:
    return [{"timestamp": (_START_S + number) * 1000, "message": line} for number, line in enumerate(lines)]


class _Aws:
    """CloudWatch with one stream; a token counts the events before it."""

    def __init__(self, log: list[dict[str, Any]]) -> None:
        self._log = log

    def log_events(self, _group: Any, _stream: str, **where: Any) -> dict[str, Any]:
        token = where.get("nextToken")
        first = int(token.removeprefix("f/")) if token else 0
        events = [event for event in self._log[first:] if event["timestamp"] >= where.get("startTime", 0)]
        return {"events": events, "nextForwardToken": f"f/{len(self._log)}"}

    def now(self) -> float:
        return _START_S + 100.0


def _read_batch(log: list[dict[str, Any]], cursor: Any) -> tuple[list[str], Any]:
    state = dict(cursor or {})
    inner = state.get("l", {}) if state.get("a", 0) == 0 else None
    assert inner is not None
    reader = aws_log_reader.CloudWatchLogs(_Aws(log))
    lines, inner = reader.read(0, AttemptLog(LogGroup("group"), "stream", None), None, inner)
    return _texts(lines), {"a": 0, "l": inner}


# ---- Slurm -------------------------------------------------------------------------------------------------------


def _found_in_slurm(app_id: str, files: Mapping[str, str]) -> Found:
    data = files["app.json"].encode()
    found = slurm_store._request_in(app_id, slurm_store.FilePart(True, data, len(data), 7, 0))
    assert isinstance(found, tuple), found
    identity, request, _ = found
    assert identity == files["id"]
    return Found(request.app_def, request.spec_hash, owner_of(request.app_def.metadata))


def _slurm_files(_app: AppDef, request: Any) -> dict[str, str]:
    files = slurm_script.app_files(request, "instance")
    return {name: files[name] for name in ("app.json", "id", "plan", "role-0.sh")}


BACKENDS: Mapping[str, Backend] = {
    "local": Backend("/", {}, _run_locally, _found_locally, _file_text, _read_file),
    "docker": Backend("busybox:1.36", {}, _containers, _found_in_docker, _frames, _read_docker),
    "kubernetes": Backend("busybox:1.36", {}, _objects, _found_in_kubernetes, _stamped, _read_kubernetes),
    "aws_batch": Backend("busybox:1.36", {"queue": "cpu"}, _definitions, _found_in_batch, _events, _read_batch),
    "slurm": Backend("/", {}, _slurm_files, _found_in_slurm, _file_text, _read_file),
}
