"""The files of a workspace: find, measure, hash, copy and pack them."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.workspace.api import LAUNCH_IGNORE, TORCHX_IGNORE, IgnoreRules, ignore_lines

if TYPE_CHECKING:
    import tarfile

_ALWAYS = (".git", "*/.git", "__pycache__", "*/__pycache__")
"""Left out unless the ignore file includes them again: they differ between workers and would change every image."""
_MB = 1_000_000
_MTIME = 1_000_000_000
"""A fixed time in archives, so that equal files make equal archives; ZIP does not support years before 1980."""
_SHOWN = 5
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class _Entry:
    source: str
    mode: int
    size: int

    @property
    def is_executable(self) -> bool:
        return bool(self.mode & stat.S_IXUSR)


@dataclass
class WorkspaceFiles:
    """The files of a workspace that reach a replica: path below its root to the local file, link or directory."""

    name: str
    """The workspace, for messages."""
    entries: dict[str, _Entry] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Entries that the ignore files leave out: first part of the path to the number of entries seen there."""

    @classmethod
    def of(cls, workspace: Workspace, ignore_names: Sequence[str] = (LAUNCH_IGNORE, TORCHX_IGNORE)) -> WorkspaceFiles:
        """Return the files of all projects, each below its target; later projects replace equal paths.

        Args:
            workspace: its relative paths start at the current directory.
            ignore_names: names of ignore files; the first that exists in the root of a project is used for it.

        Raises:
            InvalidAppError: a project is missing or cannot be read, or its target is outside the workspace, or below a
                link, through which a copy would be written elsewhere.
        """
        found = cls(str(workspace))
        for project, target in workspace.projects.items():
            relative = PurePosixPath(target)
            if relative.is_absolute() or ".." in relative.parts:
                raise InvalidAppError(
                    f"workspace target {target!r} of {project!r} is outside the workspace; give a path below it"
                )
            source = os.path.abspath(os.path.expanduser(project))
            try:
                found._add_project(source, str(relative), target, ignore_names)
            except FileNotFoundError as error:
                raise InvalidAppError(
                    f"workspace {project!r} does not exist on this host (tried {error.filename}); "
                    f"correct the path, or copy the directory to the worker"
                ) from error
            except OSError as error:
                raise InvalidAppError(
                    f"workspace {project!r} cannot be read: {error.strerror} ({error.filename}); "
                    f"correct its permissions, or leave the file out by {LAUNCH_IGNORE}"
                ) from error
        found.entries = dict(sorted(found.entries.items()))
        found._refuse_below_links()
        return found

    def _refuse_below_links(self) -> None:
        folders = {os.path.dirname(path) for path in self.entries}
        for parent in sorted({str(each) for folder in folders for each in PurePosixPath(folder, "x").parents}):
            if parent in self.entries and not self._is_dir(parent):
                raise InvalidAppError(
                    f"workspace {self.name} has files below {parent!r}, which is a link or a file of another directory "
                    f"in it; choose another target"
                )

    def _add_project(self, source: str, target: str, given: str, ignore_names: Sequence[str]) -> None:
        status = os.stat(source)
        if not stat.S_ISDIR(status.st_mode):
            if not stat.S_ISREG(status.st_mode):
                # To read a FIFO would wait for ever.
                raise InvalidAppError(f"workspace {source!r} is neither a file nor a directory; give one of them")
            path = target
            if target == "." or given.endswith("/") or (target in self.entries and self._is_dir(target)):
                path = os.path.normpath(f"{target}/{os.path.basename(source)}")
            self.entries[path] = _Entry(source, status.st_mode, status.st_size)
            return
        if target != ".":
            self.entries[target] = _Entry(source, status.st_mode, 0)
        rules = IgnoreRules.of([*_ALWAYS, *_ignore_lines(source, ignore_names)])
        self._add_directory(source, "", "" if target == "." else f"{target}/", rules)

    def _add_directory(self, source: str, below: str, prefix: str, rules: IgnoreRules) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                inside = rules.inside(path)
                is_dir = entry.is_dir(follow_symlinks=False)
                status = entry.stat(follow_symlinks=False)
                is_known = is_dir or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
                if inside.leaves_out or not is_known:
                    self.left_out[path.split("/", 1)[0] + ("/" if is_dir or "/" in path else "")] += 1
                else:
                    self.entries[prefix + path] = _Entry(entry.path, status.st_mode, 0 if is_dir else status.st_size)
                if is_dir and not inside.keeps_nothing:
                    self._add_directory(entry.path, f"{path}/", prefix, inside)

    def _is_dir(self, path: str) -> bool:
        return stat.S_ISDIR(self.entries[path].mode)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries.values())

    def __str__(self) -> str:
        count = sum(not stat.S_ISDIR(entry.mode) for entry in self.entries.values())
        text = f"workspace {self.name}: {count} files, {_shown_size(self.size)}"
        if not self.left_out:
            return text
        names = [name for name, _ in self.left_out.most_common()]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"{text}; left out: {', '.join(names[:_SHOWN])}{more}"

    def check_size(self, max_mb: float | None) -> None:
        """Refuse a workspace that is larger than `max_mb`.

        Raises:
            InvalidAppError: the text names the largest parts.
        """
        if max_mb is None or self.size <= max_mb * _MB:
            return
        parts: Counter[str] = Counter()
        for path, entry in self.entries.items():
            top, slash, _ = path.partition("/")
            parts[top + slash] += entry.size
        largest = ", ".join(f"{name} ({_shown_size(size)})" for name, size in parts.most_common(3))
        raise InvalidAppError(
            f"workspace {self.name} has {_shown_size(self.size)}, but workspace_max_mb is {max_mb:g}; the largest "
            f"parts are {largest}. Leave out files that the app does not need by {LAUNCH_IGNORE}, or raise the option"
        )

    def digest(self) -> str:
        """Return 64 hex digits over paths, kinds and contents; times and owners are ignored.

        Raises:
            InvalidAppError: a file cannot be read.
        """
        try:
            return self._digest()
        except OSError as error:
            raise InvalidAppError(
                f"{self} cannot be read: {error.strerror} ({error.filename}); "
                f"correct its permissions, or leave the file out by {LAUNCH_IGNORE}"
            ) from error

    def _digest(self) -> str:
        result = hashlib.sha256()
        for path, entry in self.entries.items():
            kind = "link" if stat.S_ISLNK(entry.mode) else "dir" if stat.S_ISDIR(entry.mode) else "file"
            result.update(f"{kind} {entry.is_executable and kind == 'file'} {len(path)} ".encode())
            result.update(os.fsencode(path))
            if kind == "file":
                result.update(_content_digest(entry.source))
            elif kind == "link":
                result.update(hashlib.sha256(os.fsencode(os.readlink(entry.source))).digest())
        return result.hexdigest()

    def copy_to(self, directory: str) -> None:
        """Copy all files below a directory, which is created; links stay links, modes and times are kept.

        Raises:
            OSError: a file cannot be read or written.
        """
        os.makedirs(directory, exist_ok=True)
        for path, entry in self.entries.items():
            target = os.path.join(directory, path)
            if stat.S_ISDIR(entry.mode):
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(entry.source, target, follow_symlinks=False)

    def pack(self, file: IO[bytes], prefix: str = "", extra: Mapping[str, bytes] | None = None) -> None:
        """Write a tar archive; equal files give equal bytes, whatever their owner and time.

        All files are readable for every user: in a container the program usually runs as another user.

        Args:
            file: the file to write.
            prefix: directory in the archive for the workspace, ending with a slash.
            extra: additional files, path to content.

        Raises:
            OSError: a file cannot be read or written.
        """
        # Imported here, because a worker without workspaces does not need it.
        import tarfile

        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if prefix:
                root = _info(prefix, 0o755)
                root.type = tarfile.DIRTYPE
                archive.addfile(root)
            self.add_to(archive, prefix)
            for path, content in (extra or {}).items():
                info = _info(path, 0o644)
                info.size = len(content)
                archive.addfile(info, BytesIO(content))

    def add_to(self, archive: tarfile.TarFile, prefix: str) -> None:
        """Add all files below a directory of an archive, ending with a slash; see `pack`."""
        for path, entry in self.entries.items():
            _pack_entry(archive, prefix + path, entry)


