"""Shared parts of the tests of the guarantees: apps of real engines, faults, and a worker that dies.

Run as a program it is a worker host with everything imported: it forks one worker for each line of its input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx
import pytest
from airflow.sdk.execution_time.comms import DeferTask
from typing_extensions import Self

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, a_dag
from tests.airflow.versions import deserialize, serialize
from tests.support.app_folders import unreadable
from tests.support.apps import until
from tests.support.local import processes_below

CONN = "place"


class Place(Protocol):
    """One engine with the apps of one test, whose tasks use the connection `CONN`."""

    mark: str
    """The id of the task, and a part of the id of each of its apps."""
    connection: dict[str, Any]
    lag_s: float
    """How much later than others it learns of an end."""
    log_lag_s: float
    """How much later than others its lines can be read."""
    drain_s: float
    """How long a program stays after a flood, so that all of it is copied from its pipes."""
    cfg_without_result: dict[str, Any]
    """Options for an app whose result is not a part of its log."""
    outages: Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]]

    def another(self) -> Place:
        """Return a place for another task on the same engine."""

    def role(self, script: str, **fields: Any) -> Role:
        """Return a role that runs a shell script; in it `$GO` names the file that `go` makes."""

    def apps(self) -> list[str]:
        """Return the ids of all apps that the engine has ever got from the task."""

    def starts(self) -> list[str]:
        """Return an entry for each replica that was ever really started, as the engine or the replica itself says."""

    def alive(self) -> int:
        """Return how many replicas live."""

    def go(self) -> None:
        """Let the replicas continue that wait for it."""

    def vanish(self, app_id: str) -> None:
        """Remove the app and all that is known of it."""

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        """Let no log of the task's apps be read, though the engine answers all else."""


def launch(place: Place, *roles: Role, **kwargs: Any) -> LaunchAppOperator:
    """Return a task on the place."""
    with a_dag():
        return LaunchAppOperator(task_id=place.mark, app=AppDef("app", list(roles)), launch_conn_id=CONN, **kwargs)


WAIT = "echo begun; while test ! -e $GO; do sleep 0.05; done; echo done"
"""Lives until `Place.go`."""


class LocalPlace:
    """Processes below a root of the test's own."""

    lag_s = log_lag_s = drain_s = 0.0
    cfg_without_result: ClassVar[dict[str, Any]] = {}

    def __init__(self, tmp: Path) -> None:
        self.root = tmp / "root"
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        self.connection = {"conn_type": "launch_local", "extra": {"root": str(self.root), "grace_s": 1}}
        self.outages = {"root is missing": self._missing, "root is unreadable": lambda: unreadable(self.root)}
        self._tmp, self._record, self._go = tmp, tmp / f"ran-{self.mark}", tmp / f"go-{self.mark}"

    def another(self) -> LocalPlace:
        return LocalPlace(self._tmp)

    def role(self, script: str, **fields: Any) -> Role:
        text = f"echo $LAUNCH_REPLICA_ID >> {self._record}; GO={self._go}; {script}"
        return Role("main", "", entrypoint="sh", args=["-c", text], **fields)

    def apps(self) -> list[str]:
        return sorted(path.name for path in self.root.glob(f"apps/*{self.mark}*"))

    def starts(self) -> list[str]:
        return sorted(self._record.read_text().split()) if self._record.exists() else []

    def alive(self) -> int:
        # The commands themselves, and not their supervisors and shims.
        commands = []
        for pid in processes_below(self.root):
            with contextlib.suppress(OSError):
                commands.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return sum(str(self._go).encode() in command for command in commands)

    def go(self) -> None:
        self._go.touch()

    def vanish(self, app_id: str) -> None:
        place = self.root / "apps" / app_id
        gone = self.root.parent / f"gone-{app_id}"
        # In one step: nothing is to be written any more about how the app ended.
        place.rename(gone)
        self._kill_all()
        shutil.rmtree(place, ignore_errors=True)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        raise NotImplementedError("a regular file does not stall")

    @contextlib.contextmanager
    def _missing(self) -> Iterator[None]:
        away = self.root.with_name("away")
        self.root.rename(away)
        try:
            yield
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
            away.rename(self.root)

    def _kill_all(self) -> None:
        while pids := processes_below(self.root):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.go()
        self._kill_all()


