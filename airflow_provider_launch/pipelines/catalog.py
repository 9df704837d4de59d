"""The catalog of a run: files passed between tasks, on any storage that Airflow supports."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from airflow_provider_launch.pipelines.folders import TaskFolder, make_dirs, refuse_foreign, refuse_shared
from airflow_provider_launch.pipelines.objects import FOLDER
from airflow_provider_launch.specs.errors import LaunchError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_ON_THIS_HOST = ("file", "local", "")
_CHUNK = 1024 * 1024
HASHED_UP_TO = 1024 * _CHUNK
"""Bytes of a file that are hashed. The hash of a larger file covers its first bytes and its size."""

_MOST_FILES = 10_000
_PROGRAM_MODE = 0o755
"""Permissions of a file that its owner may execute; others have the default ones."""
_PART_OF_FREE = 0.5
"""Part of the free disk that the files of one task may take in a catalog on this host."""
_TOO_LARGE = "the files of the task need more than half of the free disk of the catalog; store less, or free some space"
_HAS_HOLES = "the files of the task are larger than their disk, so they have holes; write them without holes"


class CatalogError(LaunchError):
    """A file is missing. The task fails as usual, so `on_failure` handles it."""


@dataclass(frozen=True)
class CatalogItem:
    """One file that was copied."""

    name: str
    stage: str
    """`get` or `put`."""
    size: int
    sha256: str
    is_whole: bool = True
    """False if only the start of a large file was hashed."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CatalogItem | None:
        """Return the stored item; None if it is not valid, because users can edit the store in the UI."""
        name, stage, size, sha256 = (value.get(field) for field in ("name", "stage", "size", "sha256"))
        if not (isinstance(name, str) and isinstance(stage, str) and isinstance(sha256, str) and isinstance(size, int)):
            return None
        return cls(name, stage, size, sha256, is_whole=value.get("is_whole") is not False)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Earlier:
    """A task before the one that reads files."""

    order: int
    """Its position in the pipeline: of two files of one name, that of the later task is read."""
    elements_in: str = ""
    """Folder of its elements, if it runs once for each element of a list from a parameter."""
    count: Callable[[], int] = lambda: 0
    """Number of elements of that list."""

    def has(self, name: str) -> bool:
        """Return whether the task still makes this file; False for an element that a new, shorter list lacks."""
        if not self.elements_in or not name.startswith(f"{self.elements_in}/"):
            return True
        index = name.removeprefix(f"{self.elements_in}/").partition("/")[0]
        return not index.isdecimal() or int(index) < self.count()


