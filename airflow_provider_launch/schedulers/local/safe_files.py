"""Opens files safely: refuses files that another user may have written, and never blocks on a FIFO or a lease.

A user who can write the record of an app can run commands as this user. An app may replace its own files, and a FIFO
or a leased file among them must not block the followers of other apps. Imports only the standard library, because the
supervisor uses it too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import BinaryIO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
REPLACED = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EAGAIN, errno.ETXTBSY})
"""Errors of `open` for a link, a socket or FIFO, a directory, a leased file (fcntl F_SETLEASE), a running program.

A program can put each of these in place of a file. An open without O_NONBLOCK waits up to 45 s for the end of a lease.
"""


class ForeignFileError(PermissionError):
    """Another user owns the file or directory, or may write it."""


class NotRegularError(OSError):
    """The path is not a regular file but a FIFO, a socket, a link or a directory, or a program has leased the file."""


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading, without blocking.

    Raises NotRegularError if it is not a regular file, or a program has leased it.
    """
    return open(regular_fd(path, os.O_RDONLY), "rb", buffering=0)


def regular_fd(path: str, flags: int) -> int:
    """Open a regular file without blocking and return its descriptor; a new file is private."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in REPLACED:
            raise NotRegularError(errno.EINVAL, "not a regular file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a regular file", path)
    return fd


def open_fifo(path: str) -> int:
    """Open a FIFO of this user for reading and return its descriptor; anything else at the path is replaced.

    It is also opened for writing, because a FIFO without a writer is always ready to be read.

    Raises:
        OSError: a FIFO cannot be created there.
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != os.geteuid():
            os.unlink(path)
            os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a FIFO", path)
    return fd


def wake_reader(path: str) -> None:
    """Write one byte into a FIFO to wake its reader; do nothing if there is no FIFO or no reader."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"!")
        finally:
            os.close(fd)


def refuse_foreign(path: str) -> None:
    """Refuse a link, and a path that another user owns or may write; do nothing if it does not exist."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(status.st_mode):
        raise ForeignFileError(
            errno.EACCES, f"{path!r} is a link, which may lead to files of other users; remove the link"
        )
    _refuse(path, status)


def refuse_foreign_root(path: str) -> None:
    """Refuse a root like `refuse_foreign`, but follow a link that root or this user owns."""
    try:
        link, target = os.lstat(path), os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in {0, os.geteuid()}:
        raise ForeignFileError(errno.EACCES, f"the link {path!r} belongs to uid {link.st_uid}; {_WHY}")
    _refuse(path, target)


_WHY = "commands that other users write there would run as this user"


def _refuse(path: str, status: os.stat_result) -> None:
    me = os.geteuid()
    if status.st_uid != me:
        raise ForeignFileError(
            errno.EACCES, f"{path!r} belongs to uid {status.st_uid}, and this process runs as uid {me}; {_WHY}"
        )
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise ForeignFileError(
            errno.EACCES, f"other users may write {path!r} (mode {mode:04o}); {_WHY}; fix it with 'chmod go-w'"
        )


def make_dirs(path: str, *, mode: int = 0o700) -> None:
    """Create a directory and its parents, with at most the permissions of `mode`; existing ones are not changed."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if not parent or parent == path:
            raise
        make_dirs(parent, mode=mode)
        make_dirs(path, mode=mode)