class DockerPlace:
    """Containers of one engine, which the tasks reach through a proxy."""

    lag_s = log_lag_s = drain_s = 0.0
    cfg_without_result: ClassVar[dict[str, Any]] = {}

    def __init__(self, engine: Any, proxy: Any) -> None:
        from tests.faults import error

        self._engine, self._proxy = engine, proxy
        self._api, self._image = engine.client.api, engine.image
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        extra = {"host": proxy.url, "pull": "never", "grace_s": 1, "timeout_s": 10}
        self.connection = {"conn_type": "launch_docker", "extra": extra}
        self.outages = {
            "connections are refused": proxy.refused,
            "429": lambda: proxy.answering(error(429, "too many requests", retry_after_s=1)),
            "500": lambda: proxy.answering(error(500, "internal error")),
            "credentials have expired": lambda: proxy.answering(error(403, "certificate has expired")),
            "credentials are unknown": lambda: proxy.answering(error(401, "unauthorized")),
        }

    def another(self) -> DockerPlace:
        return DockerPlace(self._engine, self._proxy)

    def role(self, script: str, **fields: Any) -> Role:
        text = f"echo launch-start $LAUNCH_REPLICA_ID >&2; GO=/tmp/go; {script}"
        return Role("main", self._image, entrypoint="sh", args=["-c", text], **fields)

    def apps(self) -> list[str]:
        return sorted({row["Labels"]["launch.io/app-id"] for row in self._rows()})

    def starts(self) -> list[str]:
        # Each attempt is a container of its own; the number of outputs is the number of starts.
        started = [row for row in self._rows("replica") if row["State"] != "created"]
        texts = [self._api.logs(row["Id"], stdout=False).decode() for row in started]
        return sorted(line.split()[1] for text in texts for line in text.splitlines() if "launch-start" in line)

    def alive(self) -> int:
        return sum(row["State"] == "running" for row in self._rows("replica"))

    def go(self) -> None:
        for row in self._rows("replica"):
            if row["State"] == "running":
                made = self._api.exec_create(row["Id"], ["touch", "/tmp/go"])
                self._api.exec_start(made["Id"])

    def vanish(self, app_id: str) -> None:
        # The record first, because the rest of an app without it does not count as an app.
        for row in sorted(self._rows(), key=lambda row: row["Labels"].get("launch.io/kind") == "replica"):
            if row["Labels"]["launch.io/app-id"] == app_id:
                self._api.remove_container(row["Id"], force=True, v=True)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        ids = "|".join(row["Id"] for row in self._rows("replica"))
        return self._proxy.stalled(rf"/({ids})/logs$")

    def _rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        label = ["launch.io/managed=true", *([f"launch.io/kind={kind}"] if kind else [])]
        rows = self._api.containers(all=True, filters={"label": label})
        return [row for row in rows if self.mark in row["Labels"].get("launch.io/app-id", "")]

    def close(self) -> None:
        for row in self._rows():
            self._api.remove_container(row["Id"], force=True, v=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An engine by its name, with the connection `CONN` to it."""
    made: Any
    if request.param == "local":
        made = LocalPlace(tmp_path)
    elif request.param == "kubernetes":
        from tests.airflow.kubernetes_place import KubernetesPlace

        made = KubernetesPlace(
            *(request.getfixturevalue(f"kubernetes_{it}") for it in ("engine", "namespace", "proxy"))
        )
    elif request.param == "slurm":
        from tests.airflow.slurm_place import SlurmPlace

        made = SlurmPlace(*(request.getfixturevalue(f"slurm_{it}") for it in ("cluster", "commands", "root", "pipe")))
    elif request.param == "aws_batch":
        from tests.airflow.batch_place import BatchPlace

        made = BatchPlace(*(request.getfixturevalue(it) for it in ("batch_server", "docker_engine", "batch_proxy")))
    else:
        made = DockerPlace(request.getfixturevalue("docker_engine"), request.getfixturevalue("docker_proxy"))
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(made.connection))
    with contextlib.closing(made):
        yield made


_PLACES = ("local", "docker", "kubernetes", "slurm", "aws_batch")
on_places = pytest.mark.parametrize(
    "place",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in _PLACES],
    indirect=True,
)
in_modes = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])


def image_of(place: Place) -> str:
    """Return an image with Python on the engine of the place."""
    for name in ("_docker", "_engine"):
        engine = getattr(place, name, None)
        if engine is not None:
            return str(engine.python_image())
    return ""


# ---- meanwhile ---------------------------------------------------------------------------------------------------


class Heard:
    """The lines of all tasks and triggers, as they are logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self._logged = support.logged()

    def __enter__(self) -> Self:
        # For triggers that are run without it.
        self._logged.__enter__()
        support.LISTENERS.append(self._hear)
        return self

    def __exit__(self, *_exc: object) -> None:
        support.LISTENERS.remove(self._hear)
        self._logged.__exit__(None, None, None)

    def _hear(self, line: str) -> None:
        self.lines.append((time.monotonic(), line))

    def when(self, part: str) -> float | None:
        """Return when a line with the part was first logged."""
        return next((moment for moment, line in list(self.lines) if part in line), None)

    def until(self, part: str, limit_s: float = 90.0) -> None:
        """Wait for a line with the part."""
        until(lambda: self.when(part) is not None, limit_s)


@contextlib.contextmanager
def meanwhile(act: Callable[[], object], place: Place) -> Iterator[None]:
    """Do something in another thread, and see that it was done; if it fails, the task's replicas are let go."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
            # Otherwise the task would wait for them until the test times out, and hide this error.
            place.go()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(60)
    if errors:
        raise errors[0]
    assert not thread.is_alive(), "what was to happen meanwhile hangs"


def deferred(task: LaunchAppOperator, api: FakeExecutionApi, try_number: int = 1) -> tuple[AppStatusTrigger, DeferTask]:
    """Run a task up to its deferral, and return its trigger and what it asks for."""
    ran = support.run_task(task, api, try_number=try_number)
    assert isinstance(ran.msg, DeferTask), (ran.error, ran.lines)
    return AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs)), ran.msg


def resumed(
    task: LaunchAppOperator, api: FakeExecutionApi, asked: DeferTask, event: Mapping[str, Any], try_number: int = 1
) -> support.Ran:
    """Resume a deferred task on a worker, with the event as read from the database."""
    kwargs = {**deserialize(asked.next_kwargs), "event": json.loads(json.dumps(event))}
    api.resume = {"next_method": asked.next_method, "next_kwargs": serialize(kwargs)}
    try:
        return support.run_task(task, api, try_number=try_number)
    finally:
        api.resume = {}


# ---- a worker that dies ------------------------------------------------------------------------------------------


class LastingApi(FakeExecutionApi):
    """Stores the writes of tasks in a file, which survives the process of a worker.

    Args:
        file: where.
        step: called before and after each request, with its name.
    """

    def __init__(self, file: Path, step: Callable[[str], object] = lambda _name: None) -> None:
        super().__init__(retries=3)
        self._file, self._step = file, step
        if file.exists():
            self.store = json.loads(file.read_text())

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name = " ".join([request.method, *request.url.path.strip("/").split("/")[:2], request.url.path[-6:]])
        self._step(f"before {name}")
        answer = super()._answer(request)
        if request.method != "GET":
            # In one step, as a database does.
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.store))
            temporary.rename(self._file)
        self._step(f"after {name}")
        return answer


class Steps:
    """The hook: names each step of a launch in a file, and kills the process at one of them.

    A step is a request to Airflow, before it is sent and after it was answered; and what schedulers do to their
    engine: a request over HTTP, before it is sent and once it was sent, or a change of files or a new process.
    """

    def __init__(self, file: Path, kill_at: int | None) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._kill_at = kill_at
        self._mutex = threading.Lock()
        self._count = 0
        self._is_over = False

    def __call__(self, name: str) -> None:
        with self._mutex:
            if self._is_over:
                return
            self._count += 1
            os.write(self._fd, f"{name}\n".encode())
            if self._count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            # The rest is not part of the launch.
            self._is_over = name.startswith("after POST xcoms") and name.endswith("handle")

    def watch_engines(self, root: str) -> None:
        """See also what schedulers do."""
        import http.client

        def audit(event: str, args: tuple[Any, ...]) -> None:
            if event == "http.client.send":
                self(f"before {bytes(args[1]).split(b' HTTP')[0][:60]!r}")
            elif event in {"os.mkdir", "os.rename", "subprocess.Popen"} and root in repr(args):
                self(event)
            elif event == "open" and root in str(args[0]) and args[2] & (os.O_WRONLY | os.O_RDWR):
                self(f"open {Path(args[0]).name[:12]}")

        plain = http.client.HTTPConnection.getresponse

        def getresponse(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
            self("sent")
            answer = plain(connection)
            self("answered")
            return answer

        sys.addaudithook(audit)
        http.client.HTTPConnection.getresponse = getresponse  # type: ignore[method-assign]


class WorkerHost:
    """Starts workers, each a process of its own that may be killed."""

    def __init__(self, checkout: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", "tests.airflow.guarantees"]
        self._host = subprocess.Popen(
            command, cwd=checkout, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, order: dict[str, Any]) -> int:
        """Run the first try of a task, and return how its process ended: 0, or minus the signal."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.write(json.dumps(order) + "\n")
        self._host.stdin.flush()
        return int(self._host.stdout.readline())

    def close(self) -> None:
        with self._host:
            assert self._host.stdin is not None
            self._host.stdin.close()


def _serve() -> None:
    # Imports of a running worker.
    import airflow_provider_launch.operators._run
    import airflow_provider_launch.triggers.launch  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        for room in ("hooks.{}", "schedulers.{}.scheduler"):
            importlib.import_module(f"airflow_provider_launch.{room.format(order['backend'])}")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _work(order)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer to who asked


def _work(order: dict[str, Any]) -> None:
    # The host's answers go there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ.update(order["env"])
    steps = Steps(Path(order["steps"]), order["kill_at"])
    steps.watch_engines(order["root"])
    if line := order.get("kill_at_line"):
        support.LISTENERS.append(lambda text: os.kill(os.getpid(), signal.SIGKILL) if line in text else None)
    with a_dag():
        from airflow_provider_launch.specs.app_dict import app_from_dict

        task = LaunchAppOperator(app=app_from_dict(order["app"]), launch_conn_id=CONN, **order["arguments"])
    support.run_task(task, LastingApi(Path(order["store"]), steps))


if __name__ == "__main__":
    _serve()
