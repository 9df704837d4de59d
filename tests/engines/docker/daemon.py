"""Our dockerd: started, stopped by its pid, and removed with its files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class EngineError(Exception):
    """The engine is not available; the message has the reason and the fix."""


def answers(host: str, timeout_s: float = 5.0) -> str | None:
    """Return None if a Docker engine answers at the host, else the reason."""
    import docker

    try:
        if host.startswith("unix://"):
            # docker-py would report the same in three sentences, and leave its socket open.
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(timeout_s)
                sock.connect(host.removeprefix("unix://"))
        with contextlib.closing(
            docker.from_env(timeout=timeout_s, environment={**os.environ, "DOCKER_HOST": host})
        ) as client:
            client.ping()
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    except docker.errors.DockerException as error:
        return f"{host}: {error}"
    return None


def unmount_below(*dirs: Path) -> None:
    """Unmount the mounts of a killed daemon, innermost first."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if any(Path(mount).is_relative_to(one) for one in dirs):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


class Daemon:
    """A dockerd with its data below `data`, and its socket, pid file and exec root below `run`.

    `run` has to be short: the path of a Unix socket may have 107 bytes, and containerd's lies below it.
    """

    def __init__(self, data: Path, run: Path, flags: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
        self.data = data
        self.run = run
        self.flags = list(flags)
        self.prefix = list(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.run}/docker.sock"

    @property
    def log(self) -> Path:
        return self.data / "dockerd.log"

    @property
    def pid(self) -> int | None:
        """The pid of the running daemon."""
        return _living(self.run / "docker.pid", "dockerd")

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the daemon and wait until it answers."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(parents=True, exist_ok=True)
        self._forget_the_dead()
        # Not the configuration of the machine, which may also set the hosts.
        config = self.run / "daemon.json"
        config.write_text("{}")
        command = [
            *self.prefix,
            "dockerd",
            f"--config-file={config}",
            f"--host={self.host}",
            f"--data-root={self.data / 'root'}",
            f"--exec-root={self.run / 'exec'}",
            f"--pidfile={self.run / 'docker.pid'}",
            *self.flags,
        ]
        # dockerd and its iptables are not on every user's path.
        env = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
        # A separate session, because Ctrl-C is for pytest, which then stops the daemon.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )
        try:
            self._wait_until_it_answers(self._process, timeout_s)
        except BaseException:
            self._give_up(self._process)
            raise

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while reason := answers(self.host):
            if (code := process.poll()) is not None:
                raise EngineError(f"dockerd ended with {code}; end of its log: {self.last_words()}")
            if time.monotonic() > deadline:
                raise EngineError(f"dockerd does not answer after {timeout_s:.0f} s ({reason}): {self.last_words()}")
            time.sleep(0.1)

    def _give_up(self, process: subprocess.Popen[bytes], timeout_s: float = 20.0) -> None:
        """Stop a daemon that was just started and may not have a pid file yet."""
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    @property
    def _pid_files(self) -> list[tuple[Path, str]]:
        return [(self.run / "docker.pid", "dockerd"), (self.run / "exec/containerd/containerd.pid", "containerd")]

    def _forget_the_dead(self) -> None:
        """Remove pid files of a killed daemon, because dockerd does not start if another process has that pid."""
        for pid_file, program in self._pid_files:
            if _living(pid_file, program) is None:
                pid_file.unlink(missing_ok=True)

    def last_words(self, lines: int = 5) -> str:
        """Return the end of the daemon's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def term(self, timeout_s: float = 60.0) -> None:
        """Stop the daemon like an administrator, and wait for its end."""
        self._signal(signal.SIGTERM, timeout_s)

    def kill(self, timeout_s: float = 20.0) -> None:
        """Kill the daemon like a crash, and wait for its end. Its containers continue."""
        self._signal(signal.SIGKILL, timeout_s)
        # Its containerd ends with it. Until that is reaped, the next daemon would wait for it.
        pid_file, program = self._pid_files[-1]
        _wait(lambda: _living(pid_file, program) is None, timeout_s, "containerd outlives its dockerd")
        pid_file.unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the daemon, with TERM if it reacts; do nothing if none runs."""
        try:
            self.term()
        except EngineError:
            self.kill()

    def remove(self) -> None:
        """Remove the files of the ended daemon."""
        unmount_below(self.data, self.run)
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)

    def _signal(self, number: signal.Signals, timeout_s: float) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, number)
            _wait(lambda: self.pid is None, timeout_s, f"dockerd {pid} does not end after {number.name}")
        if self._process:
            self._process.wait(timeout_s)
            self._process = None


def _living(pid_file: Path, program: str) -> int | None:
    """Return the pid in the file if it is a running process of the program."""
    try:
        pid = int(pid_file.read_text())
        comm, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(") ")
    except (OSError, ValueError):
        return None
    return pid if comm.endswith(f"({program}") and rest[0] not in "ZX" else None


def _wait(condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"{failure}, after {timeout_s:.0f} s")
        time.sleep(0.02)
