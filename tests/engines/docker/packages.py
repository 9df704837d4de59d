"""Debian packages, where root asks for them and only if they are missing."""

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
    """Install the package of each program that is not on the path: `install(dockerd="docker.io")`."""
    packages = sorted({package for program, package in programs.items() if _is_missing(program)})
    if not packages:
        return
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise EngineError(f"{names} can only be installed with apt-get here, and there is none")
    if os.geteuid() != 0:
        raise EngineError(f"only root can install what is missing: apt-get install {names}")
    with _alone(), _services_stay_off():
        wanted = ["install", "--yes", "--no-install-recommends", *packages]
        # The lists of packages may be missing or too old; fetching them takes longer than the rest.
        if _apt(*wanted).returncode != 0:
            _apt("update")
            if (tried := _apt(*wanted)).returncode != 0:
                last = "\n".join(tried.stdout.strip().splitlines()[-5:])
                raise EngineError(f"apt-get install {names} failed with {tried.returncode}:\n{last}")


def needs_libraries(program: str) -> bool:
    """Tell whether a program is linked with shared libraries, which an image made of it alone would lack."""
    return subprocess.run(["ldd", program], check=False, capture_output=True).returncode == 0


def _is_missing(program: str) -> bool:
    # `sbin` is not on everybody's path.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = shutil.which(program, path=path)
    # Two packages have a busybox, and many a host the other one.
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
    # Who is done first would let the services of the other start.
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    # docker.io would start its service, and there must never be two daemons on one host.
    if _POLICY.exists() and _POLICY.read_text() != _NO_SERVICES:
        yield
        return
    # Ours may be there already: left by a run that was killed.
    _POLICY.write_text(_NO_SERVICES)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