class RunCatalog:
    """The files of one run, each in the folder of the task that stored it.

    A task reads the files of the tasks before it, never its own: a retry, or a task that was cleared, starts from the
    same files as its first attempt. Its files replace those of its earlier attempts.

    Args:
        base: folder of all catalogs.
        dag_id: the DAG of the run.
        run_id: the run.
        task_id: the task that reads and stores.
        scopes: the folder of each enclosing map, with the number of the element: `("each/3",)`.
        earlier: the tasks before it, by task id.
    """

    def __init__(
        self,
        base: ObjectStoragePath,
        dag_id: str,
        run_id: str,
        task_id: str,
        scopes: Sequence[str] = (),
        earlier: Mapping[str, Earlier] = MappingProxyType({}),
    ) -> None:
        self._dag = base / _folder_name(dag_id)
        self._root = self._dag / _folder_name(run_id)
        self._own = self._root / _folder_name(task_id)
        self._base = base
        self._scopes = ["", *scopes]
        self._earlier = earlier

    def get(self, patterns: Iterable[str], folder: Path) -> list[CatalogItem]:
        """Copy matching files into the folder; files of the task's own map element override those of the run.

        Raises:
            CatalogError: no file matches a pattern.
            FolderError: another user may change the catalog.
        """
        self._refuse_foreign()
        found = self._visible()
        items = []
        for pattern in patterns:
            names = [name for name in sorted(found) if matches(name, pattern)]
            if not names:
                there = f"it has {', '.join(sorted(found)[:12])}" if found else "no earlier task stored any"
                raise CatalogError(f"no file of the catalog matches {pattern!r}; {there}")
            items += [self._fetch(name, found[name], folder) for name in names]
        return items

    def put(
        self, patterns: Iterable[str], folder: Path, *, is_strict: bool = True, files: Iterable[str] = ()
    ) -> list[CatalogItem]:
        """Copy matching files of the folder into the catalog, in place of those of earlier attempts of this task.

        A file appears there only when complete. If one cannot be stored, none of this task is left there, because files
        of two attempts would mix.

        Args:
            patterns: the patterns of the files to copy.
            folder: the folder of the task.
            is_strict: True raises an error for a pattern without a file.
            files: further files to copy if they exist.

        Raises:
            CatalogError: no file matches a pattern, or the files need more than half of the free disk of this host, or
                are larger than their own disk.
            FolderError: a file is a link that leads out of the folder, or another user may change a folder.
        """
        self._refuse_foreign()
        items: list[CatalogItem] = []
        with contextlib.closing(TaskFolder(folder)) as left:
            sizes = left.sizes()
            names = sorted(sizes)
            chosen: dict[str, None] = {}
            for pattern in patterns:
                found = [name for name in names if matches(name, pattern)]
                if not found and is_strict:
                    there = ", ".join(names[:12]) or "nothing"
                    raise CatalogError(f"no file of the task matches {pattern!r}; it left {there}")
                chosen |= dict.fromkeys(found)
            chosen |= dict.fromkeys(sorted({*files} & {*names}))
            room = self._room(folder) if chosen else 0
            if sum(sizes[name] for name in chosen) > room:
                raise CatalogError(self._too_large)
            try:
                for name in chosen:
                    items.append(self._store(name, left, room))
                    room -= items[-1].size
            except BaseException:
                self._remove_others(())
                raise
        self._remove_others({item.name for item in items})
        return items

    def _refuse_foreign(self) -> None:
        """Refuse a catalog on this host that another user may change, because tasks read its files."""
        if self._base.protocol in _ON_THIS_HOST:
            refuse_shared(Path(str(self._base.path)))
            for folder in (self._dag, self._root):
                refuse_foreign(Path(str(folder.path)))

    # ---- paths -----------------------------------------------------------------------------------------------

    def _folder(self) -> Any:
        """Return the folder in which this task, or this element of it, stores files."""
        return self._own / self._scopes[-1] if self._scopes[-1] else self._own

    def _visible(self) -> dict[str, Any]:
        """Return the files that the task sees, by name."""
        files = []
        for path in _files_below(self._root):
            layer, _, name = path.partition("/")
            earlier = self._earlier.get(unquote(layer))
            if earlier is not None and name and earlier.has(name):
                files.append((earlier.order, name, self._root / path))
        files.sort(key=lambda file: file[0])
        found: dict[str, Any] = {}
        for at, scope in enumerate(self._scopes):
            inner = self._scopes[at + 1] if at + 1 < len(self._scopes) else ""
            for _, path, place in files:
                name = _below(path, scope)
                if scope and name == path:
                    continue
                # Files of other elements of the same map are not visible to this one.
                if inner and name.startswith(f"{_below(inner, scope).rpartition('/')[0]}/"):
                    continue
                found[name] = place
        return found

    def _remove_others(self, names: Collection[str]) -> None:
        """Remove what earlier attempts of this task stored under other names."""
        folder = self._folder()
        for name in [name for name in _files_below(folder, unfinished=True) if name not in names]:
            (folder / name).unlink(missing_ok=True)

    @property
    def _too_large(self) -> str:
        return _TOO_LARGE if self._base.protocol in _ON_THIS_HOST else _HAS_HOLES

    def _room(self, folder: Path) -> float:
        """Return how many bytes the files of this task may take: a program can write holes of any size."""
        if self._base.protocol not in _ON_THIS_HOST:
            return shutil.disk_usage(folder).total
        make_dirs(Path(str(self._root.path)))
        return shutil.disk_usage(str(self._root.path)).free * _PART_OF_FREE

    # ---- copying ---------------------------------------------------------------------------------------------

    def _fetch(self, name: str, source: Any, folder: Path) -> CatalogItem:
        # Before the program starts only this user can reach the folder, so it has no links.
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.launch-part-{uuid.uuid4().hex[:8]}")
        with source.open("rb") as reader, part.open("wb") as writer:
            size, digest, is_whole = _copied(reader, writer)
        if source.protocol in _ON_THIS_HOST and Path(source.path).stat().st_mode & stat.S_IXUSR:
            part.chmod(_PROGRAM_MODE)
        part.replace(target)
        return CatalogItem(name, "get", size, digest, is_whole)

    def _store(self, name: str, left: TaskFolder, room: float) -> CatalogItem:
        target = self._folder() / name
        if target.protocol in _ON_THIS_HOST:
            make_dirs(Path(str(target.parent.path)))
            part = target.parent / f"{target.name}.launch-part-{uuid.uuid4().hex[:8]}"
            # After an error `put` also removes this unfinished file.
            with left.open(name) as reader, part.open("wb") as writer:
                size, digest, is_whole = _copied(reader, writer, room, self._too_large)
                if os.fstat(reader.fileno()).st_mode & stat.S_IXUSR:
                    Path(part.path).chmod(_PROGRAM_MODE)
            os.replace(part.path, target.path)  # noqa: PTH105 - two paths of this host, behind other classes
        else:
            # An object becomes visible only when complete.
            with left.open(name) as reader, target.open("wb") as writer:
                size, digest, is_whole = _copied(reader, writer, room, self._too_large)
        return CatalogItem(name, "put", size, digest, is_whole)


