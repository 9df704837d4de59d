"""Our cluster, started and stopped on a host that appears empty: a separate network namespace."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine("kube-apiserver"), pytest.mark.timeout(600)]

NAME = "launch-k8s-second"
# If its first process ends, all others end.
ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# State that a cluster changes outside of its folders.
STATE = """
import json, subprocess
from pathlib import Path
from tests.engines.kubernetes.host import CGROUPS, CONTROL, FOLDERS, SYSCTLS
from tests.engines.kubernetes.process import alive, until
def said(*words): return subprocess.run(words, capture_output=True, text=True).stdout
def state():
    print("STATE", json.dumps({
        "sysctls": [Path("/proc/sys", name).read_text() for name in SYSCTLS],
        "rules": said("iptables", "-S"),
        "addresses": said("ip", "-o", "-4", "address"),
        "links": said("ip", "-o", "link").count("\\n"),
        "folders": [name for name in FOLDERS if Path(name).exists()],
        "own": [str(path) for root in ("/run", "/var/tmp") for path in Path(root).glob("NAME") if path.exists()],
        "cgroups": [str(path) for path in [*CGROUPS.glob("NAME"), *CGROUPS.glob("*/NAME")]],
        "controllers": CONTROL.read_text().split() if CONTROL.exists() else [],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "NAME" in line],
        "processes": [
            path.read_text()
            for path in Path("/proc").glob("[0-9]*/comm")
            if path.read_text()[:4] in PROGRAMS and alive(int(path.parent.name))
        ],
    }), flush=True)
def run_pod(cluster):
    from tests.engines.kubernetes import images
    pod = {"restartPolicy": "Never", "containers": [
        {"name": "x", "image": images.busybox(cluster), "command": ["sleep", "1000"], "imagePullPolicy": "Never"}]}
    api = cluster.api_server.api
    api.request("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "x"}, "spec": pod})
    phase = lambda: api.request("GET", "/api/v1/namespaces/default/pods/x")["status"]["phase"]
    until(lambda: phase() == "Running", 60, "the pod does not run")
PROGRAMS = {"etcd", "kube", "core", "cont", "slee"}
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
Path("/proc/sys/kernel/panic").write_text("11")
state()
""".replace("NAME", NAME)


def run(checkout, script: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LAUNCH_"))}
    panic = Path("/proc/sys/kernel/panic")
    # One at a time, because other workers run tests of this file, and some settings belong to the host.
    with Path(tempfile.gettempdir(), f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = panic.read_text()
        done = subprocess.run(
            [*ALONE, sys.executable, "-c", STATE + script],
            cwd=checkout,
            env=kept | {"LAUNCH_TEST_CLUSTER_NAME": NAME},
            capture_output=True,
            text=True,
            check=False,
        )
        panic.write_text(before)
    return done


def states(text: str) -> list[dict]:
    return [json.loads(line.removeprefix("STATE ")) for line in text.splitlines() if line.startswith("STATE ")]


def test_start_and_stop_by_hand(checkout):
    """A pod still runs when the cluster is stopped. Starting twice gives one cluster; stopping twice is allowed."""
    done = run(
        checkout,
        """
import sys, time
from tests.engines.kubernetes import engine
def by_hand(command):
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "tests.engines.kubernetes", command], capture_output=True, text=True)
    print(command, done.stdout.strip(), done.stderr.strip(), flush=True)
    return time.monotonic() - started
by_hand("status")
first = by_hand("start")
cluster = engine.ours()
pids = [one.pid for one in cluster.running]
again = by_hand("start")
assert pids == [one.pid for one in cluster.running]
print("SECONDS", first, again)
run_pod(cluster)
state()
by_hand("stop")
state()
by_hand("stop")
""",
    )

    assert done.returncode == 0, done
    told = [line for line in done.stdout.splitlines() if line.startswith(("status", "start", "stop"))]
    kubeconfig = f"KUBECONFIG=/var/tmp/{NAME}/api/kubeconfig"
    assert told[0].startswith("status  no Kubernetes cluster is known; set LAUNCH_TEST_KUBECONFIG")
    assert told[1:] == [f"start {kubeconfig} ", f"start {kubeconfig} ", "stop stopped ", "stop none of ours runs "]
    before, between, after = states(done.stdout)
    assert after == before
    assert not before["processes"]
    # The cluster had changed all of these.
    assert {name for name in between if between[name] == before[name]} <= {"folders", "controllers"}
    (seconds,) = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("SECONDS")]
    assert float(seconds[0]) < 60
    assert float(seconds[1]) < 10


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_session_starts_what_it_requires_and_stops_it(checkout, workers):
    """One cluster for all workers, and none afterwards."""
    done = run(
        checkout,
        f"""
import os, sys
command = "-m pytest -q -o cache_dir=/tmp/cache -n {workers} tests/engines/kubernetes/test_cluster.py -k".split()
env = os.environ | {{"LAUNCH_REQUIRE_ENGINES": "kubernetes"}}
subprocess.run([sys.executable, *command, "runs or label"], env=env)
state()
""",
    )

    assert "4 passed" in done.stdout, done
    assert not {"failed", "error", "errors", "skipped"} & set(done.stdout.split())
    before, after = states(done.stdout)
    assert after == before


def test_what_a_killed_cluster_left_is_cleared(checkout):
    """Its owner was killed: the programs are gone but the settings remain, or the pods continue."""
    done = run(
        checkout,
        """
from tests.engines.kubernetes import engine
cluster = engine.ours()
cluster.start()
run_pod(cluster)
for program in cluster.running:
    program.kill()
print("PODS", len(cluster.host.pids()))
cluster.start()
print("RUNNING", len(cluster.running))
print("PODS", len(cluster.host.pids()))
cluster.stop()
state()
""",
    )

    # The network process of the pod, and the sleep.
    assert [line for line in done.stdout.splitlines() if line[0] in "PR"] == ["PODS 2", "RUNNING 7", "PODS 0"], done
    before, after = states(done.stdout)
    assert after == before


def test_a_given_cluster_that_does_not_answer_is_not_replaced(checkout, tmp_path):
    """A named cluster is always used."""
    missing = tmp_path / "none"
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.kubernetes", "start"],
        cwd=checkout,
        env=os.environ | {"LAUNCH_TEST_KUBECONFIG": str(missing)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert f"LAUNCH_TEST_KUBECONFIG={missing}: Invalid kube-config file" in done.stderr
