"""Reads the log of one replica: from mounted files, or through the scripts if the worker has no mount."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers._kit.file_log import FIRST_BYTES
from airflow_provider_launch.schedulers.logs import JsonValue, LogChunk, Stream
from airflow_provider_launch.schedulers.slurm.records import damage_text
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.store import FilePart, Store

_INDEX = "times"
_AT_ONCE = 100
"""Number of attempts whose log sizes are read with one request."""


def read_chunk(
    store: Store,
    mount: str | None,
    app_id: str,
    replica: tuple[int, str, int],
    cursor: JsonValue,
    streams: Stream | None,
    *,
    most_attempts: int,
) -> LogChunk:
    """Return the next lines of one replica: number and directory of its role, and its own number.

    `mount` is the directory where the root of the store is mounted on this host, or None. The app can write records of
    attempts itself, so more than `most_attempts` are refused.

    Raises:
        SchedulerUnavailableError: the mount does not show the app, although it has started.
    """
    role, folder, k = replica

    def path(at: tuple[int, int], name: str) -> str:
        return f"run/{at[0]}/{folder}/{k}/{at[1]}/{name}"

    # Usually the attempt that was read last is still the newest, and this is the only request.
    last_read = cursor.get("at") if isinstance(cursor, dict) else None
    at = (int(last_read[0]), int(last_read[1])) if isinstance(last_read, Sequence) else (0, 0)
    wanted = [one for one in (Stream.STDOUT, Stream.STDERR) if streams in {None, Stream.COMBINED, one}]
    # Read the index first, so that it has no positions beyond the logs.
    parts = [(path(at, _INDEX), max(0, file_log.index_position_in(cursor, at, wanted) - 1), FIRST_BYTES)]
    parts += [(path(at, one.value), file_log.position_in(cursor, at, one), file_log.CHUNK_BYTES) for one in wanted]
    over, attempts, found = store.logs(app_id, role, k, [] if mount else parts)
    if len(attempts) > most_attempts:
        raise AppUnavailableError(
            damage_text(
                app_id, f"status has {len(attempts)} attempts of one replica; at most {most_attempts} are possible"
            )
        )
    offsets = {part[0]: part[1] for part in parts}
    numbers = [(one.app_attempt, one.number) for one in attempts]
    measured = {at: True}
    """Attempt to whether it has written lines; its value does not matter for the attempt that was just read."""
    local_dir = _mounted(mount, app_id, is_there=bool(attempts))

    @contextlib.contextmanager
    def open_file(at: tuple[int, int], wanted_name: str) -> Iterator[file_log.LogFile | None]:
        name = path(at, wanted_name)
        if local_dir:
            with file_log.open_file(name, str(local_dir)) as file:
                yield file
            return
        if at not in measured:
            # The app can write records of any number of attempts, so do not send one request for each.
            first = numbers.index(at)
            some = numbers[first : first + _AT_ONCE]
            sizes = [(path(one, stream.value), 0, 0) for one in some for stream in wanted]
            known = store.logs(app_id, role, k, sizes)[2]
            for one in some:
                files = [known.get(path(one, stream.value)) for stream in wanted]
                measured[one] = any(file is not None and file.size > 0 for file in files)
        if not measured[at]:
            yield None
            return
        if name not in offsets:
            # Read all files of an attempt at once, because each request is a command on the login node.
            more = [(path(at, _INDEX), 0, FIRST_BYTES)]
            more += [(path(at, one.value), 0, file_log.CHUNK_BYTES) for one in wanted]
            offsets.update((part[0], 0) for part in more)
            found.update(store.logs(app_id, role, k, more)[2])
        if name not in found:
            yield None
            return
        yield _Remote(store, (app_id, role, k, name), found[name], offsets[name])

    return file_log.read_chunk(
        numbers,
        cursor,
        streams,
        open_log=lambda at, stream: open_file(at, stream.value),
        open_index=lambda at: open_file(at, _INDEX),
        is_complete=lambda number: over or attempts[number].code is not None,
    )


def _mounted(mount: str | None, app_id: str, *, is_there: bool) -> Path | None:
    local_dir = Path(mount).expanduser() / "apps" / app_id if mount else None
    if local_dir and is_there and not local_dir.exists():
        # Else a missing mount would read as a log without lines.
        raise SchedulerUnavailableError(
            f"the mount {mount!r} does not show app {app_id!r}; mount it again, or leave out mount in the connection"
        )
    return local_dir


class _Remote:
    """A file on the cluster, of which a part was already read."""

    def __init__(self, store: Store, address: tuple[str, int, int, str], file: FilePart, offset: int) -> None:
        self._store = store
        self._address = address
        self.inode, self.size = file.inode, file.size
        self.modified = file.modified_ms / 1000
        self._offset, self._data = offset, file.data

    def read(self, offset: int, count: int) -> bytes:
        if self._offset <= offset and offset + count <= self._offset + len(self._data):
            return self._data[offset - self._offset : offset - self._offset + count]
        app_id, role, k, name = self._address
        _, _, found = self._store.logs(app_id, role, k, [(name, offset, count)])
        return found[name].data if name in found else b""
