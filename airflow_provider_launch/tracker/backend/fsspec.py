"""A tracker that stores runs as JSON files below a directory on any fsspec file system."""

from __future__ import annotations

import errno
import json
import logging
import os
import posixpath
import stat
import uuid
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_launch.specs.errors import MissingDependencyError
from airflow_provider_launch.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json

__all__ = ["FsspecTracker", "create"]

log = logging.getLogger(__name__)
LARGEST_RECORD = 16 * 1024 * 1024
"""Maximum bytes of one record that is read."""
_LARGEST_RUN = 256 * 1024 * 1024
"""Maximum memory of the records of one kind of a run, as estimated."""
_RECORD_BYTES, _PART_BYTES = 500, 64
"""Memory of a record with its name, and of an item of a list or object in it."""
_MOST_NAMES = 200_000
"""Maximum names in a directory of this host that are read; a store elsewhere lists them itself."""
_OF_RECORD = frozenset({
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EAGAIN
})  # fmt: skip
"""Errors of a file that a run has replaced or closed. Others are of the disk or the network."""


class FsspecTracker(TrackerBase):
    """One file for each value, artifact and source, so that replicas can write at the same time without losing data.

    Args:
        fs: an fsspec file system.
        root_dir: directory of the runs; created if missing.
    """

    def __init__(self, fs: Any, root_dir: str) -> None:
        self._fs = fs
        self._root = root_dir.rstrip("/") or "/"
        self._is_local = "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Write the artifact to a file with its name."""
        self._write(run_id, "artifacts", name, {"name": name, "path": path, "metadata": metadata and dict(metadata)})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of the run by name."""
        found = self._records(run_id, "artifacts", {"name": str, "path": str, "metadata": (dict, type(None))})
        return {name: TrackerArtifact(**values) for name, values in found.items()}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Write each value to a file with its name."""
        for key, value in kwargs.items():
            self._write(run_id, "metadata", key, value)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the values of the run."""
        return self._read(run_id, "metadata")

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Write the source to a file."""
        key = f"{source_id} {artifact_name or ''}"
        self._write(run_id, "sources", key, {"source_run_id": source_id, "artifact_name": artifact_name})

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the sources of the run; with a name, only sources of that artifact."""
        records = self._records(run_id, "sources", {"source_run_id": str, "artifact_name": (str, type(None))})
        found = [TrackerSource(**source) for source in records.values()]
        return [source for source in found if artifact_name in {None, source.artifact_name}]

    def lineage(self, run_id: str) -> Lineage:
        """Not supported: only sources are stored."""
        raise NotImplementedError("the fsspec tracker stores sources, but no lineage; use `sources`")

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the ids of all runs; `parent_run_id` selects the runs with this source."""
        parent = kwargs.get("parent_run_id")
        found = [unquote(posixpath.basename(path.rstrip("/"))) for path in self._list(self._root)]
        if parent is None:
            return found
        return [run_id for run_id in found if any(source.source_run_id == parent for source in self.sources(run_id))]

    def _directory(self, run_id: str, kind: str) -> str:
        name = quote(run_id, safe="")
        # A run could otherwise write next to the root, or among the runs.
        if name in {"", ".", ".."}:
            raise ValueError(f"run id {run_id!r} cannot name a directory; use letters and digits")
        return posixpath.join(self._root, name, kind)

    def _write(self, run_id: str, kind: str, key: str, value: object) -> None:
        directory = self._directory(run_id, kind)
        self._fs.makedirs(directory, exist_ok=True)
        path = posixpath.join(directory, f"{quote(key, safe='')}.json")
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        # Written completely or not at all, also for concurrent readers.
        self._fs.pipe_file(temporary, json.dumps(value, default=str).encode())
        self._fs.mv(temporary, path)

    def _read(self, run_id: str, kind: str) -> dict[str, Any]:
        found = {}
        left = _LARGEST_RUN
        for path in self._list(self._directory(run_id, kind)):
            name = posixpath.basename(path)
            if name.endswith(".json"):
                try:
                    data = self._data(path)
                    left -= _RECORD_BYTES + len(data) + _PART_BYTES * (data.count(b",") + data.count(b"["))
                    if left < 0:
                        log.warning(
                            "further records of run %s in %s are left out, because there are many", run_id, kind
                        )
                        break
                    found[unquote(name.removesuffix(".json"))] = parse_json(data, LARGEST_RECORD, is_finite=False)
                except (UntrustedError, OSError) as error:
                    if isinstance(error, OSError) and error.errno not in _OF_RECORD:
                        raise
                    # Another run, or a program of it, has written it: the records of all other runs can be read.
                    log.warning("the record %s is left out: %s", path, error)
        return found

    def _data(self, path: str) -> bytes:
        """Return the first bytes of a record.

        Raises:
            UntrustedError: it is not a regular file.
            OSError: it cannot be read, or is a link, which may lead to files of other users.
        """
        if not self._is_local:
            found: bytes = self._fs.cat_file(path, start=0, end=LARGEST_RECORD + 1)
            return found
        # A FIFO has no end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UntrustedError("it is not a regular file")
            return file.read(LARGEST_RECORD + 1)

    def _records(self, run_id: str, kind: str, fields: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
        """Return the records that have just these fields."""
        found = self._read(run_id, kind)
        for name, record in [*found.items()]:
            if not (
                isinstance(record, dict)
                and record.keys() == fields.keys()
                and all(isinstance(record[field], kinds) for field, kinds in fields.items())
            ):
                log.warning("a record of run %s in %s is left out: %r has wrong fields", run_id, kind, name)
                del found[name]
        return found

    def _list(self, directory: str) -> list[str]:
        try:
            if not self._is_local:
                return sorted(self._fs.ls(directory, detail=False))
            with os.scandir(directory) as entries:
                found = [entry.path for entry in islice(entries, _MOST_NAMES + 1)]
            if len(found) > _MOST_NAMES:
                log.warning("further names in %s are left out, because there are many", directory)
            return sorted(found[:_MOST_NAMES])
        except FileNotFoundError:
            return []
        except OSError as error:
            if directory == self._root or error.errno not in _OF_RECORD:
                raise
            log.warning("the records in %s are left out: %s", directory, error)
            return []


def create(config: str | None) -> FsspecTracker:
    """Return the tracker for a URL: `s3://bucket/runs`, `/shared/runs`.

    Args:
        config: the URL, or a file as in TorchX: lines `protocol=file`, `root_path=/runs`, and arguments of the file
            system.

    Raises:
        ValueError: the URL is missing, or the file has other lines or no `root_path`.
        MissingDependencyError: fsspec, or its package for the URL, is not installed.
    """
    if not config:
        raise ValueError("the tracker fsspec needs a URL; set `config` in the section tracker:fsspec")
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            "the tracker fsspec needs the package fsspec; install the extra 'fsspec' of airflow-provider-launch"
        ) from error
    arguments: dict[str, str] = {}
    if "://" not in config and Path(config).is_file():
        config, arguments = _from_file(Path(config))
    try:
        fs, root = fsspec.core.url_to_fs(config, **arguments)
    except ImportError as error:
        raise MissingDependencyError(f"the tracker fsspec needs another package for {config!r}: {error}") from error
    return FsspecTracker(fs, root)


def _from_file(path: Path) -> tuple[str, dict[str, str]]:
    """Return the URL of a configuration file of TorchX, and the other arguments in it."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"tracker fsspec: {path} has the line {line!r}; write name=value")
        found[name.strip()] = value.strip()
    protocol, root = found.pop("protocol", "file"), found.pop("root_path", "")
    if not root:
        raise ValueError(f"tracker fsspec: {path} names no root_path; add the line root_path=/shared/runs")
    return f"{protocol}://{root}", found
