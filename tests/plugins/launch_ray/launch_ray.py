"""Jobs of a Ray cluster as a scheduler: Ray reserves the resources of all replicas, and places them."""

from __future__ import annotations

import base64
import builtins
import json
import re
import shlex
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from launch_ray_driver import SEGMENT

from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    LogLine,
    Scheduler,
    Stream,
    StructuredOpts,
    check_replica,
)
from airflow_provider_launch.schedulers.masking import masked_document
from airflow_provider_launch.schedulers.parts import (
    RANK0_ENV,
    make_unique,
    masked_args,
    masked_env,
    owner_of,
    parse_result,
    refuse_other_spec,
    refuse_unsupported,
    replica_env,
    slug,
    spec_hash,
)
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.app_dict import app_from_dict, app_to_dict
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus
from airflow_provider_launch.util.untrusted import inflate, one_line, parse_json

Json = dict[str, Any]

_APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_REQUEST = 64 * 1024
"""Characters of a packed request: Ray passes it to the driver in a variable, together with others."""
_LARGEST_REQUEST = 16 * 1024 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_TIMEOUT_S = 30.0
_END_S = 60.0
_PAUSE_S = 0.2
_SETTLE_S, _OLD_S = 3.0, 60.0
"""Seconds until Ray has noticed the end of a job, and until this is certain."""
_DRIVER = Path(__file__).with_name("launch_ray_driver.py")
_STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.PENDING,  # its driver runs; events show when its replicas do
    "STOPPED": AppState.CANCELLED,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}


@dataclass(frozen=True)
class RayConnection(StructuredOpts):
    """Options of a connection."""

    address: str = "http://127.0.0.1:8265"
    """Address of the dashboard of the cluster, which accepts jobs."""

    def __post_init__(self) -> None:
        """Refuse addresses without a scheme, which Ray would look up in another way."""
        if not self.address.startswith(("http://", "https://")):
            raise ValueError(f"option 'address' must start with http:// or https://, not {self.address!r}; add it")


@dataclass(frozen=True)
class RayOpts(StructuredOpts):
    """Options of one launch."""

    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places the replicas: on few nodes or on many; STRICT means on one node, or on a node for each."""

    runtime_env: dict[str, Any] | None = None
    """Runtime environment of the job, such as `{"working_dir": "s3://bucket/code.zip", "pip": ["torch"]}`."""

    time_limit_s: Annotated[float, Ge(1)] | None = None
    """Seconds after the start of its replicas when the app is ended as FAILED. None means no limit."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when an app is ended."""


