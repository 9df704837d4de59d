"""Builds of the programs of the cluster, with a fake compiler, because the real one takes minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.apps import until

GO = """#!/bin/sh
if [ "$1" = env ]; then echo {version}; echo {toolchain}; exit; fi
if [ "$1" = list ]; then echo {module}; exit; fi
echo "$@" >> {log}
while [ "$1" != -o ]; do shift; done
sleep 0.05
{build}
"""
PROGRAMS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "coredns", "kueue"}


@pytest.fixture
def build(checkout, tmp_path):
    def build(
        version: str = "go1.99.1",
        toolchain: str = "local",
        build: str = 'echo built > "$2"',
        how: Sequence[str] = ("-m", "tests.engines.kubernetes", "build"),
        **variables: str,
    ) -> subprocess.Popen[str]:
        go = tmp_path / "bin/go"
        go.parent.mkdir(exist_ok=True)
        module = tmp_path / "module"
        (module / "config/components/crd/bases").mkdir(parents=True, exist_ok=True)
        (module / "config/components/crd/patches").mkdir(exist_ok=True)
        (module / "config/components/webhook").mkdir(exist_ok=True)
        (module / "config/components/webhook/manifests.yaml").touch()
        log = tmp_path / "log"
        go.write_text(GO.format(version=version, toolchain=toolchain, log=log, module=module, build=build))
        go.chmod(0o755)
        env = os.environ | {"PATH": f"{go.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        env |= variables
        command = [sys.executable, *how]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=checkout, env=env, stdout=pipe, stderr=pipe, text=True)

    return build


def test_two_sessions_build_once(build, tmp_path):
    """The second process waits, and finds all programs."""
    output = [one.communicate() for one in [build(), build()]]

    found = {Path(line) for line in output[0][0].splitlines()}
    assert {one.name for one in found} == PROGRAMS, output
    assert {one.read_text() for one in found} == {"built\n"}
    assert output[0][0] == output[1][0]
    assert len((tmp_path / "log").read_text().splitlines()) == len(PROGRAMS)
    said = "".join(text for _, text in output).splitlines()
    assert sorted(line.split(" (")[0] for line in said) == [
        *("building coredns 1.15.0", "building kubernetes 1.36.3", "building kueue 0.15.0")
    ]
    assert all("minutes, once" in line for line in said)


def test_the_oldest_version_is_built_next_to_the_newest(build, tmp_path):
    """Only Kubernetes and its etcd differ."""
    newest = build().communicate()[0].splitlines()
    out, said = build(LAUNCH_TEST_KUBERNETES="oldest").communicate()

    assert [line.split(".")[0] for line in said.splitlines()] == ["building kubernetes-oldest 1"]
    differs = {Path(line).name for line in {*out.splitlines()} - {*newest}}
    assert differs == PROGRAMS - {"coredns", "kueue"}


def test_what_is_built_stays(build, tmp_path):
    build().communicate()
    out, said = build(version="go1.1").communicate()

    assert len(out.splitlines()) == len(PROGRAMS)
    assert said == ""
    assert len((tmp_path / "log").read_text().splitlines()) == len(PROGRAMS)


def test_a_session_leaves_what_it_builds_in_the_background_behind(build, tmp_path):
    """A child that still runs when pytest ends fails a session whose tests have passed."""
    go_on = tmp_path / "go-on"
    code = "from tests.engines.kubernetes import programs; programs.build_in_background(programs.KUEUE)"
    session = build(
        build=f'while [ ! -e {go_on} ]; do sleep 0.05; done; echo built > "$2"', how=["-W", "always", "-c", code]
    )

    output = session.communicate()
    go_on.touch()

    assert output == ("", "")
    until(lambda: [*(tmp_path / "cache").rglob("kueue-0*/kueue")])


@pytest.mark.parametrize(("version", "toolchain"), [("go1.19.8", ""), ("go1.24.1", "local")])
def test_an_old_compiler_is_refused_with_the_cure(build, version, toolchain):
    """A version older than the setting prints nothing for it."""
    out, said = build(version, toolchain).communicate()

    assert out == ""
    assert "needs Go 1.26" in said
    assert version in said
    assert "LAUNCH_TEST_KUBECONFIG" in said


def test_a_failed_build_leaves_nothing_and_shows_why(build, tmp_path):
    """An incomplete folder must not be used."""
    first = build(build='case "$2" in *kubelet) echo no space left; exit 1;; *) echo built > "$2";; esac')
    out, said = first.communicate()

    assert (first.returncode, out) == (1, "")
    assert "go build k8s.io/kubernetes/cmd/kubelet failed with 1:\nno space left" in said
    assert [one.name for one in (tmp_path / "cache").rglob("*") if one.is_dir()] == [
        "airflow-provider-launch",
        "engines",
    ]
    second = build()
    assert second.communicate()[0]
    assert second.returncode == 0
