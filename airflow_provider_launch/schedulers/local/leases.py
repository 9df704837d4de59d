"""Leases of ports and GPUs of this host, each to one app at a time.

A lease is a lock file of the supervisor that its shims inherit, so it lasts while any of them lives.

Imports only the standard library, because the supervisor uses it too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_provider_launch.schedulers.environment import port_variable
from airflow_provider_launch.schedulers.local import layout, processes, safe_files
from airflow_provider_launch.util.untrusted import UntrustedError, clean_text

FIRST_PORT, LAST_PORT = 20000, 32767
"""Below the range that Linux uses for outgoing connections."""
GPUS = "gpus.json"
_OWNER_BYTES = 200
"""The longest app id."""
_NO_LOCK_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ETXTBSY}
"""Errors of `open` for a link, a directory, a socket, or a program that runs: no process can hold a lease by it."""
_TRIES, _PAUSE_S = 20, 0.05
_MARK = re.compile("\0([A-Z0-9_]+)\0")
_SHOWN_MARK = re.compile(r"(?:\0|\\x00)([A-Z0-9_]+)(?:\0|\\x00)")


def port_mark(variable: str) -> str:
    """Return the text in a request that stands for a port which is chosen at the start; texts of users have no NUL."""
    return f"\0{variable}\0"


def with_ports(text: str, ports: Mapping[str, int]) -> str:
    """Return the text with the marks replaced by the ports."""
    return _MARK.sub(lambda mark: str(ports[mark[1]]), text) if "\0" in text else text


def show_marks(text: str) -> str:
    """Return the text for people, in which `repr` may have escaped the marks."""
    return _SHOWN_MARK.sub(r"<\1>", text)


def gpu_env(devices: Sequence[str] | None) -> dict[str, str]:
    """Return the variables that restrict CUDA to these devices; empty for a replica without GPUs."""
    if not devices:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def free_gpus(root: str, devices: Sequence[str]) -> list[str]:
    """Return the devices that no app has leased now."""
    return [device for device in devices if not _is_locked(_gpu_lock(root, device))]


def port_owner(root: str, port: int) -> str:
    """Return the id of the app that has leased the port; empty if it is not leased."""
    path = _port_lock(root, port)
    return (_owner_in(path) or "(unknown)") if _is_locked(path) else ""


def _is_locked(path: str) -> bool:
    try:
        return processes.is_locked(path)
    except OSError as error:
        if error.errno not in _NO_LOCK_FILE:
            raise
        return False  # the next reservation renames what is there


def _owner_in(path: str) -> str:
    try:
        with safe_files.open_regular(path) as file:
            return clean_text(file.read(_OWNER_BYTES).decode("utf-8", "replace"))
    except (FileNotFoundError, safe_files.NotRegularError):
        return ""


class Leases:
    """The leases of one app. The choice is stored, so that the next supervisor leases the same ports and GPUs."""

    def __init__(self, root: str, app_dir: str, app_id: str = "") -> None:
        self._root = root
        self._dir = app_dir
        self._app_id = app_id
        self._reserved: dict[str, int] = {}
        self._chosen: dict[str, int] = {}
        self.is_partial = False
        """Some GPUs are still leased by shims of a former supervisor: try again, until those have ended."""
        self.conflict = ""
        """The port of the request that another app has leased, and that app; empty: none."""

    def ports(self, roles: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return variable name to port for every port of every role; 0 in the request means "choose".

        May be called again after an OSError, and then returns the same ports. Without a free port, `conflict` is set.

        Raises:
            UntrustedError: the stored ports are not those that a supervisor has chosen.
        """
        stored: dict[str, int] = layout.read_json(f"{self._dir}/{layout.PORTS}") or {}
        _refuse_other_ports(stored, roles)
        chosen = self._chosen = {**self._chosen, **stored}
        for port in chosen.values():
            self._reserve(_port_lock(self._root, port))
        found: dict[str, int] = {}
        self.conflict = ""
        for role in roles:
            for name, port in role["ports"].items():
                if port:
                    self._reserve_fixed(port)
                variable = port_variable(role["name"], name)
                if port == 0 and variable not in chosen:
                    free = self._choose_port()
                    if free is None:
                        self.conflict = f"no port from {FIRST_PORT} to {LAST_PORT} is free on this host"
                        return found
                    chosen[variable] = free
                found[variable] = port or chosen[variable]
        # Only if changed: the next supervisor must be able to start on a full disk.
        if chosen != stored:
            layout.write_json(f"{self._dir}/{layout.PORTS}", chosen)
        return found

    def gpus(
        self, roles: Sequence[Mapping[str, Any]], devices: Sequence[str], shims_live: Callable[[], bool]
    ) -> dict[str, list[str]] | None:
        """Return `role/replica` to devices of the host; None if too few are free.

        `shims_live` returns whether a shim lives that inherited the leases of a former supervisor.

        Raises:
            UntrustedError: the stored GPUs are not devices of the host.
        """
        stored: dict[str, list[str]] | None = layout.read_json(f"{self._dir}/{GPUS}")
        if stored is not None and not {*chain.from_iterable(stored.values())} <= {*devices}:
            raise UntrustedError(f"{GPUS} names other GPUs than those of this host")
        if stored is not None and self._reserve_again(stored, shims_live):
            return stored
        # Reuse GPUs of a lost lease first, so that none stays reserved for nothing.
        free = iter(sorted(devices, key=lambda device: _gpu_lock(self._root, device) not in self._reserved))
        found: dict[str, list[str]] = {}
        for role in roles:
            for k in range(len(role["replicas"]) if role["gpu"] else 0):
                group: list[str] = []
                while len(group) < role["gpu"]:
                    taken = next((d for d in free if self._reserve(_gpu_lock(self._root, d), wait=True)), None)
                    if taken is None:
                        return None
                    group.append(taken)
                found[f"{role['name']}/{k}"] = group
        layout.write_json(f"{self._dir}/{GPUS}", found)
        return found

    def _reserve_again(self, stored: Mapping[str, Sequence[str]], shims_live: Callable[[], bool]) -> bool:
        """Lease the stored GPUs again; return whether this process or a live shim has all of them."""
        locks = [_gpu_lock(self._root, device) for group in stored.values() for device in group]
        # Several tries: a shim that is just starting has the lease, but not yet its own lock.
        for _ in range(_TRIES):
            reserved = [self._reserve(lock) for lock in locks]
            self.is_partial = not all(reserved)
            if not self.is_partial or shims_live():
                return True
            time.sleep(_PAUSE_S)
        self.is_partial = False
        return False

    def _reserve_fixed(self, port: int) -> None:
        path = _port_lock(self._root, port)
        if path in self._reserved:
            return
        if self._reserve(path, wait=True):
            os.ftruncate(self._reserved[path], 0)
            os.pwrite(self._reserved[path], self._app_id.encode(), 0)
        elif (owner := _owner_in(path)) != self._app_id:  # else shims of a former supervisor of this app have it
            self.conflict = f"port {port} is leased to app {owner!r}"

    def _choose_port(self) -> int | None:
        # Random, so that two hosts with one root, or two roots on one host, rarely choose the same port.
        import random  # here, because most apps need no port

        ports = range(FIRST_PORT, LAST_PORT + 1)
        for port in random.SystemRandom().sample(ports, len(ports)):
            if _is_free(port) and self._reserve(_port_lock(self._root, port)):
                return port
        return None

    def _reserve(self, path: str, *, wait: bool = False) -> bool:
        if path in self._reserved:
            return True
        safe_files.make_dirs(os.path.dirname(path))
        lock = processes.take_lock if wait else processes.try_lock
        try:
            fd = lock(path)
        except OSError as error:
            if error.errno not in _NO_LOCK_FILE:
                raise
            # The program of any app can put it there, and it would stay after the end of that app.
            with contextlib.suppress(OSError):
                os.rename(path, f"{path}.{time.monotonic_ns()}.replaced")
            fd = lock(path)
        if fd is not None:
            self._reserved[path] = fd
        return fd is not None


def _refuse_other_ports(stored: Mapping[str, Any], roles: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ports that a program has written: it could name any lease of another app, or all of them."""
    wanted = {port_variable(role["name"], name) for role in roles for name in role["ports"]}
    if not stored.keys() <= wanted or not all(type(port) is int and 0 < port < 2**16 for port in stored.values()):
        raise UntrustedError(f"{layout.PORTS} has other ports than those of the roles")


def _port_lock(root: str, port: int) -> str:
    return f"{root}/ports/{port}.lock"


def _gpu_lock(root: str, device: str) -> str:
    return f"{root}/gpus/" + re.sub(r"[^A-Za-z0-9_.-]", "_", device) + ".lock"


def _is_free(port: int) -> bool:
    import socket  # here, because it takes as long as half of the interpreter's start, and most apps need no port

    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
