"""Ports and GPUs of this host, leased to one app at a time.

A lease is a lock file held by the supervisor and, by inheritance, by its shims: it lasts while any of them lives.

Needs nothing but the standard library: it also runs in the bare interpreter of the supervisor.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_launch.schedulers.environment import port_variable
from airflow_provider_launch.schedulers.local import layout, processes, safe_files

FIRST_PORT, LAST_PORT = 20000, 32767
"""Below the range from which Linux takes the ports of outgoing connections."""
GPUS = "gpus.json"
_TRIES, _PAUSE_S = 20, 0.05


def gpu_env(devices: Sequence[str] | None) -> dict[str, str]:
    """Return the variables that restrict CUDA to these devices; none for a replica without."""
    if not devices:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def free_gpus(root: str, devices: Sequence[str]) -> list[str]:
    """Return the devices that no app holds now."""
    return [device for device in devices if not processes.is_locked(_gpu_lock(root, device))]


class Leases:
    """What one app holds. What was chosen is on record, so that the next supervisor chooses the same."""

    def __init__(self, root: str, app_dir: str) -> None:
        self._root = root
        self._dir = app_dir
        self._held: dict[str, int] = {}
        self._chosen: dict[str, int] = {}
        self.is_partial = False
        """Only shims of a former supervisor hold some of the GPUs: ask again, they are free when those have ended."""

    def ports(self, roles: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return variable name to port for every port of every role; 0 in the request means "choose".

        May be called again after an OSError, and chooses the same then.
        """
        noted: dict[str, int] = layout.read_json(f"{self._dir}/{layout.PORTS}") or {}
        chosen = self._chosen = {**self._chosen, **noted}
        for port in chosen.values():
            self._hold(_port_lock(self._root, port))
        found: dict[str, int] = {}
        for role in roles:
            for name, port in role["ports"].items():
                variable = port_variable(role["name"], name)
                if port == 0 and variable not in chosen:
                    chosen[variable] = self._choose_port()
                found[variable] = port or chosen[variable]
        # Only news: a supervisor that follows another must be able to begin on a full disk.
        if chosen != noted:
            layout.write_json(f"{self._dir}/{layout.PORTS}", chosen)
        return found

    def gpus(
        self, roles: Sequence[Mapping[str, Any]], devices: Sequence[str], shims_live: Callable[[], bool]
    ) -> dict[str, list[str]] | None:
        """Return `role/replica` to devices; None if too few are free.

        Args:
            roles: of the request.
            devices: all of the host.
            shims_live: whether a shim lives that inherited what a former supervisor held.
        """
        known: dict[str, list[str]] | None = layout.read_json(f"{self._dir}/{GPUS}")
        if known is not None and self._hold_again(known, shims_live):
            return known
        # Those that are left of a lost lease first: then nothing is held in vain.
        free = iter(sorted(devices, key=lambda device: _gpu_lock(self._root, device) not in self._held))
        found: dict[str, list[str]] = {}
        for role in roles:
            for k in range(len(role["replicas"]) if role["gpu"] else 0):
                group: list[str] = []
                while len(group) < role["gpu"]:
                    taken = next((d for d in free if self._hold(_gpu_lock(self._root, d), wait=True)), None)
                    if taken is None:
                        return None
                    group.append(taken)
                found[f"{role['name']}/{k}"] = group
        layout.write_json(f"{self._dir}/{GPUS}", found)
        return found

    def _hold_again(self, known: Mapping[str, Sequence[str]], shims_live: Callable[[], bool]) -> bool:
        """Take what is on record as leased; return whether it still is, by us or by a shim that lives."""
        locks = [_gpu_lock(self._root, device) for group in known.values() for device in group]
        # More than once: a shim may be on its way, which holds the lease already but not its own lock.
        for _ in range(_TRIES):
            held = [self._hold(lock) for lock in locks]
            self.is_partial = not all(held)
            if not self.is_partial or shims_live():
                return True
            time.sleep(_PAUSE_S)
        self.is_partial = False
        return False

    def _choose_port(self) -> int:
        # Random, so that two hosts' users of one root and two roots of one host seldom meet.
        ports = range(FIRST_PORT, LAST_PORT + 1)
        for port in random.SystemRandom().sample(ports, len(ports)):
            if _is_free(port) and self._hold(_port_lock(self._root, port)):
                return port
        raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")

    def _hold(self, path: str, *, wait: bool = False) -> bool:
        if path in self._held:
            return True
        safe_files.make_dirs(os.path.dirname(path))
        fd = processes.take_lock(path) if wait else processes.try_lock(path)
        if fd is not None:
            self._held[path] = fd
        return fd is not None


def _port_lock(root: str, port: int) -> str:
    return f"{root}/ports/{port}.lock"


def _gpu_lock(root: str, device: str) -> str:
    return f"{root}/gpus/" + re.sub(r"[^A-Za-z0-9_.-]", "_", device) + ".lock"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
