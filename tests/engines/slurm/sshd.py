"""Our SSH server on this host, with its own keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.engines.docker.daemon import EngineError
from tests.engines.slurm.processes import PATH, is_gone, pid_in, wait

_CONFIG = """
{more}
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host_key
PidFile {pid_file}
AuthorizedKeysFile {dir}/user_key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
AllowTcpForwarding yes
SetEnv {env}
"""
# Tests log in in parallel; above this limit sshd drops random connections.
_DEFAULTS = {"MaxStartups": "200", "PasswordAuthentication": "no"}


class Sshd:
    """One server; its files are below `dir`, including the accepted key and its pid file."""

    def __init__(self, dir_: Path, port: int, env: Mapping[str, str], **settings: str) -> None:
        self.dir = dir_
        self.port = port
        self.env = env
        self._pid_file = dir_.with_name("sshd.pid")
        self._settings = {**_DEFAULTS, **settings}

    @property
    def key(self) -> Path:
        return self.dir / "user_key"

    @property
    def host_key(self) -> str:
        """The line for known hosts: type and key."""
        return " ".join((self.dir / "host_key.pub").read_text().split()[:2])

    @property
    def log(self) -> str:
        return (self.dir / "sshd.log").read_text()

    def runs(self) -> bool:
        return pid_in(self._pid_file, "sshd") is not None

    def start(self, passphrase: str = "") -> None:
        """Make the keys (that of the user has a passphrase), and start the server."""
        self.dir.mkdir(parents=True, exist_ok=True)
        for name, secret in (("host_key", ""), ("user_key", passphrase)):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", str(self.dir / name))
        config = self.dir / "sshd_config"
        env = " ".join(f"{name}={value}" for name, value in self.env.items())
        more = "\n".join(f"{name} {value}" for name, value in self._settings.items())
        config.write_text(_CONFIG.format(dir=self.dir, pid_file=self._pid_file, port=self.port, env=env, more=more))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # Absolute paths, because sshd restarts itself for each session in the root directory.
        sshd = shutil.which("sshd", path=PATH) or "sshd"
        _run(sshd, "-f", str(config), "-E", str(self.dir / "sshd.log"))
        wait(self.runs, 10, f"sshd below {self.dir} runs")

    def stop(self) -> None:
        if (pid := pid_in(self._pid_file, "sshd")) is not None:
            os.kill(pid, signal.SIGTERM)
            wait(lambda: is_gone(pid), 15, "sshd ends")


def _run(*command: str) -> None:
    done = subprocess.run(command, env={"PATH": PATH}, text=True, capture_output=True, timeout=30, check=False)
    if done.returncode:
        raise EngineError(f"{' '.join(command[:1])}: {done.stderr.strip() or done.returncode}")
