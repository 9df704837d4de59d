"""A background program of the cluster: started, polled and stopped by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.engines.docker.daemon import EngineError

# Children of this process by pid, shared by all objects, because the parent must reap them.
_children: dict[int, subprocess.Popen[bytes]] = {}


def until(condition: Callable[[], object], timeout_s: float, failure: str) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"{failure}, after {timeout_s:.0f} s")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Return whether the process runs; zombies do not."""
    return _born(pid) is not None


def _born(pid: int) -> str | None:
    """Return the start time of a running process, which identifies it together with its pid, also during exec."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return None
    state, *words = rest.split()
    return None if state in "ZX" else words[18]


class Program:
    """A program with a pid file, so that every process can find it."""

    def __init__(self, run: Path, logs: Path, command: Sequence[str | Path], name: str | None = None) -> None:
        self.command = [str(word) for word in command]
        self.name = name or Path(self.command[0]).name
        self.log = logs / f"{self.name}.log"
        self._pid_file = run / f"{self.name}.pid"

    @property
    def pid(self) -> int | None:
        """The pid of the running program."""
        try:
            pid, born = self._pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        # Pids are reused after a while; then it belongs to another program.
        return int(pid) if _born(int(pid)) == born else None

    def start(self) -> None:
        """Start the program if it does not run, without waiting for an answer."""
        if self.pid is not None:
            return
        # The program and its iptables are not on every user's path.
        env = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
        # Local addresses must not use a proxy of the machine.
        env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
        # A separate session, because Ctrl-C is for pytest, which then stops the program.
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )
        _children[process.pid] = process
        self._pid_file.write_text(f"{process.pid} {_born(process.pid)}")

    def wait_for(self, ready: Callable[[], str | None], timeout_s: float = 60.0) -> None:
        """Wait until `ready` returns None instead of a reason; an early end is reported with the end of the log."""
        deadline = time.monotonic() + timeout_s
        while reason := ready():
            if self.pid is None:
                raise EngineError(f"{self.name} has ended; end of its log: {self.last_words()}")
            if time.monotonic() > deadline:
                raise EngineError(f"{self.name} is not ready after {timeout_s:.0f} s ({reason}): {self.last_words()}")
            time.sleep(0.05)

    def last_words(self, lines: int = 5) -> str:
        """Return the end of the program's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def term(self, timeout_s: float = 30.0) -> None:
        """Stop the program like an administrator, and wait for its end."""
        self._signal(signal.SIGTERM, timeout_s)

    def kill(self, timeout_s: float = 10.0) -> None:
        """Kill the program like a crash, and wait for its end."""
        self._signal(signal.SIGKILL, timeout_s)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the program, with TERM if it reacts; do nothing if it does not run."""
        try:
            self.term(timeout_s)
        except EngineError:
            self.kill()

    def _signal(self, number: signal.Signals, timeout_s: float) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, number)
            until(lambda: self.pid is None, timeout_s, f"{self.name} {pid} does not end after {number.name}")
            if child := _children.pop(pid, None):
                child.wait(timeout_s)
        self._pid_file.unlink(missing_ok=True)
