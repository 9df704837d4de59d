"""A login node that stops answering: each step of a connect times out. No cluster is needed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler, create_scheduler
from airflow_provider_launch.specs import SchedulerUnavailableError
from tests.support.ssh_server import SSHServer

TIMEOUT_S = 1.0


@pytest.fixture
def server() -> Iterator[SSHServer]:
    with contextlib.closing(SSHServer()) as server:
        yield server


@pytest.fixture
def scheduler(server: SSHServer, tmp_path: Path) -> Iterator[SlurmScheduler]:
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "key"))
    scheduler = create_scheduler(
        "tests",
        root=str(tmp_path / "root"),
        ssh_host="127.0.0.1",
        ssh_port=server.port,
        ssh_user="launch",
        ssh_key_file=str(tmp_path / "key"),
        ssh_host_key=f"{server.key.get_name()} {server.key.get_base64()}",
        timeout_s=TIMEOUT_S,
    )
    with contextlib.closing(scheduler):
        yield scheduler


@pytest.mark.parametrize("step", ["banner", "auth", "session", "exec"])
def test_a_login_node_that_falls_silent_is_not_waited_for(server, scheduler, step) -> None:
    """All tasks of the connection would wait for the hanging ones."""
    server.silent = step
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(scheduler.describe("app-1"))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    # Much less than an endless wait; the machine may be busy.
    thread.join(30)

    assert found, "it hangs"
    assert isinstance(found[0], SchedulerUnavailableError), found
