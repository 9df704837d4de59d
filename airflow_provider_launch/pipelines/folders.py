"""Folders of tasks, and of the catalog on this host: only this user may change them, and no link leads out of them.

The program of a task may be another user, in a container. Its folder is open to all, below one that other users of
the host cannot enter, or whose names they cannot list.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from airflow_provider_launch.specs.errors import LaunchError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderError(LaunchError):
    """Another user may change a folder, or a link in it leads elsewhere."""


def make_dirs(path: Path) -> None:
    """Make a folder and those above it, which only this user may enter; existing ones stay as they are."""
    if path.is_dir():
        return
    make_dirs(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def refuse_shared(path: Path) -> None:
    """Refuse a folder in which another user may replace what this one makes; the members of its group are trusted.

    Raises:
        FolderError: names the folder, the reason and the cure.
    """
    try:
        # A link may be another user's, although it leads to a folder of ours.
        link, found = path.lstat(), path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    for uid in (link.st_uid, found.st_uid):
        if uid not in {0, os.geteuid()}:
            raise FolderError(f"{str(path)!r} belongs to uid {uid}, who may replace all in it; use another folder")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise FolderError(f"every user may write {str(path)!r}; run 'chmod o-w' on it, or use another folder")


def refuse_foreign(path: Path) -> None:
    """Refuse a folder that another user owns or may write, and a link; a folder that is not there is right.

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
        raise FolderError(f"others may write {str(path)!r}; run 'chmod go-w' on it, if its content is right")


def private_folder(base: Path, *, is_volume: bool) -> Path:
    """Return the folder of this user below `base`, made if it is not there.

    Args:
        base: may be shared with other users, as `/tmp` is.
        is_volume: containers see it with its parents, so their users must pass it; nobody else may list it.

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


class TaskFolder:
    """The files that a task has left, read without leaving its folder; its program may still run and change them.

    Args:
        path: of the folder, in a folder of this user.

    Raises:
        FolderError: another user may replace the folder.
        FileNotFoundError: there is none.
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

    def names(self) -> Iterator[str]:
        """Yield the files by name, with links to files."""
        for root, _, names, fd in os.fwalk(".", dir_fd=self._fd):
            for name in names:
                try:
                    kind = os.stat(name, dir_fd=fd).st_mode
                except OSError:
                    continue
                if stat.S_ISREG(kind):
                    yield Path(root, name).as_posix()

    def open(self, name: str) -> BinaryIO:
        """Open a file; a link must lead to a file of the folder.

        Raises:
            FolderError: the link leads out of the folder, or what stands there now is no file.
        """
        real = (self.path / name).resolve()
        root = self.path.resolve()
        if not real.is_relative_to(root):
            raise FolderError(f"{name!r} is a link that leads out of the task's folder; copy the file instead")
        *folders, last = real.relative_to(root).parts or (name,)
        # What was resolved may be replaced meanwhile: from here on no link is followed.
        held = [self._fd]
        try:
            for part in folders:
                held.append(os.open(part, _FOLDER, dir_fd=held[-1]))
            file = os.open(last, _FILE, dir_fd=held[-1])
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
                raise FolderError(f"{name!r} was replaced by a link or a device; the task must have ended") from error
            raise
        finally:
            for fd in held[1:]:
                os.close(fd)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FolderError(f"{name!r} was replaced by what is no file; the task must have ended")
        return os.fdopen(file, "rb")
