"""The Docker engine of the tests: a running one, else our own if required.

Ours has its data below `/var/tmp/launch-docker` and its socket below `/run/launch-docker`. Sessions share it: the
last one stops it and removes its data, unless a person started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.engines.docker.daemon import Daemon, EngineError, answers
from tests.engines.docker.packages import install

DEFAULT_HOST = "unix:///var/run/docker.sock"
OURS = Daemon(Path("/var/tmp/launch-docker"), Path("/run/launch-docker"))
_KEEP = "started-by-a-person"


def find() -> tuple[str | None, str]:
    """Return the host of a running engine, or None and the reason."""
    asked = os.environ.get("DOCKER_HOST")
    reasons = []
    for host in dict.fromkeys(filter(None, [asked, DEFAULT_HOST, OURS.host])):
        if (reason := answers(host)) is None:
            return host, ""
        if host != OURS.host:
            reasons.append(reason)
    return None, "no Docker engine answers: " + "; ".join(reasons)


class Use:
    """A use of an engine; ours stays up while it has users."""

    def __init__(self) -> None:
        self._users: IO[str] | None = None

    def begin(self, *, start: bool, keep: bool = False) -> str:
        """Return the host of an engine; `start` one if none answers. `keep` keeps it up without users.

        With `start` the programs that the images are made from are installed, too.
        """
        if start:
            install(**{"busybox": "busybox-static", "/usr/bin/python3": "python3"})
        host, reason = find()
        if host not in {None, OURS.host}:
            return host
        if host is None and not start:
            raise EngineError(f"{reason}; as root, LAUNCH_REQUIRE_ENGINES=docker starts one")
        if os.name != "posix" or os.geteuid() != 0:
            raise EngineError(f"{reason}; only root can start one")
        with _alone():
            if find()[0] != OURS.host:
                _start_ours()
            self._users = (OURS.run / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if keep:
                (OURS.run / _KEEP).touch()
        return OURS.host

    def end(self) -> None:
        """Stop our engine if it has no other users."""
        if self._users is None:
            return
        with _alone(), self._users as users:
            self._users = None
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (OURS.run / _KEEP).exists():
                    stop()


def stop() -> bool:
    """Stop our engine and remove its files; return whether there was one."""
    ran = OURS.pid is not None
    OURS.stop()
    OURS.remove()
    return ran


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with OURS.run.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start_ours() -> None:
    if others := _daemons_of_this_host():
        # A second daemon would delete the bridge of the first one at its start.
        raise EngineError(f"dockerd runs here already, pid {others[0]}, but its host is unknown: set DOCKER_HOST")
    install(dockerd="docker.io")
    OURS.start()


def _daemons_of_this_host() -> list[int]:
    """Return the pids of all dockerd processes in our network namespace."""
    network = Path("/proc/self/ns/net").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text() == "dockerd\n" and (entry / "ns/net").readlink() == network:
                found.append(int(entry.name))
    return found
