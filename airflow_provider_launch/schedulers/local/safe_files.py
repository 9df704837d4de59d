"""Files that only this user can have written, opened so that nothing in their place can stop the reader.

Who writes the record of an app chooses what runs as this user; and an app, which may replace its own files, must
not stop those who follow other apps by a FIFO. Needs nothing but the standard library: the supervisor uses it, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import BinaryIO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ForeignFileError(PermissionError):
    """Another user owns the file or directory, or may write it."""


class NotRegularError(OSError):
    """A FIFO, a socket, a link or a directory stands in the place of a file."""


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading, without waiting for it.

    Raises:
        FileNotFoundError: there is none.
        NotRegularError: it is no plain file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket.
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise NotRegularError(errno.EINVAL, "no plain file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "no plain file", path)
    return open(fd, "rb", buffering=0)


def open_fifo(path: str) -> int:
    """Open a FIFO of this user for reading, in place of whatever else has the name; return its descriptor.

    It is opened for writing, too: without a writer, a FIFO would always be ready to be read.

    Raises:
        OSError: no FIFO can be made there.
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
        raise NotRegularError(errno.EINVAL, "no FIFO", path)
    return fd


def wake_reader(path: str) -> None:
    """Write one byte into a FIFO that a process reads; do nothing where there is no FIFO or no reader."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"!")
        finally:
            os.close(fd)


def refuse_foreign(path: str) -> None:
    """Refuse what another user owns or may write, and links; what does not exist is fine.

    Raises:
        ForeignFileError: the text names the path, the reason and the cure.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(status.st_mode):
        raise ForeignFileError(errno.EACCES, f"{path!r} is a link, which may lead to what others write; remove it")
    _refuse(path, status)


def refuse_foreign_root(path: str) -> None:
    """Refuse a root as `refuse_foreign` does, but follow a link that root or this user has made.

    Raises:
        ForeignFileError: the text names the path, the reason and the cure.
    """
    try:
        link, target = os.lstat(path), os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in {0, os.geteuid()}:
        raise ForeignFileError(errno.EACCES, f"the link {path!r} belongs to uid {link.st_uid}; {_WHY}")
    _refuse(path, target)


_WHY = "what others write there would run as this user"


def _refuse(path: str, status: os.stat_result) -> None:
    me = os.geteuid()
    if status.st_uid != me:
        raise ForeignFileError(
            errno.EACCES, f"{path!r} belongs to uid {status.st_uid}, and this process runs as uid {me}; {_WHY}"
        )
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise ForeignFileError(
            errno.EACCES, f"others may write {path!r} (mode {mode:04o}); {_WHY}; take that right away with 'chmod go-w'"
        )


def make_dirs(path: str, *, mode: int = 0o700) -> None:
    """Make a directory and those above it, none of them wider than `mode` whatever the umask; existing ones stay."""
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
