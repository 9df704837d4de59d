"""The Kubernetes cluster of the tests: a given one, else our own if required.

Ours has its data below `/var/tmp/launch-kubernetes` and its sockets below `/run/launch-kubernetes`. Sessions share it:
the last one stops it and removes its data, unless a person started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import install
from tests.engines.kubernetes import programs
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.kueue import Kueue

GIVEN = "LAUNCH_TEST_KUBECONFIG"
# A second cluster on one host needs another name and network namespace, as in the tests of this engine.
NAME = os.environ.get("LAUNCH_TEST_CLUSTER_NAME", "launch-kubernetes")
_FOUND = "LAUNCH_TESTS_KUBECONFIG_FOUND"  # passes the cluster found by the controller to the workers of `pytest -n`
say = programs.say
_KEEP = "started-by-a-person"
_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "busybox": "busybox-static",
}


def ours() -> Cluster:
    """Return our cluster, running or not."""
    return Cluster(NAME, programs.paths())


def find() -> tuple[Path | None, str]:
    """Return the kubeconfig of a running cluster, or None and the reason."""
    if given := os.environ.get(GIVEN):
        reason = _why_no_answer(given)
        return (None, f"{GIVEN}={given}: {reason}") if reason else (Path(given), "")
    cluster = ours()
    if cluster.api_server.pid is None:
        return None, "no Kubernetes cluster is known"
    # Do not replace it: it may only be slow on a busy machine, and others use it.
    cluster.api_server.wait_until_ready()
    return cluster.kubeconfig, ""


def found() -> Path:
    """Return the kubeconfig that the session has already found."""
    return Path(os.environ[_FOUND])


def why_not_ours() -> str | None:
    """Return the reason why tests may not stop programs of the found cluster, or None."""
    if _FOUND not in os.environ:
        return find()[1] or "no cluster was found"
    return None if found() == ours().kubeconfig else f"{found()} is not a cluster of our own"


def why_no_kueue(*, build: bool) -> str | None:
    """Return the reason why the found cluster cannot have queues, or None; `build` starts missing builds."""
    if reason := why_not_ours():
        return reason
    if programs.KUEUE.folder.exists():
        return None
    if not build:
        return "Kueue is not built; `make cluster ARGS=build` does it"
    programs.build_in_background(programs.KUEUE)
    return None


def start_kueue() -> None:
    """Start Kueue in our cluster if it does not run; another process may still be building it."""
    programs.build(modules=[programs.KUEUE])
    with _alone():
        Kueue(ours()).start()


class Use:
    """A use of a cluster; ours stays up while it has users."""

    def __init__(self) -> None:
        self._users: IO[str] | None = None

    def begin(self, *, start: bool, keep: bool = False, say: Callable[[str], None] = say) -> Path:
        """Return the kubeconfig of a cluster; `start` one if none answers. `keep` keeps it up without users."""
        os.environ.pop(_FOUND, None)  # may come from an outer session
        kubeconfig = self._begin(start=start, keep=keep, say=say)
        os.environ[_FOUND] = str(kubeconfig)
        return kubeconfig

    def _begin(self, *, start: bool, keep: bool, say: Callable[[str], None]) -> Path:
        kubeconfig, reason = find()
        if kubeconfig is None and (not start or GIVEN in os.environ):
            cure = f"set {GIVEN} to a cluster (kind, minikube), or as root LAUNCH_REQUIRE_ENGINES=kubernetes starts one"
            raise EngineError(f"{reason}; {cure}")
        if GIVEN in os.environ:
            assert kubeconfig
            return kubeconfig
        if platform.system() != "Linux" or os.geteuid() != 0:
            raise EngineError(f"{reason or 'the cluster belongs to root'}; only root can use or start one on Linux")
        if kubeconfig is None:
            # Before other processes have to wait.
            programs.build(say)
        cluster = ours()
        with _alone():
            if find()[0] is None:
                install(**_PACKAGES)
                cluster.start()
            self._users = (cluster.run / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if keep:
                (cluster.run / _KEEP).touch()
        return cluster.kubeconfig

    def end(self) -> None:
        """Stop our cluster if it has no other users."""
        if self._users is None:
            return
        with _alone(), self._users as users:
            self._users = None
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (ours().run / _KEEP).exists():
                    stop()


def stop() -> bool:
    """Stop our cluster and remove its files; return whether there was one."""
    cluster = ours()
    ran = bool(cluster.running)
    cluster.stop()
    return ran


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with Path("/run", f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _why_no_answer(kubeconfig: str) -> str | None:
    try:
        import kubernetes
        import urllib3
    except ImportError as error:
        return f"{error}: pip install kubernetes"
    try:
        with kubernetes.config.new_client_from_config(kubeconfig) as client:
            client.configuration.retries = 0
            kubernetes.client.VersionApi(client).get_code(_request_timeout=10)
    except (
        OSError,
        kubernetes.config.ConfigException,
        kubernetes.client.ApiException,
        urllib3.exceptions.HTTPError,
    ) as error:
        return str(error)
    return None
