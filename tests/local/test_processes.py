"""Signals reach the intended process, or none."""

from __future__ import annotations

import os
import signal
import subprocess

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

    assert not processes.send_if_same(sleeper.pid, start, signal.SIGTERM)
