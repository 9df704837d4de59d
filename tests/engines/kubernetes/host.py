"""Changes of a cluster to its host, and their restoration."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.engines.docker.daemon import EngineError, unmount_below
from tests.engines.kubernetes.process import alive, until

# The kubelet sets all except the last, which the bridge plugin sets.
SYSCTLS = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
]
# Folders in which kubelet, containerd and the CNI library leave files, independent of their configuration.
FOLDERS = ["/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods"]
CGROUPS = Path("/sys/fs/cgroup")
# The kubelet needs these in the root; systemd enables only those of its services. They do not exist with cgroup v1.
CONTROL = CGROUPS / "cgroup.subtree_control"
CONTROLLERS = ["cpu", "cpuset", "memory", "pids"]


def run(*command: str, check: bool = True) -> str:
    """Run a system command and return its output; without `check` it may be missing."""
    env = os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "LC_ALL": "C"}
    if not shutil.which(command[0], path=env["PATH"]):
        if check:
            raise EngineError(f"there is no {command[0]}")
        return ""  # then there is nothing to restore
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if check and done.returncode != 0:
        raise EngineError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def ip(*words: str, check: bool = True) -> str:
    """Run `ip`."""
    return run("ip", *words, check=check)


@dataclass
class Host:
    """Settings of this host for a cluster; `saved` has the previous values."""

    saved: Path
    cgroup: str
    bridge: str
    address: str

    def prepare(self) -> None:
        """Change the settings; previous values are kept until `restore`."""
        if others := _kubelets():
            # Both would use the same folder for device plugins, independent of their configuration.
            raise EngineError(
                f"a kubelet runs here already, pid {others[0]}: name its cluster in LAUNCH_TEST_KUBECONFIG"
            )
        if not self.saved.exists():
            before = {name: path.read_text() for name in SYSCTLS if (path := Path("/proc/sys", name)).exists()}
            missing = [name for name in FOLDERS if not Path(name).exists()]
            on = CONTROL.read_text().split() if CONTROL.exists() else CONTROLLERS
            off = [name for name in CONTROLLERS if name not in on]
            self.saved.write_text(json.dumps({"sysctls": before, "missing": missing, "controllers": off}))
        # Not loopback, and without its own interface.
        if f" {self.address}/32 " not in ip("-o", "address", "show", "dev", "lo"):
            ip("address", "add", f"{self.address}/32", "dev", "lo")
        # Docker sets the policy to DROP, so that pods could not reach each other.
        if not self._rule("-C"):
            self._rule("-I")
        if CONTROL.exists():
            CONTROL.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        for folder in self._cgroups(make=True):
            folder.mkdir(exist_ok=True)

    def restore(self) -> None:
        """Restore the changes of `prepare` and of the cluster, after the programs have ended."""
        self._end_pods()
        while self._rule("-D"):
            pass
        ip("link", "delete", self.bridge, check=False)
        ip("address", "delete", f"{self.address}/32", "dev", "lo", check=False)
        if not self.saved.exists():
            return
        before = json.loads(self.saved.read_text())
        for name, value in before["sysctls"].items():
            # A Docker engine that was started in the meantime needs this setting.
            if not (name == "net/ipv4/ip_forward" and ip("link", "show", "docker0", check=False)):
                with contextlib.suppress(OSError):
                    Path("/proc/sys", name).write_text(value)
        for name in before["missing"]:
            shutil.rmtree(name, ignore_errors=True)
        for name in before["controllers"]:
            with contextlib.suppress(OSError):  # another process uses it
                CONTROL.write_text(f"-{name}")
        self.saved.unlink()

    def forget(self, network: str, data: Path, run: Path) -> None:
        """Remove leftovers of the cluster outside of its folders."""
        unmount_below(data, run)
        for link in Path("/var/log/containers").glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # another cluster removes its own meanwhile
                if link.is_symlink() and link.readlink().is_relative_to(data):
                    link.unlink()
        for file in Path("/var/lib/cni/results").glob(f"{network}-*"):
            file.unlink()

    def pids(self) -> set[int]:
        """Return the processes of all pods."""
        found = set()
        for folder in self._cgroups():
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(pid) for pid in file.read_text().split()}
        return found - {0}

    def _end_pods(self) -> None:
        def gone() -> bool:
            left = {pid for pid in self.pids() if alive(pid)}
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(gone, 20, "processes of pods do not end")
        for folder in self._cgroups():
            below = sorted((one for one in folder.rglob("*") if one.is_dir()), reverse=True)
            for one in [*below, folder]:
                with contextlib.suppress(OSError):
                    one.rmdir()

    def _cgroups(self, *, make: bool = False) -> list[Path]:
        """Return our folder in each hierarchy that has it; `make` creates it in all."""
        if CONTROL.exists():
            roots = [CGROUPS]
        else:
            roots = [one for one in CGROUPS.iterdir() if one.is_dir() and not one.is_symlink() and one.is_mount()]
        return [found for root in roots if (found := root / self.cgroup).exists() or make]

    def _rule(self, action: str) -> bool:
        words = ["iptables", "-w", action, "FORWARD", "-i", self.bridge, "-o", self.bridge, "-j", "ACCEPT"]
        try:
            run(*words)
        except EngineError:
            if action == "-I":
                raise
            return False
        return True


def _kubelets() -> list[int]:
    """Return the pids of foreign kubelets that can see our files."""
    files = Path("/proc/self/ns/mnt").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = (entry / "comm").read_text() == "kubelet\n" and (entry / "ns/mnt").readlink() == files
            if named and b"--root-dir=/var/tmp/launch-" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
