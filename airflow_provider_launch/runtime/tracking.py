"""Small results of a job by key, stored as one JSON file each, for scripts without a tracker."""

from __future__ import annotations

import abc
import json
import posixpath
from collections.abc import Mapping
from typing import Any


class ResultTracker(abc.ABC):
    """Stores a mapping of plain values for each key."""

    @abc.abstractmethod
    def __getitem__(self, key: str | int) -> Mapping[str, Any]:
        """Return the values stored under the key; empty for an unknown key."""

    @abc.abstractmethod
    def __setitem__(self, key: str | int, value: Mapping[str, Any]) -> None:
        """Store values under a key, such as a name or the number of a trial; they replace earlier ones."""

    def put(self, key: str | int, **values: Any) -> None:
        """Store values under a key; the same as `tracker[key] = values`."""
        self[key] = values

    def get(self, key: str | int) -> Mapping[str, Any]:
        """Return the values stored under the key; the same as `tracker[key]`."""
        return self[key]


class FsspecResultTracker(ResultTracker):
    """Stores each key as a file below a directory on any fsspec file system.

    Args:
        tracker_base: the directory, as `/path` or `s3://bucket/path`; created if missing.
    """

    def __init__(self, tracker_base: str) -> None:
        import fsspec

        self._fs, self._base = fsspec.core.url_to_fs(tracker_base)

    def __getitem__(self, key: str | int) -> Mapping[str, Any]:
        path = self._path(key)
        if not self._fs.exists(path):
            return {}
        found: dict[str, Any] = json.loads(self._fs.cat_file(path))
        return found

    def __setitem__(self, key: str | int, value: Mapping[str, Any]) -> None:
        path = self._path(key)
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, json.dumps(dict(value)).encode())

    def _path(self, key: str | int) -> str:
        parts = str(key).strip("/").split("/")
        if not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"key {key!r} points outside of the tracker; use names separated by '/'")
        return posixpath.join(self._base, *parts[:-1], f"{parts[-1]}.json")
