"""Root directories of newer Debian releases, for newer versions of Slurm and Docker than those of the host.

`make` fills one with debootstrap and apt-get; `enter` runs a command in it. The suites of the project run there
unchanged: namespaces let them use the same ports and folders as those of the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.engines.docker.daemon import EngineError, unmount_below
from tests.engines.docker.packages import install

_BASE = Path("/var/tmp/launch-releases")
_CHECKOUT = Path(__file__).resolve().parents[3]
_ENTER = Path(__file__).with_name("enter.sh")
_MIRROR = os.environ.get("LAUNCH_DEBIAN_MIRROR", "http://deb.debian.org/debian")
RELEASES = ("trixie", "forky")
"""Debian 13, with Slurm 24.11 and Docker 26.1, and the one after it, with Slurm 26.05 and Docker 28.5."""
_PACKAGES = [
    *("make", "git", "procps", "iproute2", "iptables", "busybox-static", "hostname", "ca-certificates"),
    *("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server-core", "mariadb-client-core"),
    *("openssh-server", "openssh-client", "docker.io", "docker-cli", "containerd", "runc", "docker-registry"),
    "python3",  # the images of the tests are made from it
    # Libraries of a Python that was built on the host.
    *("libssl3t64", "libsqlite3-0", "libffi8", "libbz2-1.0", "liblzma5", "libreadline8t64", "zlib1g"),
]
_NAMESPACES = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--cgroup", "--net"]
_NO_SERVICES = "#!/bin/sh\nexit 101\n"
_MARIADB = "libmariadb.so.3"
_INSTALLED = "var/lib/launch-packages"
# With /proc, because the package docker-registry looks for its service there, and with the name servers of the host.
# The lists of a release in preparation expire after a week, and those of a mirror may be older.
_INSTALL = """
mount --make-rprivate /
mount -t proc proc "$0/proc"
mount --bind /etc/resolv.conf "$0/etc/resolv.conf"
chroot "$0" apt-get --option Acquire::Check-Valid-Until=false update
exec chroot "$0" apt-get install --yes --no-install-recommends "$@"
"""


def root_of(release: str) -> Path:
    """Return the root directory of the release, which may not exist."""
    return _BASE / release


def make(release: str, mirror: str = _MIRROR) -> Path:
    """Return the root directory of the release with all packages; it takes minutes if there is none.

    Raises:
        EngineError: not root, or a step has failed.
    """
    root = root_of(release)
    stamp = root / _INSTALLED
    if stamp.exists() and stamp.read_text().split() == _PACKAGES:
        return root
    if os.geteuid() != 0:
        raise EngineError("only root can make the root directory of a Debian release")
    if root.exists():
        _install(root)
        return root
    install(debootstrap="debootstrap")
    partial = _BASE / f"{release}.partial"
    _remove(partial)
    _BASE.mkdir(parents=True, exist_ok=True)
    # Debian 12's debootstrap does not know later releases than its next one; all have the same script.
    known = Path("/usr/share/debootstrap/scripts") / release
    used = [] if known.exists() else [str(known.with_name("sid"))]
    _run("debootstrap", "--variant=minbase", release, str(partial), mirror, *used)
    policy = partial / "usr/sbin/policy-rc.d"
    policy.write_text(_NO_SERVICES)
    policy.chmod(0o755)
    (partial / "etc/resolv.conf").touch()
    _install(partial)
    _use_library_of_host(partial)
    partial.rename(root)
    return root


def _install(root: Path) -> None:
    _run("unshare", "--mount", "--pid", "--fork", "sh", "-ec", _INSTALL, str(root), *_PACKAGES)
    (root / _INSTALLED).write_text("\n".join(_PACKAGES))


def _use_library_of_host(root: Path) -> None:
    # slurmdbd of Debian 13 ends with "_check_mysql_concat_is_sane" with the library of its own release.
    found = next(Path("/usr/lib").glob(f"*-linux-gnu/{_MARIADB}"), None)
    if found is not None:
        shutil.copy(found, root / "usr/local/lib" / _MARIADB)
        _run("chroot", str(root), "ldconfig")


def enter(release: str, command: Sequence[str]) -> int:
    """Run a command in the release, with the checkout and the running Python of the host; return its exit status.

    Raises:
        EngineError: there is no root directory, or its Python would be that of the release.
    """
    root = root_of(release)
    if not root.exists():
        raise EngineError(f"there is no {root}; as root, `python -m tests.engines.releases make {release}` makes it")
    env = {**os.environ, "ENTER_BIND": ":".join(map(str, bound_folders()))}
    return subprocess.run(entering(root, command), env=env, check=False).returncode


def entering(root: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one with a root directory and namespaces of its own."""
    return ["unshare", *_NAMESPACES, "sh", str(_ENTER), str(root), *command]


def bound_folders(prefixes: Sequence[str] = (sys.prefix, sys.base_prefix), checkout: Path = _CHECKOUT) -> list[Path]:
    """Return the folders of the host that the tests need: the checkout, the environment and its Python.

    Raises:
        EngineError: a prefix is a folder that each release has itself.
    """
    found: list[Path] = []
    for folder in (checkout, *map(Path, prefixes)):
        if folder in {Path("/"), Path("/usr")}:
            raise EngineError(
                f"Python below {folder} cannot be used in another release: make the environment with a Python of its"
                " own folder, for example of pyenv or uv"
            )
        if not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return found


def remove(release: str) -> bool:
    """Remove the root directory of the release; return whether there was one."""
    root = root_of(release)
    existed = root.exists()
    _remove(root)
    return existed


def _remove(root: Path) -> None:
    unmount_below(root)
    if root.exists():
        # Not across a mount that is left, because it may be a folder of the host.
        _run("rm", "-rf", "--one-file-system", str(root))


def _run(*command: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=env, check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise EngineError(f"{' '.join(command[:3])} failed with {done.returncode}:\n{last}")
