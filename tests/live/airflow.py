"""A real Airflow of our own: API server, scheduler, DAG processor and triggerer, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.airflow.versions import HAS_STORE
from tests.live.dags import POOLS
from tests.support.apps import until

DAGS = Path(__file__).with_name("dags.py")
PIPELINES = Path(__file__).with_name("pipelines")
MAINTENANCE = Path(__file__).parents[2] / "example_dags" / "launch_orphans.py"
FAULTS = Path(__file__).with_name("faults")
# A busy host needs minutes to import Airflow five times.
_READY_S = 300.0
# Users and tasks have a server each. On SQLite a user's request may wait for a lock on the event loop of its server,
# while the task's request that has the lock waits for the loop.
_PARTS = {
    "api-core": ["api-server", "--apps", "core", "--port"],
    "api-execution": ["api-server", "--apps", "execution", "--port"],
    "scheduler": ["scheduler"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer"],
}
_CELERY_WORKER = [
    "celery",
    "worker",
    "--queues",
    "default",
    "--concurrency",
    "8",
    "--without-mingle",
    "--without-gossip",
]


class Airflow:
    """Some processes and what they start; `end` leaves nothing of them.

    Args:
        home: an empty folder for all that Airflow keeps.
        connections: id -> the connection as Airflow writes it in JSON.
        database: URL of an empty one. Without: SQLite in the home.
        settings: more variables of the environment.
        has_faults: the triggerer gets wrong answers within `faults`.
        broker: URL of a Redis. With it tasks run in a Celery worker, the part `worker`, else in the scheduler.
        more_dags: more files for the folder of DAGs.
        has_own_dags: the folder has the DAGs of this suite.
    """

    def __init__(
        self,
        home: Path,
        connections: dict[str, dict[str, Any]],
        *,
        database: str = "",
        settings: Mapping[str, str] | None = None,
        has_faults: bool = False,
        broker: str = "",
        more_dags: Sequence[Path] = (),
        has_own_dags: bool = True,
    ) -> None:
        self.home = home
        self._more_dags = more_dags
        self._has_own_dags = has_own_dags
        self._of_triggerers = (
            # One that repeats its own questions for minutes follows no app meanwhile.
            {"PYTHONPATH": str(FAULTS), "LAUNCH_TEST_FAULTS": str(home), "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "1"}
            if has_faults
            else {}
        )
        core, execution, worker_logs, trigger_logs = free_ports(4)
        self.url = f"http://127.0.0.1:{core}"
        self._commands = dict(_PARTS)
        for part, port in (("api-core", core), ("api-execution", execution)):
            self._commands[part] = [*_PARTS[part], str(port), "--host", "127.0.0.1", "--workers", "1"]
        if broker:
            self._commands["worker"] = _CELERY_WORKER
        self._sessions: dict[str, subprocess.Popen[bytes]] = {}
        self._alone = threading.Lock()
        self._api = httpx.Client(base_url=f"{self.url}/api/v2", timeout=60, limits=httpx.Limits(max_connections=64))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self._env = clean | {
            "AIRFLOW_HOME": str(home),
            # Tasks call the API by this address; without it they would try the default port.
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{execution}/execution/",
            "AIRFLOW__API__SECRET_KEY": "of-the-tests" * 3,
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-tests" * 6,
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # Tests look at apps when their tasks have ended.
            "AIRFLOW__LAUNCH__ON_FINISH": "keep",
            "AIRFLOW__CORE__PARALLELISM": "64",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database or f"sqlite:///{home / 'airflow.db'}?timeout=15",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
            # Some versions drop the DAGs of a file that is not read again.
            "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "7200",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
            # Else what takes Airflow minutes to notice takes the suite minutes to see.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "1",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "LAUNCH_HOME": str(home / "launch"),
            # Before Airflow 3.3 a retry waits so long for an app that a kill may be ending.
            **({} if HAS_STORE else {"AIRFLOW__LAUNCH__REPLACE_WAIT_S": "15"}),
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
            **(_celery(broker, database) if broker else {}),
            **(settings or {}),
        }

    # ---- start and stop --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all, and return when Airflow has read the DAGs and is ready."""
        (self.home / "dags").mkdir()
        if self._has_own_dags:
            shutil.copy(DAGS, self.home / "dags" / "live.py")
            shutil.copytree(PIPELINES, self.home / "dags" / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
            maintenance = MAINTENANCE.read_text().replace('"launch_local_default"', '"local"')
            (self.home / "dags" / MAINTENANCE.name).write_text(maintenance)
        for path in self._more_dags:
            shutil.copy(path, self.home / "dags" / path.name)
        self._command("db", "migrate")
        for part in self._commands:
            self.start(part)
        until(self._is_ready, _READY_S, 0.25)
        for name, slots in POOLS.items():
            answer = self.ask("POST", "/pools", {"name": name, "slots": slots})
            # A copy of a database has them.
            assert answer.is_success or answer.status_code == 409, answer.text

    def end(self) -> None:
        """Kill all, also after a failed start."""
        self._api.close()
        # No process needs a clean end, because its output is thrown away.
        for part in list(self._sessions):
            self.stop(part, signal.SIGKILL)

    def start(self, part: str, **env: str) -> None:
        """Start one of the parts, with more variables; its output goes to `<home>/<part>.log`."""
        with (self.home / f"{part}.log").open("ab") as output:
            self._sessions[part] = subprocess.Popen(
                [sys.executable, "-m", "airflow", *self._commands[part]],
                env=self._env | (self._of_triggerers if part.startswith("triggerer") else {}) | env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_another_triggerer(self) -> None:
        """Start a second triggerer, as `triggerer-2`."""
        (port,) = free_ports(1)
        self._commands["triggerer-2"] = _PARTS["triggerer"]
        self.start("triggerer-2", AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(port))

    def send_signal(self, part: str, how: signal.Signals) -> None:
        """Send the signal to all processes of one of the parts."""
        for pid in _of_session(self._sessions[part].pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def resize(self, pool: str, slots: int) -> None:
        """Set how many tasks of the pool run at a time."""
        body = {"pool": pool, "slots": slots, "include_deferred": False}
        self.ask("PATCH", f"/pools/{pool}", body).raise_for_status()

    @contextlib.contextmanager
    def faults(self, fault: str) -> Iterator[None]:
        """Let triggerers get wrong answers when they ask for states; `asked_in_vain` counts them."""
        (self.home / "fault").write_text(fault)
        try:
            yield
        finally:
            (self.home / "fault").unlink()

    def asked_in_vain(self) -> int:
        """Return how many questions got a wrong answer."""
        asked = self.home / "asked"
        return asked.stat().st_size if asked.exists() else 0

    @property
    def parts(self) -> list[str]:
        """The processes that were started and not stopped."""
        return [*self._sessions]

    def pids(self, part: str) -> list[int]:
        """Return the processes of the part, without those that left its session."""
        return _of_session(self._sessions[part].pid)

    def is_alive(self, part: str) -> bool:
        """Whether the process of the part runs."""
        return self._sessions[part].poll() is None

    def stop(self, part: str, how: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> None:
        """Send the signal to one of the parts, and wait until nothing of it is left.

        Without Celery a worker belongs to the scheduler; its apps have sessions of their own.
        """
        process = self._sessions.pop(part)
        if how != signal.SIGKILL:
            process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        deadline = time.monotonic() + timeout_s
        while left := _of_session(process.pid):
            assert time.monotonic() < deadline, f"{part} does not end: {left}"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Only the first process is a child of this one and can be waited for.
            process.poll()
            time.sleep(0.02)
        process.wait(timeout_s)

    def _command(self, *command: str) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", "airflow", *command],
            env=self._env,
            capture_output=True,
            check=False,
            timeout=_READY_S,
        )
        assert ran.returncode == 0, ran.stderr.decode()

    def _is_ready(self) -> bool:
        for part, process in self._sessions.items():
            assert process.poll() is None, f"{part} ended:\n{self.output(part)}"
        try:
            if "authorization" not in self._api.headers:
                token = httpx.get(f"{self.url}/auth/token", timeout=30).raise_for_status().json()["access_token"]
                self._api.headers["authorization"] = f"Bearer {token}"
            # Any answer is enough: a worker that starts before the server listens fails its task.
            httpx.get(self._env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"], timeout=30)
            health = self._api.get("/monitor/health").raise_for_status().json()
            dags = self._api.get("/dags").raise_for_status().json()
            errors = self._api.get("/importErrors").raise_for_status().json()["import_errors"]
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False
        assert not errors, errors
        parts = ("scheduler", "triggerer", "dag_processor")
        return dags["total_entries"] > 0 and all(health[part]["status"] == "healthy" for part in parts)

    def output(self, part: str) -> str:
        """Return the last lines that one of the parts wrote."""
        return (self.home / f"{part}.log").read_text(errors="replace")[-4000:]

    def ask(self, method: str, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        """Return the answer of the API to a user; one change at a time, for SQLite's sake."""
        with contextlib.nullcontext() if method == "GET" else self._alone:
            return self._api.request(method, path, json=body, **kwargs)

    # ---- workers ---------------------------------------------------------------------------------------------

    def worker_of(self, task_instance_id: str) -> tuple[int, int] | None:
        """Return the pids of its supervisor and task process; None while there are none."""
        wanted = f"airflow worker -- {task_instance_id}".encode()
        for pid in _of_session(self._sessions["scheduler"].pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted):
                    return int(_stat(pid)[1]), pid
        return None

    def lose_worker(self, task_instance_id: str) -> None:
        """Kill supervisor and task process, as the loss of their host would."""
        found = self.worker_of(task_instance_id)
        assert found is not None, f"nobody works on {task_instance_id}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    # ---- log files -------------------------------------------------------------------------------------------

    def log_files(self, dag_id: str, run_id: str) -> list[Path]:
        """Return the files with the task logs of a run: of workers, and of triggers."""
        return sorted(self.home.glob(f"logs/dag_id={dag_id}/run_id={run_id}/**/*.log"))


def _celery(broker: str, database: str) -> dict[str, str]:
    """Return the settings with which tasks run in a Celery worker."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": broker,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        # It would start one process for each core of the host.
        "AIRFLOW__CELERY__SYNC_PARALLELISM": "1",
    }


def _of_session(session: int) -> list[int]:
    """Return the pids of all processes of the session, without dead ones."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = _stat(int(entry.name))
                if fields[0] not in "ZX" and int(fields[3]) == session:
                    found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """Return state, parent, group, session and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback which nothing listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
