"""A disk without space: apps can still be ended, and their results are not lost."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppState, SchedulerUnavailableError
from tests.support.apps import until
from tests.support.local import Apps, Gate, commands, kill_supervisor, processes_below, sh

FILES = 300


class Disk:
    """A small file system that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filling = path / "filling"
        self.files = path / "files"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self.filling.open("ab", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    def fill_with_files(self) -> None:
        self.files.mkdir()
        with contextlib.suppress(OSError):
            for n in range(FILES):
                (self.files / str(n)).touch()

    def free(self) -> None:
        self.filling.unlink(missing_ok=True)
        shutil.rmtree(self.files, ignore_errors=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size=1m,nr_inodes={FILES}", "none", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"only root can mount a small disk: {error}")
    yield Disk(path)
    # A lazy unmount: an observer of another test may use it now.
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def apps(disk: Disk) -> Iterator[Apps]:
    root = disk.path / "root"
    apps = Apps(create_scheduler("tests", root=str(root)), root)
    yield apps
    disk.free()
    for row in apps.scheduler.list():
        apps.scheduler.cancel(row.app_id)
    until(lambda: not processes_below(root))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.mark.parametrize("killed", [False, True])
def test_cancel_ends_the_processes(apps: Apps, disk: Disk, killed: bool) -> None:
    app_id = apps.start(sh("echo up; sleep 320", port_map={"p": 0}), grace_s=0.3)
    until(lambda: apps.lines(app_id) == ["up\n"])
    disk.fill()
    if killed:
        kill_supervisor(apps, app_id)
    apps.scheduler.cancel(app_id)
    until(lambda: not commands(apps))
    disk.free()

    assert apps.end(app_id).state is AppState.CANCELLED


@pytest.mark.parametrize("killed", [False, True])
def test_delete_makes_room(apps: Apps, disk: Disk, killed: bool) -> None:
    """A user who deletes apps because the disk is full must get the space."""
    app_id = apps.start(sh("head -c 200000 /dev/zero; echo; echo up >&2; sleep 321"), grace_s=0.3)
    until(lambda: any(path.read_bytes() for path in apps.dir(app_id).rglob("stderr")))
    disk.fill()
    if killed:
        kill_supervisor(apps, app_id)
    apps.scheduler.delete(app_id)
    until(lambda: apps.scheduler.describe(app_id) is None)

    # A process that just starts, here a second supervisor that finds the lock taken, has no command line for a moment.
    until(lambda: not commands(apps))
    until(lambda: not list((apps.root / "building").iterdir()))
    assert disk.filling.exists()


def test_time_limit_is_kept(apps: Apps, disk: Disk) -> None:
    app_id = apps.start(sh("echo up; sleep 322"), grace_s=0.3, time_limit_s=2)
    until(lambda: apps.lines(app_id) == ["up\n"])
    disk.fill()
    kill_supervisor(apps, app_id)
    apps.scheduler.describe(app_id)
    until(lambda: not commands(apps))
    disk.free()
    found = apps.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "time limit of 2 s reached")


def test_app_that_cannot_start_waits_for_room_or_its_end(apps: Apps, disk: Disk) -> None:
    """Its ports must be stored first; repeated tries must not use up ports and descriptors."""
    known = apps.start(sh("true", port_map={"p": 0}))
    apps.end(known)
    app_id, other = "waiting", "unwanted"
    for name in (app_id, other):
        (apps.root / "apps" / name).mkdir()
        document = layout.read_json(str(apps.dir(known) / layout.APP))
        document["request"]["app_id"] = name
        layout.write_json(str(apps.dir(name) / layout.APP), document)
        (apps.dir(name) / "supervisor.log").touch()
    disk.fill()
    apps.scheduler.describe(app_id)
    apps.scheduler.describe(other)
    apps.scheduler.delete(other)
    time.sleep(1)
    assert not list(apps.dir(app_id).rglob("started"))
    assert len(list((apps.root / "ports").iterdir())) <= 3
    disk.free()

    assert apps.end(app_id).state is AppState.SUCCEEDED
    until(lambda: apps.scheduler.describe(other) is None)


@pytest.mark.parametrize("killed", [False, True])
def test_replica_that_succeeds_does_not_run_again(
    apps: Apps, disk: Disk, gate: Gate, tmp_path: Path, killed: bool
) -> None:
    app_id = apps.start(sh(f"{gate.wait}; echo ran >> {tmp_path}/ran", max_retries=1))
    gate.reached()
    disk.fill()
    if killed:
        kill_supervisor(apps, app_id)
    gate.open()
    until(lambda: not commands(apps))
    time.sleep(1)
    apps.scheduler.describe(app_id)
    disk.free()
    found = apps.end(app_id)

    assert (found.state, found.num_restarts, found.roles_statuses[0].replicas[0].exit_code) == (
        AppState.SUCCEEDED,
        0,
        0,
    )
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_cancel_does_not_wait_for_room_to_keep_an_exit_code(apps: Apps, disk: Disk, gate: Gate) -> None:
    app_id = apps.start(sh(gate.wait), sh("exec sleep 323", "other"), grace_s=0.3)
    shim = apps.dir(app_id) / "run/0/0-main/0/0/shim.lock"
    gate.reached()
    until(lambda: len(commands(apps)) == 2)
    disk.fill()
    gate.open()
    until(lambda: len(commands(apps)) == 1)
    time.sleep(0.5)
    assert processes.is_locked(str(shim))
    apps.scheduler.cancel(app_id)
    until(lambda: not processes.is_locked(str(shim)))
    disk.free()

    assert apps.end(app_id).state is AppState.CANCELLED


def test_request_that_cannot_be_noted_is_a_clear_error(apps: Apps, disk: Disk) -> None:
    """The caller can repeat it; a bare OSError would look like a bug of the launcher."""
    app_id = apps.start(sh("echo up; sleep 324"), grace_s=0.3)
    until(lambda: apps.lines(app_id) == ["up\n"])
    disk.fill_with_files()
    with pytest.raises(SchedulerUnavailableError, match="No space left"):
        apps.scheduler.cancel(app_id)
    with pytest.raises(SchedulerUnavailableError, match="No space left"):
        apps.scheduler.delete(app_id)
    disk.free()
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED


def test_removed_directory_leaves_no_supervisor(apps: Apps, disk: Disk, gate: Gate) -> None:
    """Removing the files by hand must not leave a process that waits for space in them."""
    app_id = apps.start(sh(f"{gate.wait}; exit 3"))
    gate.reached()
    subprocess.run(["rm", "-rf", str(apps.dir(app_id))], check=True)
    gate.open()

    until(lambda: not processes_below(apps.root))
