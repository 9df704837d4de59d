"""Our Slurm cluster for the tests: all sessions share it, and the last one stops it.

Its files are below `/var/tmp/launch-slurm`, its ports from 26817 on. It can run next to a Slurm of the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.engines.docker.daemon import EngineError
from tests.engines.slurm.cluster import Cluster, install_programs, why_missing

_BASE = Path("/var/tmp/launch-slurm")
OURS = Cluster(_BASE / "cluster", 26817)
_KEEP = "started-by-a-person"


class Use:
    """A use of our cluster, which stays up while it has users."""

    def __init__(self) -> None:
        self._users: IO[str] | None = None

    def begin(self, *, start: bool, keep: bool = False) -> str:
        """Return the directory of the cluster. `start` installs and starts it; `keep` keeps it up without users."""
        if start:
            install_programs()
        if reason := why_missing():
            raise EngineError(reason)
        if not start and not OURS.answers():
            raise EngineError("no Slurm cluster of the tests runs; as root, LAUNCH_REQUIRE_ENGINES=slurm starts one")
        with _alone():
            if not OURS.answers():
                OURS.start()
            self._users = (_BASE / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if keep:
                (_BASE / _KEEP).touch()
        return str(OURS.dir)

    def end(self) -> None:
        """Stop the cluster if it has no other users."""
        if self._users is None:
            return
        with _alone(), self._users as users:
            self._users = None
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (_BASE / _KEEP).exists():
                    stop()


@contextlib.contextmanager
def own_cluster(port: int, **options: Any) -> Iterator[Cluster]:
    """Start a cluster for one test, and stop it; clusters of tests that were killed are ended, too."""
    with contextlib.ExitStack() as stack:
        with _alone():
            _end_left()
            base = Path(tempfile.mkdtemp(prefix=f"{_BASE.name}-", dir=_BASE.parent))
            stack.enter_context(_used(base))
        base.chmod(0o755)  # munge's socket is for all
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        cluster = Cluster(base / "cluster", port, **options)
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def _end_left() -> None:
    for base in _BASE.parent.glob(f"{_BASE.name}-*"):
        with contextlib.suppress(OSError), _used(base):
            Cluster(base / "cluster", 0).stop()
            shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def _used(base: Path) -> Iterator[None]:
    """Keep the lock of a running test; it ends with the process.

    Raises:
        BlockingIOError: another process holds it.
    """
    with (base / "used").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def stop() -> bool:
    """Stop our cluster and remove its files; return whether there was one."""
    ran = OURS.conf.exists()
    OURS.stop()
    OURS.remove()
    (_BASE / _KEEP).unlink(missing_ok=True)
    return ran


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    _BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (_BASE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
