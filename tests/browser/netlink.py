"""Runs a program that does not notice changes of the network: `python -m tests.browser.netlink PROGRAM ARGS`.

Chromium ends all of its requests with ERR_NETWORK_CHANGED if an interface appears or disappears, also those to this
host, and Airflow's pages do not repeat the requests for their own code. Each container that another test starts has
such an interface. Without sockets of the family netlink Chromium does not notice, and takes the network as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import sys

_NUMBER_OF_SOCKET = {"x86_64": 41, "aarch64": 198}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_AT_NUMBER, _AT_FIRST_ARGUMENT = 0, 16
_RETURN_ERRNO, _RETURN_ALLOW = 0x00050000, 0x7FFF0000


class _Step(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step))]


def refuse_netlink() -> None:
    """Let this process, and each program it becomes or starts, make no socket of the family netlink."""
    steps = (
        _Step(_LOAD, 0, 0, _AT_NUMBER),
        _Step(_JUMP_IF_EQUAL, 0, 3, _NUMBER_OF_SOCKET[platform.machine()]),
        _Step(_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
        _Step(_JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
        _Step(_RETURN, 0, 0, _RETURN_ERRNO | errno.EAFNOSUPPORT),
        _Step(_RETURN, 0, 0, _RETURN_ALLOW),
    )
    program = _Filter(len(steps), (_Step * len(steps))(*steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    zero = ctypes.c_ulong(0)
    # The first call lets users without rights make the second one.
    for call in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), zero, zero),
    ):
        if prctl(*call):
            code = ctypes.get_errno()
            raise OSError(code, f"prctl: {os.strerror(code)}")


if __name__ == "__main__":
    refuse_netlink()
    os.execvp(sys.argv[1], sys.argv[1:])
