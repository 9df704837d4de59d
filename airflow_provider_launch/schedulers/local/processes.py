"""Finds, signals and locks processes, with `/proc` if there is one.

Imports only the standard library, because the supervisor uses it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import time

MARKER = "LAUNCH_LOCAL_ATTEMPT"
"""Variable of each process of an app: the directory of its attempt."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 100
_KILL_PAUSE_S = 0.02
_LOCK_TRIES, _LOCK_PAUSE_S = 5, 0.01


def prctl(option: int, value: int) -> bool:
    """Set an attribute of this process by prctl; False if the kernel has no prctl (macOS)."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def start_time(pid: int) -> str:
    """Return the start time, which distinguishes a process from a later one with the same pid; empty if unknown."""
    stat = _stat(pid)
    return stat[19] if stat else ""


def descendants(root: int) -> list[int]:
    """Return the living descendants of a process; without `/proc` an empty list."""
    parents: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat and stat[0] not in "ZX":
            parents.setdefault(int(stat[1]), []).append(pid)
        elif stat:
            # A zombie is dead, but its children may not have a new parent yet.
            parents.setdefault(int(stat[1]), []).append(-pid)
    found: list[int] = []
    queue = [root]
    while queue:
        for child in parents.get(abs(queue.pop()), []):
            queue.append(child)
            if child > 0:
                found.append(child)
    return found


def children(parent: int) -> list[int]:
    """Return the living children of a process; without `/proc` an empty list."""
    stats = ((pid, _stat(pid)) for pid in _pids())
    return [pid for pid, stat in stats if stat and int(stat[1]) == parent and stat[0] not in "ZX"]


def kill_all(root: int, signum: int, *, group: int | None = None) -> int:
    """Send a signal, once to each, to all descendants of `root` and to `group`; return the number of descendants."""
    found = descendants(root)
    # Read before the group gets the signal: a process that it ends has no group any more.
    members = {pid for pid in found if (stat := _stat(pid)) and int(stat[2]) == group}
    if group is not None:
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            members = set()
    for pid in found:
        if pid not in members:
            send(pid, signum)
    return len(found)


def send(pid: int, signum: int) -> None:
    """Send a signal; do nothing if the process no longer exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_if_same(pid: int, start: str, signum: int) -> bool:
    """Send a signal if `start_time` of the process is still `start`; return False if another process has its pid."""
    if pid <= 1:
        return False  # a program has written it, and `kill` would signal a whole group, or all processes of the user
    try:
        fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError as error:
        if error.errno == errno.ESRCH:
            return False
        fd = -1  # a kernel or a sandbox without it
    try:
        # Checked after the open, because a pidfd never refers to a later process with the same number.
        if start_time(pid) != start:
            return False
        if fd < 0:
            send(pid, signum)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signum)
        return True
    finally:
        if fd >= 0:
            os.close(fd)


def marked(marker: bytes) -> list[int]:
    """Return the processes with `NAME=value` in their environment: the last resort to find stray processes.

    A marker that ends with a slash also means the values that continue after it.
    """
    found = []
    for pid in _pids():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        if marker in variables or (marker.endswith(b"/") and any(each.startswith(marker) for each in variables)):
            found.append(pid)
    return found


def kill_marked(marker: bytes) -> None:
    """Kill every process with the marker, also those that start meanwhile."""
    for _ in range(_KILL_ROUNDS):
        found = [pid for pid in marked(marker) if (_stat(pid) or ["Z"])[0] not in "ZX"]
        if not found:
            return
        for pid in found:
            send(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)


def try_lock(path: str) -> int | None:
    """Lock the file and return its descriptor, or None if another process has locked or leased it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except BlockingIOError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def take_lock(path: str) -> int | None:
    """Lock the file like `try_lock`, with retries, because observers lock it for a moment to check it."""
    for _ in range(_LOCK_TRIES):
        fd = try_lock(path)
        if fd is not None:
            return fd
        time.sleep(_LOCK_PAUSE_S)
    return None


def is_locked(path: str) -> bool:
    """Return whether a live process has locked or leased the file; False if the file does not exist."""
    try:
        # Non-blocking, because a program may have put a leased file there (fcntl F_SETLEASE).
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    try:
        # Shared, so that two observers do not see each other's check.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """Return the fields of `/proc/<pid>/stat` from the third (state) on; the name before may contain blanks."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
