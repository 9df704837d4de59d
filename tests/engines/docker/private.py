"""A Docker engine for one test, which may be stopped, killed and restarted.

It has its own network namespace, because a second dockerd deletes the bridge of the first one at its start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines.docker.daemon import Daemon, EngineError, unmount_below
from tests.engines.docker.packages import install

if TYPE_CHECKING:
    from docker import DockerClient
    from typing_extensions import Self


class PrivateDocker:
    """A daemon for a `with` block: started at its start, removed at its end.

    `live_restore`: containers outlive the daemon, also when it ends politely.
    """

    def __init__(self, *, live_restore: bool = False) -> None:
        token = secrets.token_hex(4)
        run = Path(f"/run/launch-{token}")
        self._network = run / "net"
        flags = ["--live-restore"] if live_restore else []
        enter = ["nsenter", f"--net={self._network}"]
        self.daemon = Daemon(Path(f"/var/tmp/launch-{token}"), run, flags, enter)

    @staticmethod
    def missing() -> str | None:
        """Return the reason why such an engine cannot run here, or None."""
        if not hasattr(os, "geteuid") or os.geteuid() != 0:
            return "only root can start a Docker engine"
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        needed = [name for name in ("dockerd", "unshare", "nsenter", "busybox") if not shutil.which(name, path=path)]
        return f"not installed: {', '.join(needed)}" if needed else None

    @staticmethod
    def install() -> None:
        """Install what is missing; needs root."""
        install(dockerd="docker.io", busybox="busybox-static")

    @property
    def host(self) -> str:
        return self.daemon.host

    def client(self) -> DockerClient:
        """Return a new client; the caller closes it."""
        import docker

        return docker.DockerClient(self.host)

    def start(self) -> None:
        """Start the daemon, for the first time or again."""
        self.daemon.start()

    def term(self) -> None:
        """Stop the daemon like an administrator, and wait for its end."""
        self.daemon.term()

    def kill(self) -> None:
        """Kill the daemon like a crash, and wait for its end."""
        self.daemon.kill()

    def __enter__(self) -> Self:
        try:
            self._make_network()
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove all containers, end the daemon, and remove its files and network."""
        try:
            self._remove_containers()
        finally:
            self._remove()

    def _remove_containers(self) -> None:
        if self.daemon.pid is None:
            # Containers may still run, and only a daemon can stop them.
            with contextlib.suppress(EngineError):
                self.start()
        if self.daemon.pid is not None:
            with contextlib.closing(self.client()) as client:
                for container in client.containers.list(all=True):
                    container.remove(force=True)

    def _remove(self) -> None:
        try:
            self.daemon.stop()
        finally:
            unmount_below(self._network)
            self.daemon.remove()

    def _make_network(self) -> None:
        # A file keeps the namespace without a daemon, so that its bridge stays.
        self._network.parent.mkdir(parents=True)
        self._network.touch()
        _run("unshare", f"--net={self._network}", "true")
        _run("nsenter", f"--net={self._network}", "busybox", "ip", "link", "set", "lo", "up")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command)}: {done.stderr.strip()}")
