"""The catalog of a run: files passed between tasks, on any storage that Airflow supports."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_launch.pipelines.folders import TaskFolder, make_dirs, refuse_foreign, refuse_shared
from airflow_provider_launch.specs.errors import LaunchError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_ON_THIS_HOST = ("file", "local", "")
_CHUNK = 1024 * 1024
HASHED_UP_TO = 1024 * _CHUNK
"""Bytes of a file that are hashed. The hash of a larger file covers its first bytes and its size."""


_MOST_OF_FREE = 0.9
"""Part of the free disk that one file of a task may take in a catalog on this host."""
_TOO_LARGE = "a file of the task is larger than 90 % of the free disk of the catalog; store less, or free some space"


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


class RunCatalog:
    """The files of one run.

    Args:
        base: folder of all catalogs.
        dag_id: of the run.
        run_id: of the run.
        scopes: the folder of each enclosing map, with the number of the element: `("each/3",)`.
    """

    def __init__(self, base: ObjectStoragePath, dag_id: str, run_id: str, scopes: Sequence[str] = ()) -> None:
        # Run ids contain `+` and `:`.
        self._dag = base / quote(dag_id, safe="")
        self._root = self._dag / quote(run_id, safe="")
        self._base = base
        self._scopes = ["", *scopes]

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
                there = ", ".join(sorted(found)[:12]) or "nothing"
                raise CatalogError(f"no file of the catalog matches {pattern!r}; there are {there}")
            items += [self._fetch(name, found[name], folder) for name in names]
        return items

    def put(self, patterns: Iterable[str], folder: Path, *, is_strict: bool = True) -> list[CatalogItem]:
        """Copy matching files of the folder into the catalog. A file appears there only when complete.

        Args:
            patterns: of the files to copy.
            folder: of the task.
            is_strict: True raises an error for a pattern without a file.

        Raises:
            CatalogError: no file matches a pattern.
            FolderError: a file is a link that leads out of the folder, or another user may change a folder.
        """
        self._refuse_foreign()
        items = []
        with contextlib.closing(TaskFolder(folder)) as left:
            names = sorted(left.names())
            for pattern in patterns:
                chosen = [name for name in names if matches(name, pattern)]
                if not chosen and is_strict:
                    there = ", ".join(names[:12]) or "nothing"
                    raise CatalogError(f"no file of the task matches {pattern!r}; it left {there}")
                items += [self._store(name, left) for name in chosen]
        return items

    def _refuse_foreign(self) -> None:
        """Refuse a catalog on this host that another user may change, because tasks read its files."""
        if self._base.protocol in _ON_THIS_HOST:
            refuse_shared(Path(str(self._base.path)))
            for folder in (self._dag, self._root):
                refuse_foreign(Path(str(folder.path)))

    # ---- paths -----------------------------------------------------------------------------------------------

    def _place(self, scope: str, name: str) -> Any:
        return self._root / scope / name if scope else self._root / name

    def _visible(self) -> dict[str, Any]:
        """Return the files that the task sees, by name."""
        found: dict[str, Any] = {}
        for at, scope in enumerate(self._scopes):
            inner = self._scopes[at + 1] if at + 1 < len(self._scopes) else ""
            for name in self._names(scope):
                # Files of other elements of the same map are not visible to this one.
                if inner and name.startswith(f"{_below(inner, scope).rpartition('/')[0]}/"):
                    continue
                found[name] = self._place(scope, name)
        return found

    def _names(self, scope: str) -> Iterator[str]:
        root = self._root / scope if scope else self._root
        if not root.exists():
            return
        base = str(root.path).rstrip("/")
        for path in root.fs.find(base):
            name = str(path)[len(base) :].lstrip("/") if str(path).startswith(base) else ""
            if name and ".launch-part-" not in name and ".." not in PurePosixPath(name).parts:
                yield name

    # ---- copying ---------------------------------------------------------------------------------------------

    def _fetch(self, name: str, source: Any, folder: Path) -> CatalogItem:
        # Before the program starts only this user can reach the folder, so it has no links.
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.launch-part-{uuid.uuid4().hex[:8]}")
        with source.open("rb") as reader, part.open("wb") as writer:
            size, digest, is_whole = _copied(reader, writer)
        part.replace(target)
        return CatalogItem(name, "get", size, digest, is_whole)

    def _store(self, name: str, left: TaskFolder) -> CatalogItem:
        target = self._place(self._scopes[-1], name)
        if target.protocol in _ON_THIS_HOST:
            make_dirs(Path(str(target.parent.path)))
            part = target.parent / f"{target.name}.launch-part-{uuid.uuid4().hex[:8]}"
            try:
                with left.open(name) as reader, part.open("wb") as writer:
                    size, digest, is_whole = _copied(reader, writer, _room_in(target.parent.path))
            except BaseException:
                with contextlib.suppress(OSError):
                    part.unlink()
                raise
            os.replace(part.path, target.path)  # noqa: PTH105 - two paths of this host, behind other classes
        else:
            # An object becomes visible only when complete.
            with left.open(name) as reader, target.open("wb") as writer:
                size, digest, is_whole = _copied(reader, writer)
        return CatalogItem(name, "put", size, digest, is_whole)


def _below(inner: str, scope: str) -> str:
    return inner.removeprefix(f"{scope}/") if scope else inner


def _room_in(folder: object) -> float:
    """Return how many bytes a file below a folder of this host may have: a program can write holes of any size."""
    return shutil.disk_usage(str(folder)).free * _MOST_OF_FREE


def _copied(reader: IO[bytes], writer: IO[bytes], limit: float = math.inf) -> tuple[int, str, bool]:
    """Copy, and return the size, the hash, and whether the hash covers the whole file.

    Raises:
        CatalogError: the file has more bytes than `limit`; checked before and during the copy.
    """
    if not math.isinf(limit) and os.fstat(reader.fileno()).st_size > limit:
        raise CatalogError(_TOO_LARGE)
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(_CHUNK):
        writer.write(chunk)
        if size < HASHED_UP_TO:
            digest.update(chunk)
        size += len(chunk)
        if size > limit:
            raise CatalogError(_TOO_LARGE)
    if size > HASHED_UP_TO:
        digest.update(str(size).encode())
    return size, digest.hexdigest(), size <= HASHED_UP_TO


def matches(name: str, pattern: str) -> bool:
    """Return whether a file matches: `*` within a folder, `**` across folders, a folder for all files in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
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
