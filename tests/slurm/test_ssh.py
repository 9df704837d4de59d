"""Logins: through a jump host, with keys, passphrases and passwords, and refused ones."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler, create_scheduler
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError, SchedulerUnavailableError
from tests.engines.slurm.cluster import NODES
from tests.engines.slurm.processes import PATH
from tests.engines.slurm.sshd import Sshd
from tests.slurm.conftest import Place
from tests.support.apps import until

pytestmark = pytest.mark.engine("slurm")

USER, PASSWORD, PASSPHRASE = "launch-test", "it's $ecret", "open sesame"


@pytest.fixture
def make_sshd(slurm_cluster, slurm_root) -> Iterator[Callable[..., Sshd]]:
    """Return a function that starts another login node of the cluster."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "more", passphrase: str = "", **settings: str) -> Sshd:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            sshd = Sshd(slurm_root.parent / name / "ssh", port, slurm_cluster.sshd.env, **settings)
            stack.callback(sshd.stop)
            sshd.start(passphrase)
            return sshd

        yield make


@pytest.fixture
def user(slurm_root) -> Iterator[str]:
    """A user of this host who is not root and has a password; the directory of the apps is theirs."""
    _run("userdel", "--force", USER, check=False)  # of a test that was killed
    _run("useradd", "--system", "--no-create-home", "--shell", "/bin/sh", USER)
    try:
        _run("chpasswd", stdin=f"{USER}:{PASSWORD}\n")
        slurm_root.parent.chmod(0o755)
        slurm_root.mkdir()
        shutil.chown(slurm_root, USER)
        yield USER
    finally:
        _run("userdel", "--force", USER)


def _run(*command: str, stdin: str = "", check: bool = True) -> None:
    subprocess.run(command, input=stdin, text=True, env={"PATH": PATH}, check=check)


def scheduler_on(sshd: Sshd, root: Path, **params: Any) -> SlurmScheduler:
    where = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "root", "ssh_host_key": sshd.host_key}
    return create_scheduler("tests", **{"root": str(root), "timeout_s": 20.0, **where, **params})


def refusal(scheduler: SlurmScheduler) -> str:
    with contextlib.closing(scheduler), pytest.raises((SchedulerRejectedError, InvalidAppError)) as caught:
        scheduler.probe()
    return str(caught.value)


def test_a_login_node_behind_another_host(slurm_cluster, slurm_root, make_sshd) -> None:
    jump = make_sshd(AuthorizedKeysFile=f"{slurm_cluster.sshd.key}.pub")
    way = {"ssh_jump_host": f"root@127.0.0.1:{jump.port}", "ssh_key_file": str(slurm_cluster.sshd.key)}
    scheduler = scheduler_on(slurm_cluster.sshd, slurm_root, **way, ssh_jump_host_key=jump.host_key)

    with contextlib.closing(scheduler):
        assert "slurm" in scheduler.probe()
    # The login node sees another connection than the jump host: nothing but that way was used.
    assert "Accepted publickey for root" in jump.log
    forged = scheduler_on(slurm_cluster.sshd, slurm_root, **way, ssh_jump_host_key=slurm_cluster.sshd.host_key)
    assert "another host key" in refusal(forged)
    jump.stop()
    with pytest.raises(SchedulerUnavailableError, match=str(jump.port)):
        scheduler_on(slurm_cluster.sshd, slurm_root, **way, ssh_jump_host_key=jump.host_key).probe()


def test_a_login_node_that_its_jump_host_does_not_reach(slurm_cluster, slurm_root, make_sshd) -> None:
    jump = make_sshd(AuthorizedKeysFile=f"{slurm_cluster.sshd.key}.pub", AllowTcpForwarding="no")
    way = {"ssh_jump_host": f"root@127.0.0.1:{jump.port}", "ssh_jump_host_key": jump.host_key}
    scheduler = scheduler_on(slurm_cluster.sshd, slurm_root, **way, ssh_key_file=str(slurm_cluster.sshd.key))

    with pytest.raises(SchedulerUnavailableError, match="cannot connect to login node"):
        scheduler.probe()