class RayScheduler(Scheduler[Mapping[str, Any]]):
    """Runs each app as one job of Ray, with one actor for each replica."""

    capabilities = frozenset(
        {Capability.ADOPT, Capability.STREAMS, Capability.RANK0, Capability.GPU, Capability.RESULT}
    )
    poll_interval_s = 2.0

    def __init__(self, session_name: str, connection: RayConnection) -> None:
        super().__init__("ray", session_name)
        self.address = connection.address.rstrip("/")
        self._connected: Any = None

    def _run_opts(self) -> runopts:
        return RayOpts.as_runopts()

    # ---- submit ----------------------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None) -> AppDryRunInfo[Json]:
        chosen = app_id or make_unique(slug(app.name, 60))
        if not _APP_ID.fullmatch(chosen):
            raise InvalidAppError(
                f"app id {chosen[:200]!r} cannot name a job of Ray; use up to 100 letters, digits, '.', '_' and '-'"
            )
        refuse_unsupported(app, self, needs_image=False)
        request = {
            "app_id": chosen,
            "spec_hash": spec_hash(app, cfg),
            "app": app_to_dict(app),
            "rank0_env": RANK0_ENV,
            "strategy": cfg["strategy"],
            "runtime_env": cfg.get("runtime_env"),
            "time_limit_s": cfg.get("time_limit_s"),
            "grace_s": cfg["grace_s"],
            "replicas": [
                {**_replica(role, k, chosen), "gives_result": role is app.roles[0]}
                for role in app.roles
                for k in range(role.num_replicas)
            ],
        }
        if (size := len(_packed(request))) > _LONGEST_REQUEST:
            raise InvalidAppError(
                f"the request for app {chosen!r} has {size} characters, the limit of 'ray' is {_LONGEST_REQUEST}; "
                f"pass long arguments in a file"
            )
        return AppDryRunInfo(request, _shown)

    def schedule(self, dryrun_info: AppDryRunInfo[Json]) -> str:
        request = dryrun_info.request
        app_id, hashed = request["app_id"], request["spec_hash"]
        given = request["runtime_env"] or {}
        env_vars = {
            **given.get("env_vars", {}),
            "LAUNCH_DRIVER": _DRIVER.read_text(encoding="utf-8"),
            "LAUNCH_REQUEST": _packed(request),
            # Log files outlive a deleted app, and its id may be used again.
            "LAUNCH_RUN": uuid.uuid4().hex,
            "RAY_JOB_STOP_WAIT_TIME_S": str(int(request["grace_s"]) + 30),
        }
        try:
            with _translated("submit the job"):
                self._client().submit_job(
                    entrypoint='exec python -c "$LAUNCH_DRIVER"',
                    submission_id=app_id,
                    runtime_env={**given, "env_vars": env_vars},
                    metadata={"name": request["app"]["name"], "launch_spec_hash": hashed},
                )
        except SchedulerRejectedError:
            # Ray accepts an id only once.
            if (job := self._jobs([app_id])[app_id]) is None:
                raise
            refuse_other_spec(self.backend, app_id, hashed, (job.metadata or {}).get("launch_spec_hash"))
        return str(app_id)

    def _client(self) -> Any:
        if self._connected is None:
            try:
                from ray.job_submission import JobSubmissionClient
            except ImportError as error:
                raise MissingDependencyError("scheduler 'ray' needs Ray; pip install 'ray[default]'") from error
            self._connected = JobSubmissionClient(self.address)  # sends two requests
        return self._connected

    # ---- state -----------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found, damaged = self._described(self._jobs([*app_ids]))
        if damaged:
            raise AppUnavailableError(next(iter(damaged.values())), texts=damaged)
        return found

    def _described(self, jobs: Mapping[str, Any]) -> tuple[dict[str, DescribeAppResponse | None], dict[str, str]]:
        """Return the response of each app, and the error of each app whose record or log is damaged."""
        found: dict[str, DescribeAppResponse | None] = {}
        damaged: dict[str, str] = {}
        for app_id, job in jobs.items():
            try:
                found[app_id] = self._response(job, *self._events(job)) if job else None
            except AppUnavailableError as error:
                damaged[app_id] = str(error)
            except LaunchError:
                raise
            except Exception as error:  # noqa: BLE001 - any user of the cluster may have written them
                text = one_line(str(error), 200)
                damaged[app_id] = f"app {app_id!r} is damaged ({type(error).__name__}: {text}); delete it"
        return found, damaged

    def _jobs(self, app_ids: builtins.list[str] | None = None) -> dict[str, Any]:
        """Return the jobs of these apps, with None for those that Ray does not list; all apps without ids."""
        with _translated("list the jobs"):
            jobs = {job.submission_id: job for job in self._client().list_jobs() if _request_of(job)}
        return jobs if app_ids is None else {app_id: jobs.get(app_id) for app_id in app_ids}

    def _events(self, job: Any) -> tuple[Json, builtins.list[Json]]:
        """Return what the driver has reported about the app, and about each of its replicas."""
        app: Json = {}
        replicas: builtins.list[Json] = [{} for _ in _request_of(job)["replicas"]]
        if job.status.value == "PENDING" or not job.driver_agent_http_address:
            return app, replicas
        run = job.runtime_env["env_vars"]["LAUNCH_RUN"]
        try:
            with _translated("read the events of the app"):
                log = self._client().get_job_logs(job.submission_id)
        except SchedulerRejectedError as error:
            # The node of the driver may be lost. Only this app is affected.
            if job.status.is_terminal():
                return app, replicas
            raise AppUnavailableError(str(error), texts={job.submission_id: str(error)}) from error
        for line in log.split("\n")[:-1]:  # the last one may be incomplete
            if line.startswith(f"{run} "):
                event = json.loads(line[len(run) :])
                (replicas[event.pop("n")] if "n" in event else app).update(event)
        return app, replicas

    def _response(self, job: Any, app: Json, replicas: builtins.list[Json]) -> DescribeAppResponse:
        request = _request_of(job)
        state, message = _STATES.get(job.status.value, AppState.UNKNOWN), ""
        stuck = ""
        if "end" in app:
            state, message = AppState[app["end"]], app["msg"]
        elif state is AppState.FAILED:
            message = " ".join(f"Ray ended the job: {job.message}".split())[:1000]
        elif state is AppState.CANCELLED:
            message = "cancelled by request"
        elif any("state" in replica for replica in replicas):
            state = AppState.RUNNING
        else:
            stuck = app.get("stuck", "")
            message = stuck or "waits for the resources of all replicas"
        spec = app_from_dict(request["app"])
        statuses = {role.name: RoleStatus(role.name, []) for role in spec.roles}
        for replica, now in zip(request["replicas"], replicas, strict=True):
            known = {key: now[key] for key in ("exit_code", "start_time", "end_time", "reason") if key in now}
            own = AppState[now.get("state", "PENDING")]
            if is_terminal(state) and not is_terminal(own):
                own = state if state is AppState.SUCCEEDED else AppState.CANCELLED
            host = now.get("host", "")
            statuses[replica["role"]].replicas.append(
                ReplicaStatus(replica["id"], own, replica["role"], host, num_restarts=0, **known)
            )
        return DescribeAppResponse(
            app_id=job.submission_id,
            state=state,
            num_restarts=0,
            msg=message,
            ui_url=f"{self.address}/#/jobs/{job.submission_id}",
            metadata=request["app"].get("metadata") or {},
            roles_statuses=[*statuses.values()],
            roles=spec.roles,
            is_stuck=state is AppState.PENDING and bool(stuck),
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        rows = []
        jobs = self._jobs()
        found, damaged = self._described(jobs)
        for app_id, response in found.items():
            if response is not None:
                name = str(_request_of(jobs[app_id])["app"].get("name", ""))
                row = ListAppResponse(app_id, response.state, name=name, owner=owner_of(response.metadata))
                row.created_at = jobs[app_id].start_time / 1000 if jobs[app_id].start_time else None
                rows.append(row)
        return [*rows, *(ListAppResponse(app_id, AppState.UNKNOWN) for app_id in damaged)]

    def describe_native(self, app_id: str) -> AppDryRunInfo[Json] | None:
        job = self._jobs([app_id])[app_id]
        return AppDryRunInfo(_request_of(job), _shown) if job else None

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        if (job := self._jobs([app_id])[app_id]) is None:
            raise UnknownAppException(app_id)
        replicas = _request_of(job)["replicas"]
        for replica, now in zip(replicas, self._events(job)[1], strict=True):
            if replica["role"] == replicas[0]["role"]:
                yield parse_result(base64.b64decode(now.get("result", "")), now.get("result_size", 0))

    # ---- end -------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._call("stop_job", app_id)

    def _delete_existing(self, app_id: str) -> None:
        deadline = time.monotonic() + _END_S + self._grace_s(app_id)
        self._call("stop_job", app_id)
        gone_at = 0.0
        # Ray writes the record of a deleted job again if it notices the end of the job only after that.
        while not gone_at or time.monotonic() < gone_at + _SETTLE_S:
            with _translated("list the jobs"):
                job = next((job for job in self._client().list_jobs() if job.submission_id == app_id), None)
            if job is None:
                gone_at = gone_at or time.monotonic()
            elif job.status.is_terminal():
                self._call("delete_job", app_id)
                if job.start_time and time.time() - (job.end_time or 0) / 1000 > _OLD_S:
                    return
                gone_at = 0.0
            if time.monotonic() > deadline:
                raise SchedulerUnavailableError(f"job {app_id!r} has not ended yet; delete it again later")
            time.sleep(_PAUSE_S)

    def _grace_s(self, app_id: str) -> float:
        job = self._jobs([app_id])[app_id]
        return float(_request_of(job)["grace_s"]) if job else 0.0

    def _call(self, method: str, app_id: str) -> None:
        """Call a method of a job; do nothing if Ray does not list it any more."""
        try:
            with _translated(f"call {method}"):
                getattr(self._client(), method)(app_id)
        except SchedulerRejectedError:
            if self._jobs([app_id])[app_id] is not None:
                raise

    # ---- logs ------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        if (job := self._jobs([app_id])[app_id]) is None:
            raise UnknownAppException(app_id)
        app, replicas = self._events(job)
        found = self._response(job, app, replicas)
        check_replica(found.roles, role_name, k)
        keys = [(replica["role"], replica["id"]) for replica in _request_of(job)["replicas"]]
        number = keys.index((role_name, k))
        node = replicas[number].get("node")
        (role,) = (role for role in found.roles_statuses if role.role == role_name)
        position: Json = dict(cursor) if isinstance(cursor, dict) else {}
        lines: builtins.list[LogLine] = []
        for stream in (Stream.STDOUT, Stream.STDERR):
            if node and streams in {None, Stream.COMBINED, stream}:
                name = f"launch-{job.runtime_env['env_vars']['LAUNCH_RUN']}-{number}.{stream.value}"
                at = position.get(stream.value, 0)
                data = self._lines_after(node, name, at, has_ended=is_terminal(role.replicas[k].state))
                position[stream.value] = at + len(data)
                texts = data.decode("utf-8", "replace").split("\n")
                lines += [LogLine(f"{text}\n", stream) for text in texts[:-1]]
                lines += [LogLine(text, stream) for text in texts[-1:] if text]
        return LogChunk(lines, position)

    def _lines_after(self, node: str, name: str, at: int, *, has_ended: bool) -> bytes:
        """Return the complete lines of the next file of a stream, and of those after it if a line is longer."""
        data = b""
        while len(data) < _LONGEST_LINE:
            number, used = divmod(at + len(data), SEGMENT)
            part = self._file(node, f"{name}.{number}")[used:]
            data += part
            is_all = used + len(part) < SEGMENT
            if is_all or b"\n" in part:
                end = len(data) if is_all and has_ended else data.rfind(b"\n") + 1
                return data[:end]
        return data

    def _file(self, node: str, name: str) -> bytes:
        """Return a log file of a node; empty if there is none."""
        import requests

        with _translated("read the log"):
            query = {"node_id": node, "filename": name, "lines": -1}
            reply = requests.get(f"{self.address}/api/v0/logs/file", params=query, timeout=_TIMEOUT_S)
            if reply.status_code == 200:
                return reply.content
            if "A file is not found" in reply.text:
                return b""
            raise RuntimeError(f"Request failed with status code {reply.status_code}: {reply.text}")


def create_scheduler(session_name: str, **params: Any) -> RayScheduler:
    """Return the scheduler of a cluster, without a request to it."""
    return RayScheduler(session_name, resolve_options(RayConnection, params, strict=True))


def _replica(role: Role, k: int, app_id: str) -> Json:
    filled = macros.Values(img_root=role.image, app_id=app_id, replica_id=str(k), rank0_env=RANK0_ENV).apply(role)
    # The driver sets the host of replica 0.
    given = {**replica_env(app_id, role, k, ""), "LAUNCH_ATTEMPT": "0"}
    wanted = role.resource
    bundle = {"CPU": wanted.cpu or 0, "GPU": wanted.gpu or 0, "memory": (wanted.memMB or 0) * 1024 * 1024}
    return {
        "role": role.name,
        "id": k,
        "argv": [role.entrypoint, *filled.args],
        "env": {**given, **filled.env},
        "cwd": role.image,
        "bundle": {name: float(value) for name, value in bundle.items() if value > 0},
    }


def _packed(request: Json) -> str:
    return base64.b64encode(zlib.compress(json.dumps(request).encode())).decode()


def _request_of(job: Any) -> Json:
    """Return the request of a job; empty if the job is not an app, or not one that this launcher has submitted."""
    packed = ((job.runtime_env or {}).get("env_vars") or {}).get("LAUNCH_REQUEST")
    if job.submission_id is None or not packed:
        return {}
    try:
        found = parse_json(inflate(base64.b64decode(str(packed)), _LARGEST_REQUEST), _LARGEST_REQUEST)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _shown(request: Json) -> str:
    lines = [f"one job of 'ray' with a placement group ({request['strategy']}) for all replicas"]
    if request["runtime_env"]:
        lines.append(f"runtime_env: {json.dumps(masked_document(request['runtime_env']))}")
    for replica in request["replicas"]:
        needs = ", ".join(f"{name} {value:g}" for name, value in replica["bundle"].items())
        env = " ".join(shlex.quote(f"{name}={value}") for name, value in masked_env(replica["env"]).items())
        lines.append(f"{replica['role']}/{replica['id']} ({needs}): {env} {shlex.join(masked_args(replica['argv']))}")
    return "\n".join(lines)


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Turn the errors of Ray's client into those of the launcher."""
    try:
        yield
    except OSError as error:  # also those of requests
        raise SchedulerUnavailableError(f"cannot {action}: Ray was not reached: {error}; try again later") from error
    except RuntimeError as error:
        text = " ".join(str(error).split())
        code = re.search(r"status code (\d+)", text)
        kind = SchedulerUnavailableError if code and code[1] in {"429", "502", "503", "504"} else SchedulerRejectedError
        raise kind(f"cannot {action}: {text[-500:]}; see the dashboard of the cluster") from error
