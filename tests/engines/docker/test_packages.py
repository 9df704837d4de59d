"""Installation of missing packages, with a fake apt-get and `policy-rc.d` in a folder of the test."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine("dockerd")

OWN_SBIN = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /usr/sbin; exec "$@"', "sh"]
APT = """#!/bin/sh
services() {{ if [ -x /usr/sbin/policy-rc.d ]; then echo off; else echo on; fi >>{log}; }}
echo "$@" >>{log}
services
{apt}
services
"""
INSTALL = '$0 -c "from tests.engines.docker.packages import install; install({})"'


@pytest.fixture
def run(checkout, tmp_path, monkeypatch):
    """Return a function that runs a script with the fake apt-get, and returns its output and the remaining files."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def run(script: str, apt: str = "") -> list[str]:
        program = tmp_path / "apt-get"
        program.write_text(APT.format(log=tmp_path / "log", apt=apt))
        program.chmod(0o755)
        command = [*OWN_SBIN, "sh", "-c", f"{script}; ls /usr/sbin", sys.executable]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
        return [line.rpartition(" ")[2] for line in [*(tmp_path / "log").read_text().splitlines(), done.stdout.strip()]]

    return run


def test_services_stay_off_until_the_last_of_two_is_done(run):
    """The end of the first process must not let packages of the second start services."""
    one = INSTALL.format("nosuch='one'")
    assert run(f"{one} & sleep 0.3; {one}; wait", apt="sleep 1") == ["one", "off", "off", "one", "off", "off", ""]


def test_what_a_killed_one_left_is_removed(run):
    """Otherwise services of the host could not start any more."""
    one = INSTALL.format("nosuch='one'")
    output = run(
        f"{one}; ls /usr/sbin; touch /usr/sbin/again; {one}", apt="[ -e /usr/sbin/again ] || { kill -9 $PPID; exit; }"
    )
    assert output == ["one", "off", "one", "off", "off", "policy-rc.d\nagain"]


def test_that_of_the_host_stays(run):
    one = INSTALL.format("nosuch='one'")
    script = "echo exit 101 >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d"
    assert run(f"{script}; {one}") == ["one", "off", "off", "policy-rc.d"]


def test_a_busybox_with_libraries_is_none(run, tmp_path):
    """Debian has a package of each kind; an image has the program alone."""
    shutil.copy("/bin/true", tmp_path / "busybox")
    assert run(INSTALL.format("busybox='static'"))[0] == "static"