@pytest.mark.parametrize("kind", ["file", "text"])
def test_a_key_with_a_passphrase(slurm_root, make_sshd, kind) -> None:
    sshd = make_sshd(passphrase=PASSPHRASE)
    key = {"ssh_key_file": str(sshd.key)} if kind == "file" else {"ssh_key_secret": sshd.key.read_text()}

    with contextlib.closing(scheduler_on(sshd, slurm_root, **key, ssh_key_password=PASSPHRASE)) as scheduler:
        assert "slurm" in scheduler.probe()
    for wrong in ({}, {"ssh_key_password": "no"}):
        assert "ssh_key_password" in refusal(scheduler_on(sshd, slurm_root, **key, **wrong))


def test_a_user_with_a_password_runs_an_app(slurm_cluster, slurm_root, make_sshd, user) -> None:
    """The user is not root: the jobs are theirs, too."""
    sshd = make_sshd(PasswordAuthentication="yes", PubkeyAuthentication="no")
    where = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": user, "ssh_host_key": sshd.host_key}
    place = Place(slurm_cluster, slurm_root, **where, ssh_password=PASSWORD, slurm_conf=None)
    app_id = place.start(place.sh("id -un; test -w /etc || echo not root", num_replicas=2))

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main", 1)] == [f"{user}\n", "not root\n"]
    assert "refuses user" in refusal(scheduler_on(sshd, slurm_root, ssh_user=user, ssh_password="wrong"))
    place.scheduler.close()


def test_a_key_or_a_host_that_is_not_known_is_refused(slurm_cluster, slurm_root, make_sshd) -> None:
    sshd, other = slurm_cluster.sshd, make_sshd()

    assert "refuses user 'root'" in refusal(scheduler_on(sshd, slurm_root, ssh_key_file=str(other.key)))
    assert "another host key" in refusal(
        scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key), ssh_host_key=other.host_key)
    )
    assert "ssh_host_key" in refusal(scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key), ssh_host_key=None))
    for broken in ("ssh-ed25519 AAAA", "ssh-ed25519 !!!", "ssh-ed25519", "x", "ssh-rsa AAAAB3NzaC1yc2E="):
        assert "ssh-keyscan" in refusal(
            scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key), ssh_host_key=broken)
        ), broken
    assert "no/key" in refusal(scheduler_on(sshd, slurm_root, ssh_key_file="/no/key"))


def test_a_login_node_with_too_many_logins_is_asked_again(slurm_root, make_sshd) -> None:
    """If many tasks start at once, sshd drops new connections, and has room a moment later."""
    sshd = make_sshd(MaxStartups="1:100:1")
    slow = socket.create_connection(("127.0.0.1", sshd.port))
    slow.recv(1)
    threading.Timer(0.5, slow.close).start()

    with contextlib.closing(scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key))) as scheduler:
        assert "slurm" in scheduler.probe()
    assert "maxstartups" in sshd.log.lower()


def test_a_process_uses_at_most_four_sessions_of_one_connection(slurm_root, make_sshd) -> None:
    """sshd refuses more than `MaxSessions`; threads wait for each other instead."""
    sshd = make_sshd(MaxSessions="4")
    scheduler = scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key))
    with contextlib.closing(scheduler), ThreadPoolExecutor(16) as pool:
        assert [*pool.map(lambda number: scheduler.describe(f"none-{number}"), range(64))] == [None] * 64
    assert sshd.log.count("Accepted publickey") == 1


def test_the_test_of_a_connection_lets_a_node_write_a_file(slurm_cluster, slurm_root) -> None:
    sshd = slurm_cluster.sshd
    scheduler = scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key), test_node=True, mount=str(slurm_root))

    with contextlib.closing(scheduler):
        assert "a node wrote a file that was read back" in scheduler.probe()
    assert not any(slurm_root.glob("*/probe*"))


def test_the_test_of_a_connection_names_a_mount_that_is_another_directory(slurm_cluster, slurm_root, tmp_path) -> None:
    sshd = slurm_cluster.sshd

    assert str(tmp_path) in refusal(
        scheduler_on(sshd, slurm_root, ssh_key_file=str(sshd.key), test_node=True, mount=str(tmp_path))
    )


@pytest.mark.engine("slurmctld")
def test_the_test_of_a_connection_names_a_cluster_that_gives_no_node(make_own_cluster) -> None:
    """Without a free node the test reports that, and leaves no job."""
    place = make_own_cluster()
    for node in NODES:
        place.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    scheduler = create_scheduler("tests", **{**place.params, "test_node": True, "timeout_s": 8.0})

    assert "no node has copied" in refusal(scheduler)
    until(lambda: "launch-probe" not in place.cluster.run("squeue", "-h", "-o", "%j"), 20, 0.2)
