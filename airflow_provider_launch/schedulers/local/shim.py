"""The shim of one attempt: starts the command once, stores its exit code, and ends all its descendants.

The shim is forked by the supervisor and outlives it. It locks `shim.lock` until it ends, which shows others that it is
alive. It writes `started` before it forks, so no attempt runs twice, and `exit` after the whole process tree has ended.

Runs in the bare interpreter of the supervisor, so it imports only modules that need the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text, signal_name
from airflow_provider_launch.schedulers.local import layout, log_times, processes, safe_files

NOT_FOUND, NOT_EXECUTABLE = 127, 126
STOP = signal.SIGTERM
_STEP_S = 0.05
_ROOM_PAUSE_S = 0.5
"""Pause between two tries to write on a full disk."""
_RESET = (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)


def run(directory: str, command: dict[str, Any], grace_s: float, *, parent: int | None = None) -> None:
    """Run one attempt to its end and exit; called in the forked child with `STOP` blocked.

    `command` has `argv`, `env`, `cwd`, and `logs`: a directory that also gets the logs, or None. `grace_s` is the time
    between TERM and KILL. `parent` is the supervisor if the attempt must be stopped when that process is killed.
    """
    code = 1
    try:
        os.setsid()
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        if parent is not None:
            processes.prctl(processes.PR_SET_PDEATHSIG, STOP)
            if os.getppid() != parent:
                return  # killed before; nothing was started
        _Shim(directory, command, grace_s).run()
        code = 0
    except BaseException:  # noqa: BLE001 - the fork must never continue as a second supervisor
        # The log may be on a full disk.
        with contextlib.suppress(OSError):
            import traceback  # here, because it is rarely needed and takes milliseconds

            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


class _Shim:
    def __init__(self, directory: str, command: dict[str, Any], grace_s: float) -> None:
        self.directory = directory
        self.command = command
        self.grace_s = grace_s
        self.stopped = False
        self.ended_by_itself = False
        self.pid = 0
        self.status: int | None = None

    def run(self) -> None:
        lock = processes.try_lock(f"{self.directory}/shim.lock")
        if lock is None or not self._claim():
            return
        wake = self._listen()
        started = time.time()
        me = os.getpid()
        layout.write_json(f"{self.directory}/pid", {"shim": me, "start": processes.start_time(me), "at": started})
        if not self.stopped:
            times = log_times.LogTimes(self.directory)
            self.pid = self._fork_command()
            self._wait(wake, times)
            times.write()
        self._keep_exit(self._exit(started), wake)

    def _claim(self) -> bool:
        """Create `started`; return False if the attempt was already started or discarded."""
        try:
            os.close(os.open(f"{self.directory}/started", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    def _listen(self) -> int:
        read, write = pipe()
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, log_times.REPORT):
            signal.signal(signum, lambda *_: None)
        signal.signal(STOP, self._on_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP})
        return read

    def _on_stop(self, *_: object) -> None:
        self.stopped = True

    def _fork_command(self) -> int:
        shim = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = NOT_EXECUTABLE
        try:
            signal.set_wakeup_fd(-1)
            for signum in _RESET:
                signal.signal(signum, signal.SIG_DFL)
            os.setpgid(0, 0)
            processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(1)
            self._redirect()
            os.chdir(self.command["cwd"])
            os.execvpe(self.command["argv"][0], self.command["argv"], self.command["env"])  # noqa: S606 - its purpose
        except FileNotFoundError as error:
            code = NOT_FOUND
            _report(f"launch: cannot run {self.command['argv'][0]!r} in {self.command['cwd']!r}: {error.strerror}")
        except BaseException as error:  # noqa: BLE001 - the fork must never continue as a second shim
            _report(f"launch: cannot run {self.command['argv'][0]!r} in {self.command['cwd']!r}: {error}")
        finally:
            os._exit(code)

    def _redirect(self) -> None:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)
        for name, target in (("stdout", 1), ("stderr", 2)):
            # An earlier attempt may have put a FIFO there, for whose reader this one would wait.
            fd = safe_files.regular_fd(f"{self.directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.set_blocking(fd, True)
            os.dup2(fd, target)
            os.close(fd)
        if self.command.get("logs"):
            self._publish_logs(self.command["logs"])

    def _publish_logs(self, directory: str) -> None:
        """Link the logs into the directory that the user has chosen; a hard link outlives the app's directory."""
        try:
            os.makedirs(directory, exist_ok=True)
            for name in ("stdout", "stderr"):
                kept, path = os.path.abspath(f"{self.directory}/{name}"), f"{directory}/{name}.log"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                try:
                    os.link(kept, path)
                except OSError:  # another file system
                    os.symlink(kept, path)
        except OSError as error:
            _report(f"launch: logs are not in {directory!r}: {error.strerror}")

    def _wait(self, wake: int, times: log_times.LogTimes) -> None:
        """Wait for the command and its descendants; on request stop them with TERM, then KILL."""
        deadline: float | None = None
        while True:
            # As a subreaper the shim inherits every orphan below it, so without children there are no descendants.
            children_left = self._reap()
            if self.status is not None and not self.stopped:
                self.ended_by_itself = True
            if self.status is not None and not children_left:
                return
            if self.ended_by_itself:
                # Background processes of the command end with it, as in a container.
                deadline = 0.0
            if self.stopped and deadline is None:
                deadline = time.monotonic() + self.grace_s
                processes.kill_all(os.getpid(), signal.SIGTERM, group=self._group())
            if deadline is not None and time.monotonic() >= deadline:
                processes.kill_all(os.getpid(), signal.SIGKILL, group=self._group())
            times.check()
            # Without a deadline the shim sleeps until a signal wakes it, so an idle replica costs nothing.
            pauses = [pause for pause in (times.pause_s(), None if deadline is None else _STEP_S) if pause is not None]
            ready, _, _ = select.select([wake], [], [], min(pauses, default=None))
            if ready and log_times.REPORT in os.read(wake, 4096):
                times.on_report()

    def _group(self) -> int | None:
        # After the leader was reaped, its number may belong to another group.
        return self.pid if self.status is None else None

    def _reap(self) -> bool:
        """Reap ended children, also adopted ones; return whether some are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def _exit(self, started: float) -> dict[str, Any]:
        document: dict[str, Any] = {
            "start": started,
            "end": time.time(),
            "stopped": self.stopped and not self.ended_by_itself,
        }
        if self.status is None:
            document["code"] = None
        elif os.WIFSIGNALED(self.status):
            document["signal"] = os.WTERMSIG(self.status)
            document["code"] = 128 + os.WTERMSIG(self.status)
        else:
            document["code"] = os.WEXITSTATUS(self.status)
        return document

    def _keep_exit(self, document: dict[str, Any], wake: int) -> None:
        """Write `exit`; on a full disk retry until there is space, because without it the command would run again."""
        while True:
            try:
                layout.write_json(f"{self.directory}/exit", document, durable=True)
            except OSError:
                # Give up if the replica was stopped or its files were removed: the exit code is not needed.
                if self.stopped or layout.is_gone(f"{self.directory}/started"):
                    raise
            else:
                return
            ready, _, _ = select.select([wake], [], [], _ROOM_PAUSE_S)
            if ready:
                os.read(wake, 4096)


def shim_of(directory: str) -> dict[str, Any] | None:
    """Return `shim`, `start` and `at`, which the shim of an attempt has written; None if there are none, or others."""
    found = layout.read_json(f"{directory}/pid", layout.LARGEST_EXIT)
    kinds = {"shim": int, "start": str, "at": float}
    is_sound = isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in kinds.items())
    return found if is_sound else None


def pipe() -> tuple[int, int]:
    """Return a pipe for `signal.set_wakeup_fd`."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    return read, write


def _report(text: str) -> None:
    os.write(2, (text + "\n").encode("utf-8", "replace"))


def ending_of(document: Mapping[str, Any]) -> str:
    """Return how an attempt ended, as its shim wrote it to the file `exit`."""
    if document.get("lost"):
        return "its processes were killed from outside (SIGKILL)"
    if document.get("outside"):
        return "ended from outside (SIGTERM)"
    if document.get("stopped"):
        return "stopped"
    name = signal_name(document["signal"]) if document.get("signal") else None
    return ending_text(ReplicaEnd(document["code"], signal=name))
