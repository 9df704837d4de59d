"""Merges several growing files into one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable

_POLL_S = 0.1
_CHUNK_BYTES = 64_000


class Tee:
    """Copies everything appended to the source files into `out`, in a daemon thread, until it is closed.

    A source may appear later. `out` belongs to the Tee, which closes it.
    """

    def __init__(self, out: io.FileIO, *sources: str) -> None:
        if not sources:
            raise ValueError("Tee needs at least one source file")
        self.out = out
        self._sources = [Path(source) for source in sources]
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launch-tee", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Append `data` to the output, never in the middle of a chunk from a source."""
        with self._lock:
            _write_all(self.out, data)

    def close(self) -> None:
        """Copy everything that is already in the sources, then stop; may be repeated."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.out.close()

    def _run(self) -> None:
        files: dict[Path, BinaryIO] = {}
        try:
            while not self._closing.is_set():
                self._copy(files)
                self._closing.wait(_POLL_S)
            self._copy(files)
        finally:
            for file in files.values():
                file.close()

    def _copy(self, files: dict[Path, BinaryIO]) -> None:
        for source in self._sources:
            if source not in files and source.exists():
                files[source] = source.open("rb")
        _copy_all(files.values(), self)


def _copy_all(files: Iterable[BinaryIO], tee: Tee) -> None:
    for file in files:
        while chunk := file.read(_CHUNK_BYTES):
            tee.write(chunk)


def _write_all(out: io.FileIO, data: bytes) -> None:
    """Write all of `data`, because a raw file may accept only a part."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) or 0 :]
