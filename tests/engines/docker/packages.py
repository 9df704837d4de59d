"""Installs missing Debian packages, as root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.engines.docker.daemon import EngineError

_LOCK = Path("/run/launch-packages.lock")
_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICES = "#!/bin/sh\n# Written by the tests of airflow_provider_launch while they install packages.\nexit 101\n"


def install(**programs: str) -> None:
    """Install the package of each missing program: `install(dockerd="docker.io")`."""
    packages = sorted({package for program, package in programs.items() if _is_missing(program)})
    if not packages:
        return
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise EngineError(f"{names} can only be installed with apt-get, which is missing here")
    if os.geteuid() != 0:
        raise EngineError(f"only root can install the missing packages: apt-get install {names}")
    with _alone(), _services_stay_off():
        wanted = ["install", "--yes", "--no-install-recommends", *packages]
        # Update the package lists only after a failure, because that takes longest.
        if _apt(*wanted).returncode != 0:
            _apt("update")
            if (tried := _apt(*wanted)).returncode != 0:
                last = "\n".join(tried.stdout.strip().splitlines()[-5:])
                raise EngineError(f"apt-get install {names} failed with {tried.returncode}:\n{last}")


def needs_libraries(program: str) -> bool:
    """Return whether a program needs shared libraries, which its image would lack."""
    return subprocess.run(["ldd", program], check=False, capture_output=True).returncode == 0


def _is_missing(program: str) -> bool:
    # `sbin` is not on every user's path.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = shutil.which(program, path=path)
    # Two packages have a busybox, and many hosts have the other one.
    return found is None or (program == "busybox" and needs_libraries(found))


def _apt(*args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "--quiet", "--option=DPkg::Lock::Timeout=120", *args]
    return subprocess.run(
        command,
        env=env,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    # The first process to finish would allow the services of the other to start.
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    # docker.io would start its service, but only one daemon may run on a host.
    if _POLICY.exists() and _POLICY.read_text() != _NO_SERVICES:
        yield
        return
    # Ours may be left from a killed run.
    _POLICY.write_text(_NO_SERVICES)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
