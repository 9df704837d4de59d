"""Accounting of our Slurm cluster: slurmdbd with its own MariaDB."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import install
from tests.engines.slurm.processes import PATH, is_gone, pid_in, wait

_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}
_CONF = """
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={dir}/slurmdbd.log
PidFile={dir}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=launch
StoragePass=launch
"""


def install_programs() -> None:
    """Install what is missing, as root on Debian."""
    install(**_PROGRAMS)


def why_missing() -> str | None:
    """Return the reason why accounting cannot run here, or None."""
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=PATH)]
    return f"{', '.join(missing)}: not installed; LAUNCH_REQUIRE_ENGINES=slurmdbd installs it" if missing else None


class Accounting:
    """A slurmdbd below `dir` on `port`, and its database on the port before."""

    def __init__(self, dir_: Path, port: int) -> None:
        self.dir = dir_
        self.port = port
        self._munge = dir_.with_name("munge") / "munge.sock"
        self._database: subprocess.Popen[bytes] | None = None

    @property
    def conf(self) -> str:
        """Return the lines for slurm.conf."""
        return (
            f"AccountingStorageType=accounting_storage/slurmdbd AccountingStorageHost=127.0.0.1 "
            f"AccountingStoragePort={self.port} AccountingStoragePass={self._munge} AccountingStoreFlags=job_comment "
            f"AccountingStorageEnforce=associations,qos"
        )

    def start(self, env: Mapping[str, str]) -> None:
        """Make an empty database, and start both; then register the cluster."""
        self.dir.mkdir(parents=True)
        # Servers that start at the same time delete each other's temporary tables.
        self._start_database({**env, "TMPDIR": str(self.dir)})
        conf = self.dir / "slurmdbd.conf"
        values = {"munge": self._munge, "dir": self.dir, "port": self.port, "database_port": self.port - 1}
        conf.write_text(_CONF.format(**values))
        conf.chmod(0o600)
        # Its configuration must be next to slurm.conf.
        shutil.copy(conf, self.dir.parent / "slurmdbd.conf")
        subprocess.run(["slurmdbd"], env=dict(env), check=True, timeout=60)
        wait(lambda: _listens(self.port), 30, f"slurmdbd listens; see {self.dir}")
        register = ["sacctmgr", "--immediate", "add", "cluster", "launch"]
        subprocess.run(register, env=dict(env), check=True, timeout=60, stdout=subprocess.DEVNULL)

    def _start_database(self, env: dict[str, str]) -> None:
        data, common = self.dir / "data", ["--no-defaults", "--user=root"]
        setup = [*common, f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run(["mariadb-install-db", *setup], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(f"mariadb-install-db: {done.stderr.strip()}")
        first = self.dir / "init.sql"
        user = "'launch'@'127.0.0.1'"
        # One statement in each line.
        first.write_text(f"CREATE USER {user} IDENTIFIED BY 'launch';\nGRANT ALL ON *.* TO {user};\n")
        places = [f"--datadir={data}", f"--socket={self.dir}/socket", f"--pid-file={self.dir}/mariadbd.pid"]
        port = ["--bind-address=127.0.0.1", f"--port={self.port - 1}", f"--init-file={first}", "--skip-name-resolve"]
        with (self.dir / "mariadbd.log").open("wb") as log:
            command = ["mariadbd", *common, *places, *port]
            self._database = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        wait(lambda: _listens(self.port - 1), 60, f"the database listens; see {self.dir}/mariadbd.log")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop slurmdbd from answering inside the context."""
        pid = pid_in(self.dir / "slurmdbd.pid", "slurmdbd")
        if pid is None:
            raise EngineError("slurmdbd does not run")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End both."""
        for name in ("slurmdbd", "mariadbd"):
            if (pid := pid_in(self.dir / f"{name}.pid", name)) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                if self._database and name == "mariadbd":
                    self._database.wait(30)
                wait(lambda pid=pid: is_gone(pid), 30, f"{name} ends")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
