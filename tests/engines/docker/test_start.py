"""Our engine on a machine without one, simulated by namespaces without the real socket and network."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine("dockerd")

EMPTY = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /run; mount -t tmpfs none /var/tmp; exec "$@"', "sh"]
# If its first process ends, all others end.
ALONE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
ENGINE = [sys.executable, "-m", "tests.engines.docker"]


def run(checkout, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LAUNCH_", "DOCKER_"))
    }
    return subprocess.run(command, cwd=checkout, env=inherited | env, capture_output=True, text=True, check=False)


def test_without_an_engine_the_reason_and_the_cure_are_reported(checkout):
    done = run(checkout, *EMPTY, *ENGINE, "status", DOCKER_HOST="unix:///run/other.sock")

    assert done.returncode == 1
    assert "unix:///run/other.sock: No such file" in done.stderr
    assert "unix:///var/run/docker.sock: No such file" in done.stderr
    assert "LAUNCH_REQUIRE_ENGINES=docker" in done.stderr


def test_start_and_stop_by_hand(checkout):
    script = """
        busybox ip link set lo up
        $0 -m tests.engines.docker start; $0 -m tests.engines.docker start; pidof dockerd | wc -w
        $0 -m tests.engines.docker images
        LAUNCH_REQUIRE_ENGINES=docker $0 -m pytest -q -o cache_dir=/var/tmp/cache tests/engines/docker/test_images.py
        $0 -m tests.engines.docker status
        $0 -m tests.engines.docker stop; $0 -m tests.engines.docker stop
        pidof dockerd containerd && echo LEFT; ls /run /var/tmp
    """
    done = run(checkout, *EMPTY, *ALONE, "sh", "-c", script, sys.executable)

    lines = done.stdout.splitlines()
    host = "DOCKER_HOST=unix:///run/launch-docker/docker.sock"
    assert lines[:6] == [host, host, "1", host, "launch-busybox:local", "launch-python:local"], done
    assert " passed" in done.stdout
    assert lines[lines.index(host, 6) :][:3] == [host, "stopped", "none of ours runs"]
    assert not {"launch-docker", "LEFT"} & set(lines)


def test_start_after_a_daemon_that_was_killed(checkout):
    """Its pid files remain, and other processes may get its pids."""
    script = """
        busybox ip link set lo up
        mkdir -p /run/launch-docker/exec/containerd
        sleep 60 &
        echo $! | tee /run/launch-docker/docker.pid > /run/launch-docker/exec/containerd/containerd.pid
        $0 -m tests.engines.docker start && $0 -m tests.engines.docker stop
    """
    done = run(checkout, *EMPTY, *ALONE, "sh", "-c", script, sys.executable)

    assert done.stdout.splitlines() == ["DOCKER_HOST=unix:///run/launch-docker/docker.sock", "stopped"], done


INTERRUPTING_DOCKERD = f"""#!{sys.executable}
import os, signal, socket, sys, time

open("/var/tmp/pid", "w").write(str(os.getpid()))
host = next(flag for flag in sys.argv if flag.startswith("--host=unix://"))
listener = socket.socket(socket.AF_UNIX)
listener.bind(host.removeprefix("--host=unix://"))
listener.listen()
# The caller has started the daemon, and waits until it answers.
listener.accept()
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


def test_a_start_that_is_interrupted_leaves_no_daemon(checkout):
    """It is in a separate session, so Ctrl-C does not reach it, and has no pid file yet."""
    script = """
        mkdir /var/tmp/bin
        echo "$2" >/var/tmp/bin/dockerd
        chmod +x /var/tmp/bin/dockerd
        PATH=/var/tmp/bin:$PATH $0 -c "$1"
        test -s /var/tmp/pid && ! kill -0 $(cat /var/tmp/pid) && echo ENDED
    """
    # Background processes and their children may ignore Ctrl-C.
    start = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["", "start"]
runpy.run_module("tests.engines.docker", run_name="__main__")
"""
    done = run(checkout, *EMPTY, *ALONE, "sh", "-c", script, sys.executable, start, INTERRUPTING_DOCKERD)

    assert "KeyboardInterrupt" in done.stderr
    assert done.stdout.splitlines() == ["ENDED"], done


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_session_starts_what_it_requires_and_stops_it(checkout, workers):
    """One daemon for all workers, and none afterwards."""
    script = """
        busybox ip link set lo up
        $0 -m pytest -q -o cache_dir=/var/tmp/cache -n $1 tests/engines/docker/test_images.py
        pidof dockerd containerd && echo LEFT; ls /run /var/tmp
    """
    done = run(checkout, *EMPTY, *ALONE, "sh", "-c", script, sys.executable, workers, LAUNCH_REQUIRE_ENGINES="docker")

    assert " passed in " in done.stdout, done
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
    assert not {"launch-docker", "LEFT"} & set(done.stdout.splitlines())


@pytest.mark.engine("docker")
def test_there_is_never_a_second_daemon(checkout, docker_engine):
    """A second daemon would delete the bridge of the first one."""
    if not docker_engine.host.startswith("unix:"):
        pytest.skip("the engine runs on another host")

    done = run(checkout, *EMPTY, *ENGINE, "start")

    assert done.returncode == 1
    assert "dockerd runs here already" in done.stderr
