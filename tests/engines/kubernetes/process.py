"""A program of the cluster that runs in the background: started, asked, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.engines.docker.daemon import EngineError

# What this process has started by pid, whichever object asks for its end; a parent has to take note of it.
_children: dict[int, subprocess.Popen[bytes]] = {}


def until(condition: Callable[[], object], timeout_s: float, failure: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"{failure}, after {timeout_s:.0f} s")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Return whether the process lives; one that only waits for its parent to ask does not."""
    return _born(pid) is not None


def _born(pid: int) -> str | None:
    """Return when the living process was started: with its pid it is one of a kind, also while it becomes a program."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return None
    state, *words = rest.split()
    return None if state in "ZX" else words[18]


class Program:
    """A program whose pid file tells every process where it runs."""

    def __init__(self, run: Path, logs: Path, command: Sequence[str | Path], name: str | None = None) -> None:
        self.command = [str(word) for word in command]
        self.name = name or Path(self.command[0]).name
        self.log = logs / f"{self.name}.log"
        self._pid_file = run / f"{self.name}.pid"

    @property
    def pid(self) -> int | None:
        """The pid while the program lives."""
        try:
            pid, born = self._pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        # A pid is given anew after a while; then it is not this program's any more.
        return int(pid) if _born(int(pid)) == born else None

    def start(self) -> None:
        """Start the program if it does not run; whether it answers is another question."""
        if self.pid is not None:
            return
        # It and its iptables live where not everybody's path leads.
        env = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
        # A proxy of the machine is not for an address of the machine.
        env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
        # A session of its own: Ctrl-C is for pytest, which then ends the program.
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )
        _children[process.pid] = process
        self._pid_file.write_text(f"{process.pid} {_born(process.pid)}")

    def wait_for(self, ready: Callable[[], str | None], timeout_s: float = 60.0) -> None:
        """Wait until `ready` returns None, not why it is not yet so; an early end is told with its last words."""
        deadline = time.monotonic() + timeout_s
        while reason := ready():
            if self.pid is None:
                raise EngineError(f"{self.name} has ended; its last words: {self.last_words()}")
            if time.monotonic() > deadline:
                raise EngineError(f"{self.name} is not ready after {timeout_s:.0f} s ({reason}): {self.last_words()}")
            time.sleep(0.05)

    def last_words(self, lines: int = 5) -> str:
        """Return the end of the program's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def term(self, timeout_s: float = 30.0) -> None:
        """Let the program stop as an operator would, and wait for its end."""
        self._signal(signal.SIGTERM, timeout_s)

    def kill(self, timeout_s: float = 10.0) -> None:
        """End the program as a crash would, and wait for its end."""
        self._signal(signal.SIGKILL, timeout_s)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the program, politely if it listens; nothing happens where it does not run."""
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