def copy_project(source: Path, patterns: Iterable[str], folder: Path) -> int:
    """Copy matching files of a project into the folder of a task, and return their number.

    A pattern that ends in `/` also makes the folder. Hidden folders, compiled modules and links are left out.

    Raises:
        CatalogError: no file matches a pattern, or more than 10 000 do.
    """
    patterns = list(patterns)
    names = []
    for root, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        below = Path(root).relative_to(source)
        names += [(below / name).as_posix() for name in sorted(files) if _is_plain(Path(root, name))]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in names if matches(name, pattern)]
        if pattern.endswith("/"):
            (folder / pattern).mkdir(parents=True, exist_ok=True)
        elif not found:
            raise CatalogError(f"no file of the project {str(source)!r} matches {pattern!r}")
        chosen |= dict.fromkeys(found)
    if len(chosen) > _MOST_FILES:
        raise CatalogError(f"{len(chosen)} files of the project match {', '.join(patterns)}; choose fewer")
    for name in chosen:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, folder / name)
    return len(chosen)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _below(inner: str, scope: str) -> str:
    return inner.removeprefix(f"{scope}/") if scope else inner


def _files_below(root: Any, *, unfinished: bool = False) -> Iterator[str]:
    """Yield the names of the files below a folder, relative to it."""
    if not root.exists():
        return
    base = str(root.path).rstrip("/")
    for path in root.fs.find(base):
        name = str(path)[len(base) :].lstrip("/") if str(path).startswith(base) else ""
        if name and (unfinished or ".launch-part-" not in name) and ".." not in PurePosixPath(name).parts:
            yield name


def _folder_name(text: str) -> str:
    """Return a name for one folder: run ids contain `+` and `:`, and may be a dot."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def _copied(
    reader: IO[bytes], writer: IO[bytes], limit: float = math.inf, too_large: str = ""
) -> tuple[int, str, bool]:
    """Copy, and return the size, the hash, and whether the hash covers the whole file.

    Raises:
        CatalogError: the file has more bytes than `limit`; its program may still write it.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(_CHUNK):
        writer.write(chunk)
        if size < HASHED_UP_TO:
            digest.update(chunk)
        size += len(chunk)
        if size > limit:
            raise CatalogError(too_large)
    if size > HASHED_UP_TO:
        digest.update(str(size).encode())
    return size, digest.hexdigest(), size <= HASHED_UP_TO


def matches(name: str, pattern: str) -> bool:
    """Return whether a file matches: `*` within a folder, `**` across folders, a folder for all files in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
    if f"{FOLDER}/" in name:
        # A program must not choose pickles that other tasks read.
        return pattern == name
    return pattern in ("", ".") or re.fullmatch(f"{_expression(pattern)}(/.*)?", name, re.DOTALL) is not None


def _expression(pattern: str) -> str:
    found = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        if part == "**/":
            found += "(.*/)?"
        elif part == "**":
            found += ".*"
        elif part == "*":
            found += "[^/]*"
        elif part == "?":
            found += "[^/]"
        elif part.startswith("[") and part.endswith("]"):
            inside = part[1:-1].replace("\\", r"\\\\")
            found += f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
        else:
            found += re.escape(part)
    return found