def workspaces_of(roles: Iterable[Role], max_mb: float | None) -> dict[Workspace, tuple[str, WorkspaceFiles]]:
    """Return workspace to (directory of its copy in the app, its files); roles with equal workspaces share them.

    Raises:
        InvalidAppError: a workspace is missing or too large.
    """
    known: dict[Workspace, tuple[str, WorkspaceFiles]] = {}
    for role in roles:
        if role.workspace and role.workspace not in known:
            files = WorkspaceFiles.of(role.workspace)
            files.check_size(max_mb)
            known[role.workspace] = (f"workspace-{len(known)}", files)
    return known


def digests(workspaces: Mapping[Workspace, tuple[str, WorkspaceFiles]]) -> dict[str, str]:
    """Return the digests of workspaces; they are part of the identity of an app."""
    return {f"digest of {name}": files.digest() for name, files in workspaces.values()}


def _pack_entry(archive: tarfile.TarFile, path: str, entry: _Entry) -> None:
    import tarfile

    info = _info(path, 0o755 if stat.S_ISDIR(entry.mode) or entry.is_executable else 0o644)
    if stat.S_ISDIR(entry.mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(entry.mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.source)
    else:
        with open(entry.source, "rb") as source:
            # The size of the open file: a file that grew since it was found would break the archive.
            info.size = os.fstat(source.fileno()).st_size
            archive.addfile(info, source)
        return
    archive.addfile(info)


def _info(path: str, mode: int) -> tarfile.TarInfo:
    import tarfile

    info = tarfile.TarInfo(path)
    info.mode, info.mtime = mode, _MTIME
    return info


def _content_digest(path: str) -> bytes:
    result = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            result.update(piece)
    return result.digest()


def _ignore_lines(root: str, names: Sequence[str]) -> list[str]:
    for name in names:
        path = Path(root) / name
        if path.is_file():
            with path.open("rb") as file:
                return ignore_lines(str(path), file)
    return []


def _shown_size(size: int) -> str:
    return f"{size / _MB:.1f} MB" if size >= _MB / 10 else f"{size / 1000:.1f} kB"
