"""A Postgres of our own, from Debian's packages: an empty folder, a port, no password."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.engines.docker import packages
from tests.live.airflow import Airflow, free_ports
from tests.live.engines import LocalApps

_USER = "postgres"


class Postgres:
    """One server with one empty database, `airflow`. Needs root, since Postgres itself refuses to run as root.

    Args:
        folder: folder for its data; created, and owned by the user of Postgres.
        port: on loopback.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self.url = self._url("airflow")

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg2://{_USER}@127.0.0.1:{self._port}/{database}"

    def begin(self) -> None:
        """Install what is missing, and start."""
        packages.install(pg_ctlcluster="postgresql")
        self._folder.mkdir(mode=0o755)
        shutil.chown(self._folder, _USER)
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-sync", "-D", str(self._data))
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(
                f"port = {self._port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{self._folder}'\n"
                "max_connections = 400\nfsync = off\n"
            )
        self.start()
        self._run("createdb", "--host=127.0.0.1", f"--port={self._port}", "airflow")

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        """Break off all sessions, as a restart by an admin does."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def copy(self, name: str) -> str:
        """Restore a dump of the database under another name, as a test system is made; returns its URL."""
        server = ("--host=127.0.0.1", f"--port={self._port}")
        dump = self._folder / name
        self._run("pg_dump", *server, "--format=custom", f"--file={dump}", "airflow")
        self._run("createdb", *server, name)
        self._run("pg_restore", *server, f"--dbname={name}", str(dump))
        return self._url(name)

    def end(self) -> None:
        """Stop, also after a failed start."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _run(self, program: str, *args: str) -> None:
        (home,) = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))[-1:]
        # Its daemon would keep a pipe open, which is then read for ever.
        with (self._folder / "commands.log").open("ab") as output:
            done = subprocess.run(
                [str(home), *args],
                user=_USER,
                group=_USER,
                extra_groups=[],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                timeout=120,
            )
        assert done.returncode == 0, (self._folder / "commands.log").read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def airflow_on_postgres(
    home: Path, *, has_faults: bool = False, broker: str = "", more_dags: Sequence[Path] = (), **settings: str
) -> Iterator[tuple[Airflow, Postgres, LocalApps]]:
    """Start an Airflow with a Postgres of its own, and local apps; skips the test where Postgres cannot run."""
    if os.geteuid() != 0:
        pytest.skip("a Postgres of the tests needs root")
    (home / "root").mkdir()
    (port,) = free_ports(1)
    # Postgres runs as another user, who may not enter the folders of pytest.
    folder = Path(f"/var/tmp/launch-postgres-{os.getpid()}-{port}")
    postgres = Postgres(folder, port)
    apps = LocalApps(home / "root")
    airflow = Airflow(
        home,
        {"local": apps.connection},
        database=postgres.url,
        settings=settings,
        has_faults=has_faults,
        broker=broker,
        more_dags=more_dags,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(postgres.end)
        stack.callback(apps.close, set())
        stack.callback(airflow.end)
        postgres.begin()
        airflow.begin()
        yield airflow, postgres, apps
