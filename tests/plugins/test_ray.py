"""The contract of the plug-in for Ray, on a cluster of this host; `make ray` installs Ray and runs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, Scheduler
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.faults.pipe import TcpPipe
from tests.support import app_folders, apps

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs Ray; make ray installs it and runs this"),
    pytest.mark.timeout(3600),
]
_MARK = "LAUNCH_TEST_RAY"
_BUSY = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "300000",
    "RAY_py_gcs_connect_timeout_s": "600",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_worker_niceness": "0",  # 15 by default, so any other work of the host stops its replicas
    "RAY_enable_metrics_collection": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_task_events_report_interval_ms": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "600000",
}
"""For a busy host, on which Ray's own time limits are too short: longer ones, and no work for its statistics."""


class RayCluster:
    """A head node of its own, with ports of its own. All processes that it has started end with it."""

    def __init__(self) -> None:
        # Short, because Ray makes sockets in it.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.port = _free_port()
        self._mark = f"{_MARK}={self.folder}"
        self._gcs = _free_port()
        head = ["--head", f"--port={self._gcs}", f"--dashboard-port={self.port}", f"--temp-dir={self.folder}"]
        try:
            self._start(*head, "--num-cpus=200", "--num-gpus=4")
        except BaseException:
            self.end()
            raise

    def add_node(self) -> None:
        self._start(f"--address=127.0.0.1:{self._gcs}", "--num-cpus=200")

    def _start(self, *options: str) -> None:
        # Given ports, because Ray waits only for some seconds until its processes have chosen theirs.
        names = [
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "metrics-export-port",
            "runtime-env-agent-port",
        ]
        ports = [f"--{name}={_free_port()}" for name in names]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *ports, *options]
        # Its jobs find the same Python, and its processes the cluster that they belong to.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "PYTHONPATH"}}
        done = subprocess.run(
            command,
            env={**env, **_BUSY, "PATH": path, _MARK: str(self.folder)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self, mark: str = "") -> list[int]:
        """Return the processes that have inherited this variable: by default all of the cluster."""
        wanted = (mark or self._mark).encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class RayEngine(Engine):
    def __init__(self, cluster: RayCluster, pipe: TcpPipe) -> None:
        self.cluster, self.pipe = cluster, pipe

    def _job(self, app_id: str) -> Any:
        from ray.job_submission import JobSubmissionClient

        with suppress(RuntimeError):
            return JobSubmissionClient(self.cluster.address).get_job_info(app_id)
        return None

    def alive(self, app_id: str) -> int:
        return len(self.cluster.processes(f"LAUNCH_APP_ID={app_id}"))

    def starts(self, app_id: str) -> int:
        if (job := self._job(app_id)) is None:
            return 0
        run = job.runtime_env["env_vars"]["LAUNCH_RUN"]
        return len([*(self.cluster.folder / "session_latest" / "logs").glob(f"launch-{run}-*.stdout.0")])

    def left(self, app_id: str) -> int:
        return self.alive(app_id) + (self._job(app_id) is not None)

    def cut_off(self) -> AbstractContextManager[None]:
        return self.pipe.refused()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.end()


class TestRay(SchedulerContract):
    factory = "launch_ray:create_scheduler"
    capabilities = frozenset(
        {Capability.ADOPT, Capability.STREAMS, Capability.RANK0, Capability.GPU, Capability.RESULT}
    )
    timeout_s = 600.0
    lag_s = 5.0
    many = 20
    endless = 1_000_000

    @pytest.fixture
    def params(self, engine: RayEngine) -> dict[str, Any]:
        return {"address": f"http://127.0.0.1:{engine.pipe.port}"}

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any]:
        return {"address": f"http://127.0.0.1:{_free_port()}"}

    @pytest.fixture
    def program_with_a_space(self, tmp_path: Path) -> str:
        return app_folders.program_that_prints_its_args(tmp_path)

    @pytest.fixture
    def never_starts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"resource": Resource(cpu=1000, gpu=0, memMB=128)}, {}

    @pytest.fixture
    def engine(self, install: Callable[[str], Path], ray_cluster: RayCluster) -> Iterator[RayEngine]:
        install("launch_ray")
        with TcpPipe(ray_cluster.port) as pipe:
            yield RayEngine(ray_cluster, pipe)


@pytest.fixture
def scheduler(install: Callable[[str], Path], ray_cluster: RayCluster) -> Iterator[Scheduler[Any]]:
    install("launch_ray")
    import launch_ray

    scheduler = launch_ray.create_scheduler("test", address=ray_cluster.address)
    yield scheduler
    for row in scheduler.list():
        scheduler.delete(row.app_id)


def launch(scheduler: Scheduler[Any], script: str, *, gpu: int = 0, **cfg: object) -> str:
    resource = Resource(cpu=1, gpu=gpu, memMB=64)
    role = Role("main", "", entrypoint="sh", args=["-c", script], num_replicas=2, resource=resource)
    return scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), cfg))


def until_state(scheduler: Scheduler[Any], app_id: str, state: AppState) -> DescribeAppResponse:
    return apps.until_state(scheduler, app_id, state, TestRay.timeout_s)


def test_each_replica_has_gpus_of_its_own(scheduler: Scheduler[Any]) -> None:
    app_id = launch(scheduler, "echo $CUDA_VISIBLE_DEVICES", gpu=2)
    until_state(scheduler, app_id, AppState.SUCCEEDED)

    given = [line.strip().split(",") for k in (0, 1) for line in scheduler.log_iter(app_id, "main", k)]
    assert sorted(given[0] + given[1]) == ["0", "1", "2", "3"]


def test_nothing_runs_after_the_driver_was_killed(scheduler: Scheduler[Any], ray_cluster: RayCluster) -> None:
    app_id = launch(scheduler, "trap '' TERM; sleep 300")
    until_state(scheduler, app_id, AppState.RUNNING)
    programs = f"LAUNCH_APP_ID={app_id}"
    deadline = time.monotonic() + TestRay.timeout_s
    while len(ray_cluster.processes(programs)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (driver,) = (pid for pid in ray_cluster.processes() if _is_driver_of(app_id, pid))
    os.kill(driver, signal.SIGKILL)

    found = until_state(scheduler, app_id, AppState.FAILED)
    assert "Ray ended the job" in found.msg
    while ray_cluster.processes(programs):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _is_driver_of(app_id: str, pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    is_driver = command.startswith(b"python\0-c\0") and b"Runs on the cluster" in command
    return is_driver and app_id.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def test_replicas_wait_for_the_nodes_that_their_strategy_needs(
    scheduler: Scheduler[Any], ray_cluster: RayCluster
) -> None:
    app_id = launch(scheduler, "echo here", strategy="STRICT_SPREAD")
    time.sleep(20)
    waiting = scheduler.describe(app_id)
    assert waiting
    assert waiting.state is AppState.PENDING
    assert waiting.msg == "waits for the resources of all replicas"
    ray_cluster.add_node()

    until_state(scheduler, app_id, AppState.SUCCEEDED)
    # Each log is read from the node of its replica.
    assert [[*scheduler.log_iter(app_id, "main", k)] for k in (0, 1)] == [["here\n"], ["here\n"]]


def test_no_process_of_a_cluster_outlives_it(install: Callable[[str], Path]) -> None:
    """A replica may outlive Ray if only Ray is ended."""
    cluster = RayCluster()
    assert cluster.processes()
    cluster.end()

    assert not cluster.processes()
    assert not cluster.folder.exists()
