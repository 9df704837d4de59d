"""Safe folders for tasks and the catalog on this host: writable only by this user, without links that lead out.

The program of a task may run as another user in a container. Its folder is open to all users, below a folder that other
users of the host cannot enter or cannot list.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from airflow_provider_launch.specs.errors import LaunchError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 100
"""Levels of folders in which the files of a task are found; a program can nest more than Python can walk through."""
_MOST_ENTRIES = 200_000
"""Files and folders of one task; a million of them take 300 MB of the worker."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderError(LaunchError):
    """Another user may change a folder, or a link in it leads elsewhere."""


def make_dirs(path: Path) -> None:
    """Make a folder and its parents with access for this user only; existing folders are not changed."""
    if path.is_dir():
        return
    make_dirs(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def refuse_shared(path: Path) -> None:
    """Refuse a folder in which another user may replace our files; members of its group are trusted.

    Raises:
        FolderError: names the folder, the reason and the cure.
    """
    try:
        # A link may belong to another user although it leads to our folder.
        link, found = path.lstat(), path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    for uid in (link.st_uid, found.st_uid):
        if uid not in {0, os.geteuid()}:
            raise FolderError(f"{str(path)!r} belongs to uid {uid}, which may replace its files; use another folder")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise FolderError(f"every user may write {str(path)!r}; run 'chmod o-w' on it, or use another folder")


def refuse_foreign(path: Path) -> None:
    """Refuse a link, and a folder that another user owns or may write; a missing folder is accepted.

    Raises:
        FolderError: names the folder, the reason and the cure.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    _refuse(path, found)


def _refuse(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise FolderError(f"{str(path)!r} is not a folder but a link or a file; remove it")
    if found.st_uid != os.geteuid():
        raise FolderError(f"{str(path)!r} belongs to uid {found.st_uid}, not to uid {os.geteuid()} of this process")
    if found.st_mode & _OTHERS_WRITE:
        raise FolderError(f"others may write {str(path)!r}; run 'chmod go-w' on it if its content is right")


def private_folder(base: Path, *, is_volume: bool) -> Path:
    """Return the folder of this user below `base`; create it if missing.

    Args:
        base: may be shared with other users, like `/tmp`.
        is_volume: users of containers must be able to enter it; no other user may list it.

    Raises:
        FolderError: another user may change it.
    """
    make_dirs(base)
    refuse_shared(base)
    folder = base / f"launch-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    refuse_foreign(folder)
    mode = 0o711 if is_volume else 0o700
    if stat.S_IMODE(folder.lstat().st_mode) != mode:
        folder.chmod(mode)
    return folder


def remove_folder(path: Path) -> None:
    """Remove a folder of any depth, as far as possible. Errors are ignored: what is left must not fail a task.

    A program can nest more folders than `shutil.rmtree` can open, or can visit by recursion before Python 3.13.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, check=False)


@contextlib.contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


class TaskFolder:
    """The files of a task, read without leaving its folder, although its program may still change them.

    Args:
        path: the path of the folder, in a folder of this user.

    Raises:
        FolderError: another user may replace the folder.
        FileNotFoundError: it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        parent = os.open(path.parent, _FOLDER)
        try:
            _refuse(path.parent, os.fstat(parent))
            self._fd = os.open(path.name, _FOLDER, dir_fd=parent)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise FolderError(f"{str(path)!r} is a link; a task's folder must be a folder") from error
            raise
        finally:
            os.close(parent)

    def close(self) -> None:
        """Release the folder."""
        os.close(self._fd)

    def sizes(self) -> dict[str, int]:
        """Return the names of files, including links to files, and their sizes in bytes.

        Raises:
            FolderError: there are more than 200 000 files and folders, or more than 100 levels of folders.
        """
        found: dict[str, int] = {}
        for name, status in self._entries(self._fd, "", itertools.count(1)):
            if stat.S_ISREG(status.st_mode):
                found[name] = status.st_size
        return found

    def _entries(self, fd: int, below: str, counted: Iterator[int]) -> Iterator[tuple[str, os.stat_result]]:
        if below.count("/") > _DEEPEST:
            raise FolderError(f"the task left folders that are nested more than {_DEEPEST} levels deep")
        # Not all names of a folder at once: a program can make any number of files, which need no disk.
        with os.scandir(fd) as entries:
            for entry in entries:
                if next(counted) > _MOST_ENTRIES:
                    raise FolderError(
                        f"the task left more than {_MOST_ENTRIES} files and folders; let it remove or pack them"
                    )
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        with _opened(entry.name, fd) as inner:
                            yield from self._entries(inner, f"{below}{entry.name}/", counted)
                    else:
                        yield f"{below}{entry.name}", entry.stat()

    def open(self, name: str) -> BinaryIO:
        """Open a file; a link must lead to a file of the folder.

        Raises:
            FolderError: the link leads out of the folder, or the name is no longer a regular file.
        """
        real = (self.path / name).resolve()
        root = self.path.resolve()
        if not real.is_relative_to(root):
            raise FolderError(f"{name!r} is a link that leads out of the task's folder; copy the file instead")
        *folders, last = real.relative_to(root).parts or (name,)
        # The resolved path may have been replaced in the meantime: from here on no link is followed.
        opened = [self._fd]
        try:
            for part in folders:
                opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
            file = os.open(last, _FILE, dir_fd=opened[-1])
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
                raise FolderError(
                    f"{name!r} was replaced by a link or a device; wait until the task has ended"
                ) from error
            raise
        finally:
            for fd in opened[1:]:
                os.close(fd)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FolderError(f"{name!r} was replaced and is not a regular file; wait until the task has ended")
        return os.fdopen(file, "rb")
