"""A complete scheduler by a third party: background threads run the apps, a directory stores their records.

```text
<root>/<app id>/  request.json    the request; the directory is created complete, by a rename
                  state.json      last state seen by the thread; final once terminal
                  cancel, delete  marks: requests of an observer
                  stopped         mark: an outside stop
                  lock            flock of the process whose thread runs the app
                  started         one line per program that was started
                  <n>.stdout, <n>.stderr of the n-th replica
```
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    LogLine,
    Scheduler,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.parts import (
    RANK0_ENV,
    lines_after,
    make_unique,
    masked_env,
    owner_of,
    refuse_unsupported,
    replica_env,
    spec_hash,
    split_lines,
)
from airflow_provider_launch.specs.app_dict import app_from_dict, app_to_dict
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus

Json = dict[str, Any]

_APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PAUSE_S = 0.02


class AppThread:
    """Runs one app from its start to its end."""

    def __init__(self, app_dir: Path, request: Json, lock: IO[str]) -> None:
        self.dir, self.request, self.lock = app_dir, request, lock
        self.processes: list[subprocess.Popen[bytes]] = []
        self.replicas: list[Json] = [{} for _ in request["replicas"]]
        self.is_stopped = False

    def run(self) -> None:
        with self.lock:
            self._run()
        # After the lock, because an observer sets its mark before it checks the lock: one of them removes it.
        if (self.dir / "delete").exists():
            _remove(self.dir)

    def _run(self) -> None:
        end: tuple[str, str] | None = None
        if hold := self.request["hold"]:
            self._publish("PENDING", hold)
        while hold and not self._is_cancelled():
            time.sleep(_PAUSE_S)
        if not self._is_cancelled():
            self.processes = [self._start(number) for number in range(len(self.replicas))]
            self._publish("RUNNING", "")
        while None in [process.returncode for process in self.processes]:
            end = end or self._reason_to_end()
            if end:
                self._stop_all()
            elif not self.is_stopped and (self.dir / "stopped").exists():
                self.is_stopped = True
                for process in self.processes:
                    _signal_group(process, signal.SIGTERM)
            time.sleep(_PAUSE_S)
            if self._check_programs():
                self._publish("RUNNING", "")
        end = end or self._reason_to_end() or ("SUCCEEDED", "")
        self.replicas = [replica or {"state": "CANCELLED"} for replica in self.replicas]
        self._publish(*end)

    def _is_cancelled(self) -> bool:
        return (self.dir / "cancel").exists() or (self.dir / "delete").exists()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        replica = self.request["replicas"][number]
        self.replicas[number] = {"state": "RUNNING", "start_time": int(time.time())}
        with (self.dir / "started").open("a") as started:
            started.write(f"{replica['role']}/{replica['id']}\n")
        with (self.dir / f"{number}.stdout").open("wb") as out, (self.dir / f"{number}.stderr").open("wb") as err:
            argv, env, cwd = replica["argv"], replica["env"], replica["cwd"]
            try:
                return self._popen(argv, out, err, env, cwd)
            except OSError as error:
                err.write(f"cannot start {argv[0]!r}: {error.strerror}\n".encode())
                return self._popen(["sh", "-c", "exit 127"], out, err)

    @staticmethod
    def _popen(
        argv: list[str], out: IO[bytes], err: IO[bytes], env: dict[str, str] | None = None, cwd: str | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd, start_new_session=True
        )

    def _check_programs(self) -> bool:
        """Record the replicas that ended since the last call; return whether there are any."""
        news = False
        for process, replica in zip(self.processes, self.replicas, strict=True):
            if replica["state"] != "RUNNING" or process.poll() is None:
                continue
            self._end_background(process)
            code = process.returncode
            replica["state"] = "CANCELLED" if "signalled_at" in replica else "SUCCEEDED" if code == 0 else "FAILED"
            replica |= {"exit_code": code if code >= 0 else 128 - code, "end_time": int(time.time())}
            if code < 0:
                replica["reason"] = signal.Signals(-code).name
            elif code == 0 and self.is_stopped and "signalled_at" not in replica:
                self._note_stop(replica)
            news = True
        return news

    def _note_stop(self, replica: Json) -> None:
        """Record that a program ended with 0 because of an outside stop."""
        replica |= {"state": "FAILED", "reason": "stopped from outside"}

    def _end_background(self, process: subprocess.Popen[bytes]) -> None:
        """End background processes of a replica, which must not write any more."""
        _signal_group(process, signal.SIGKILL)

    def _reason_to_end(self) -> tuple[str, str] | None:
        for replica, now in zip(self.request["replicas"], self.replicas, strict=True):
            if now.get("state") == "FAILED":
                why = now.get("reason") or f"exit code {now['exit_code']}"
                return "FAILED", f"{replica['role']}/{replica['id']} failed: {why}"
        return ("CANCELLED", "cancelled by request") if self._is_cancelled() else None

    def _stop_all(self) -> None:
        for process, replica in zip(self.processes, self.replicas, strict=True):
            if replica["state"] == "RUNNING":
                late = time.monotonic() - replica.setdefault("signalled_at", time.monotonic()) > self.request["grace_s"]
                _signal_group(process, signal.SIGKILL if late else signal.SIGTERM)

    def _publish(self, state: str, msg: str) -> None:
        replicas = [
            {key: value for key, value in replica.items() if key != "signalled_at"} for replica in self.replicas
        ]
        if not (self.dir / "state.json").exists():
            return  # the app was deleted and must not come back
        _write_json(self.dir / "state.json", {"state": state, "msg": msg, "replicas": replicas})


class ThreadsScheduler(Scheduler[Mapping[str, Any]]):
    """Runs apps in threads of the launcher, so they end with it."""

    capabilities = frozenset({Capability.ADOPT, Capability.STREAMS})
    poll_interval_s = 0.1
    needs_resource = False  # threads share the host
    app_thread = AppThread

    def __init__(self, session_name: str, root: str) -> None:
        super().__init__("threads", session_name)
        self.root = Path(root)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("hold", type_=str, default=None, help="why the app is held back until it is cancelled")
        opts.add("grace_s", type_=float, default=2.0, help="seconds between TERM and KILL when an app is ended")
        return opts

    # ---- submit ----------------------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None) -> AppDryRunInfo[Json]:
        chosen = app_id or make_unique(re.sub(r"[^A-Za-z0-9]+", "-", app.name).strip("-")[:100] or "app")
        if not _APP_ID.fullmatch(chosen):
            raise InvalidAppError(f"app id {chosen!r} cannot name a directory; use letters, digits, '.', '_' and '-'")
        self._refuse_unsupported(app)
        request = {
            "app_id": chosen,
            "spec_hash": spec_hash(app, cfg),
            "app": app_to_dict(app),
            "grace_s": cfg["grace_s"],
            "hold": cfg.get("hold"),
            "replicas": [self._replica(role, k, chosen) for role in app.roles for k in range(role.num_replicas)],
        }
        return AppDryRunInfo(request, _shown)

    def _refuse_unsupported(self, app: AppDef) -> None:
        """Refuse all that is not in `capabilities`."""
        refuse_unsupported(app, self, needs_image=False)

    def _replica(self, role: Role, k: int, app_id: str) -> Json:
        image = str(Path(role.image).absolute())
        filled = macros.Values(img_root=image, app_id=app_id, replica_id=str(k), rank0_env=RANK0_ENV).apply(role)
        # The rest of the launcher's environment may contain secrets.
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        given = {**replica_env(app_id, role, k, "localhost"), "LAUNCH_ATTEMPT": "0"}
        return {
            "role": role.name,
            "id": k,
            "argv": [role.entrypoint, *filled.args],
            "env": {**inherited, **given, **filled.env},
            "cwd": image,
        }

    def schedule(self, dryrun_info: AppDryRunInfo[Json]) -> str:
        request = dryrun_info.request
        app_dir = self._reached() / request["app_id"]
        new = app_dir.with_name(f".{request['app_id']}.{uuid.uuid4().hex}")
        new.mkdir()
        lock = (new / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write_json(new / "request.json", request)
        _write_json(new / "state.json", {"state": "PENDING", "msg": "", "replicas": [{} for _ in request["replicas"]]})
        try:
            new.rename(app_dir)
        except OSError:
            lock.close()
            shutil.rmtree(new)
            found = _read_json(app_dir / "request.json")
            if found and found["spec_hash"] != request["spec_hash"]:
                raise AppConflictError(f"{request['app_id']!r} is another app; choose another id") from None
        else:
            # Resolved, so that the app continues if the root is unreachable for observers. Not a daemon, so that
            # the interpreter waits for its apps.
            threading.Thread(target=self.app_thread(app_dir.resolve(), request, lock).run).start()
        return str(request["app_id"])

    # ---- state -----------------------------------------------------------------------------------------------

    def _reached(self) -> Path:
        """Return the root; each call checks that it exists."""
        if not self.root.is_dir():
            raise SchedulerUnavailableError(f"{str(self.root)!r} is not there; try again when it is mounted")
        return self.root

    def _dir(self, app_id: str) -> Path:
        # The id comes from a handle, a free text, so it must not lead out of the root.
        return self._reached() / (app_id if _APP_ID.fullmatch(app_id) else ".none")

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        root = self._reached()
        return {app_id: self._load(root / app_id) if _APP_ID.fullmatch(app_id) else None for app_id in app_ids}

    def _load(self, app_dir: Path) -> DescribeAppResponse | None:
        alive = _is_locked(app_dir / "lock")
        # In this order, because the request of a deleted app is removed first.
        state, request = _read_json(app_dir / "state.json"), _read_json(app_dir / "request.json")
        if request is None:
            return None
        if state is None:
            lost = [{"state": "UNKNOWN"} for _ in request["replicas"]]
            state = {"state": "UNKNOWN", "msg": "lost: its state was removed", "replicas": lost}
        elif not alive and not is_terminal(AppState[state["state"]]):
            state |= {"state": "FAILED", "msg": "the process that ran the app was killed"}
        roles = app_from_dict(request["app"]).roles
        statuses: dict[str, RoleStatus] = {role.name: RoleStatus(role.name, []) for role in roles}
        for replica, now in zip(request["replicas"], state["replicas"], strict=True):
            known = {key: value for key, value in now.items() if key != "state"}
            word = now.get("state", "PENDING")
            if word in {"PENDING", "RUNNING"} and not alive:
                word = state["state"]
            statuses[replica["role"]].replicas.append(
                ReplicaStatus(replica["id"], AppState[word], replica["role"], "localhost", num_restarts=0, **known)
            )
        return DescribeAppResponse(
            app_id=app_dir.name,
            state=AppState[state["state"]],
            num_restarts=0,
            msg=state["msg"],
            metadata=request["app"].get("metadata") or {},
            roles_statuses=[*statuses.values()],
            roles=roles,
            is_stuck=state["state"] == "PENDING" and bool(state["msg"]),
        )

    def describe_native(self, app_id: str) -> AppDryRunInfo[Json] | None:
        request = _read_json(self._dir(app_id) / "request.json")
        return AppDryRunInfo(request, _shown) if request else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        root = self._reached()
        rows = []
        for app_dir in sorted(root.iterdir()):
            app, request = self._load(app_dir), _read_json(app_dir / "request.json")
            if app and request and _APP_ID.fullmatch(app_dir.name):
                owner = owner_of(request["app"].get("metadata") or {})
                name, created = request["app"]["name"], (app_dir / "request.json").stat().st_mtime
                rows.append(ListAppResponse(app_dir.name, app.state, name=name, owner=owner, created_at=created))
        return rows

    # ---- end -------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._dir(app_id) / "cancel").touch()

    def _delete_existing(self, app_id: str) -> None:
        app_dir = self._dir(app_id)
        with contextlib.suppress(FileNotFoundError):
            (app_dir / "delete").touch()
        # Otherwise the thread removes it after the end.
        if not _is_locked(app_dir / "lock"):
            _remove(app_dir)

    # ---- logs ------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        app_dir = self._dir(app_id)
        found = self._load(app_dir)
        request = _read_json(app_dir / "request.json")
        if found is None or request is None:
            raise UnknownAppException(app_id)
        check_replica(found.roles, role_name, k)
        number = [(replica["role"], replica["id"]) for replica in request["replicas"]].index((role_name, k))
        (role,) = (role for role in found.roles_statuses if role.role == role_name)
        ended = is_terminal(role.replicas[k].state)
        position: Json = dict(cursor) if isinstance(cursor, dict) else {}
        lines: list[LogLine] = []
        for stream in (Stream.STDOUT, Stream.STDERR):
            if streams in {None, Stream.COMBINED, stream}:
                text, at = self._read(app_dir / f"{number}.{stream.value}", position.get(stream.value, 0), ended)
                position[stream.value] = at
                lines += [LogLine(line, stream) for line in split_lines(text)]
        return LogChunk(lines, position)

    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        """Return about one chunk of complete lines after `at`, and the position after them."""
        lines, end = lines_after(str(path), at, has_ended=ended)
        return "".join(lines), end


def create_scheduler(session_name: str, *, root: str) -> ThreadsScheduler:
    """Return the scheduler of a root; an unknown keyword is an error."""
    return ThreadsScheduler(session_name, root)


def _shown(request: Json) -> str:
    replicas = [{**replica, "env": masked_env(replica["env"])} for replica in request["replicas"]]
    return json.dumps({**request, "app": request["app"]["name"], "replicas": replicas}, indent=2)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _remove(app_dir: Path) -> None:
    gone = app_dir.with_name(f".{app_dir.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        app_dir.rename(gone)
        shutil.rmtree(gone)


def _write_json(path: Path, document: Json) -> None:
    """Replace the file atomically, so that readers see the old or the new document."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document), encoding="utf-8")
    part.replace(path)


def _read_json(path: Path) -> Json | None:
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
