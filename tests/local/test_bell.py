"""An idle supervisor sleeps until a byte in its bell, a child, a limit or the next check of its marks wakes it."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.safe_files import open_fifo, wake_reader
from airflow_provider_launch.specs import AppState
from tests.support.apps import until
from tests.support.local import Apps, lock_holder, sh


def started(apps: Apps) -> str:
    app_id = apps.start(sh("sleep 60"))
    until(lambda: apps.scheduler.describe(app_id).state is AppState.RUNNING)
    return app_id


def supervisor_of(apps: Apps, app_id: str) -> int:
    pid = lock_holder(apps.dir(app_id) / layout.LOCK)
    assert pid
    return pid


def waits(pid: int) -> int:
    """Return how often a process has started to wait."""
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_an_idle_supervisor_sleeps(apps: Apps) -> None:
    app_id = started(apps)
    supervisor = supervisor_of(apps, app_id)
    time.sleep(1)  # the last lines of its start
    before = waits(supervisor)

    time.sleep(3)

    assert waits(supervisor) - before <= 3


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_cancel_or_delete_rings_the_bell(apps: Apps, end: str) -> None:
    app_id = started(apps)
    supervisor = supervisor_of(apps, app_id)
    until(lambda: is_asleep(supervisor))
    bell = os.open(apps.dir(app_id) / layout.BELL, os.O_RDONLY | os.O_NONBLOCK)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        getattr(apps.scheduler, end)(app_id)
        assert select.select([bell], [], [], 0)[0]
    finally:
        os.kill(supervisor, signal.SIGCONT)
        os.close(bell)
    if end == "cancel":
        assert apps.end(app_id).state is AppState.CANCELLED
    else:
        until(lambda: not apps.dir(app_id).exists())


@pytest.mark.parametrize("what", ["missing", "file", "directory"])
def test_an_app_without_a_bell_is_cancelled(apps: Apps, what: str) -> None:
    app_id = started(apps)
    bell = apps.dir(app_id) / layout.BELL
    bell.unlink()
    if what == "file":
        bell.write_text("mine")
    if what == "directory":
        bell.mkdir()

    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED


def test_the_next_supervisor_has_a_bell(apps: Apps) -> None:
    app_id = started(apps)
    bell = apps.dir(app_id) / layout.BELL
    bell.unlink()
    bell.write_text("mine")
    os.kill(supervisor_of(apps, app_id), signal.SIGKILL)

    # Each poll of the app starts another supervisor if none has the lock.
    until(lambda: apps.scheduler.describe(app_id) and bell.is_fifo())


def test_a_byte_wakes_the_reader_and_nothing_else_is_written(tmp_path: Path) -> None:
    fifo, file = str(tmp_path / "fifo"), tmp_path / "file"
    file.write_text("mine")
    wake_reader(fifo)  # there is none
    fd = open_fifo(fifo)
    try:
        assert not select.select([fd], [], [], 0)[0]
        wake_reader(fifo)
        assert select.select([fd], [], [], 0)[0]
    finally:
        os.close(fd)
    wake_reader(fifo)  # without a reader the write does not block
    wake_reader(str(file))
    (tmp_path / "link").symlink_to(file)
    wake_reader(str(tmp_path / "link"))
    assert file.read_text() == "mine"
