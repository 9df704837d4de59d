"""Signals reach the intended process, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from airflow_provider_launch.schedulers.local import processes


@pytest.fixture(params=["pidfd", "by number"])
def sleeper(request, monkeypatch):
    if request.param == "by number":

        def refused(_pid: int) -> int:
            raise PermissionError(1, "a sandbox without it")

        monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_later_process_with_the_same_number_is_spared(sleeper) -> None:
    """A later supervisor has only the pid of a shim, which may belong to another process by then."""
    assert not processes.send_if_same(sleeper.pid, "12345", signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_process_that_is_meant_gets_it(sleeper) -> None:
    assert processes.send_if_same(sleeper.pid, processes.start_time(sleeper.pid), signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_process_that_has_ended_is_not_an_error(sleeper) -> None:
    start = processes.start_time(sleeper.pid)
    sleeper.kill()
    sleeper.wait()

    assert processes.send_if_same(sleeper.pid, start, signal.SIGTERM) is False


def test_each_process_of_a_replica_gets_a_signal_once(monkeypatch) -> None:
    """A second TERM would interrupt a program that writes its checkpoint after the first."""
    signalled: list[int] = []
    replica = subprocess.Popen(["sh", "-c", "sleep 60 & setsid sleep 60 & wait"], start_new_session=True)
    try:
        own: list[int] = []
        deadline = time.monotonic() + 30
        while {os.getpgid(pid) == replica.pid for pid in own} != {True, False} or len(own) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            own = processes.descendants(replica.pid)
        every = {replica.pid, *own}

        def kill_group(group: int, _signum: int) -> None:
            signalled.extend(pid for pid in every if os.getpgid(pid) == group)

        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda pid, _signum: signalled.append(pid))
            patched.setattr(os, "killpg", kill_group)
            processes.kill_all(os.getpid(), signal.SIGTERM, group=replica.pid)
        assert sorted(pid for pid in signalled if pid in every) == sorted(every)
    finally:
        processes.kill_all(replica.pid, signal.SIGKILL, group=replica.pid)
        replica.kill()
        replica.wait()
