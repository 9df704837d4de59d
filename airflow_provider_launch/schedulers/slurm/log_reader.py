"""Lines of one replica: from the files where the worker has them mounted, else through the scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers._kit.time_index import FIRST_BYTES
from airflow_provider_launch.schedulers.logs import JsonValue, LogChunk, Stream
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.store import FilePart, Store

__all__ = ["read_chunk"]

_INDEX = "times"


def read_chunk(
    store: Store, mount: str | None, app_id: str, place: tuple[int, str, int], cursor: JsonValue, streams: Stream | None
) -> LogChunk:
    """Return the next lines of one replica.

    Args:
        store: of the app.
        mount: where its root is mounted here; None: nowhere.
        app_id: the app.
        place: number and directory of the role, and the replica.
        cursor: of an earlier chunk, or None.
        streams: what to read; None means both.

    Raises:
        UnknownAppException: there is no such app.
        SchedulerUnavailableError: the mount does not show the app, which has begun.
    """
    role, folder, k = place

    def path(at: tuple[int, int], name: str) -> str:
        return f"run/{at[0]}/{folder}/{k}/{at[1]}/{name}"

    # Mostly the attempt that was read last is still the newest: then this is the only request.
    known = cursor.get("at") if isinstance(cursor, dict) else None
    at = (int(known[0]), int(known[1])) if isinstance(known, Sequence) else (0, 0)
    wanted = [one for one in (Stream.STDOUT, Stream.STDERR) if streams in {None, Stream.COMBINED, one}]
    # The index first: what it has is then about what the logs have.
    parts = [(path(at, _INDEX), max(0, file_log.index_position_in(cursor, at, wanted) - 1), FIRST_BYTES)]
    parts += [(path(at, one.value), file_log.position_in(cursor, at, one), file_log.CHUNK_BYTES) for one in wanted]
    over, attempts, found = store.logs(app_id, role, k, [] if mount else parts)
    offsets = {part[0]: part[1] for part in parts}
    local_dir = Path(mount).expanduser() / "apps" / app_id if mount else None
    if local_dir and attempts and not local_dir.exists():
        # Without this a mount that is away would be a log without lines.
        raise SchedulerUnavailableError(
            f"the mount {mount!r} does not show app {app_id!r}; mount it again, or leave out mount in the connection"
        )

    @contextlib.contextmanager
    def open_file(name: str, count: int) -> Iterator[file_log.LogFile | None]:
        if local_dir:
            with file_log.open_file(name, str(local_dir)) as file:
                yield file
            return
        if name not in offsets:
            offsets[name] = 0
            _, _, more = store.logs(app_id, role, k, [(name, 0, count)])
            found.update(more)
        if name not in found:
            yield None
            return
        yield _Remote(store, (app_id, role, k, name), found[name], offsets[name])

    return file_log.read_chunk(
        [(one.app_attempt, one.number) for one in attempts],
        cursor,
        streams,
        open_log=lambda at, stream: open_file(path(at, stream.value), file_log.CHUNK_BYTES),
        open_index=lambda at: open_file(path(at, _INDEX), FIRST_BYTES),
        is_complete=lambda number: over or attempts[number].code is not None,
    )


class _Remote:
    """A file of the cluster, of which a part is here already."""

    def __init__(self, store: Store, place: tuple[str, int, int, str], file: FilePart, offset: int) -> None:
        self._store = store
        self._place = place
        self.inode, self.size = file.inode, file.size
        self.modified = file.modified_ms / 1000
        self._offset, self._data = offset, file.data

    def read(self, offset: int, count: int) -> bytes:
        if self._offset <= offset and offset + count <= self._offset + len(self._data):
            return self._data[offset - self._offset : offset - self._offset + count]
        app_id, role, k, name = self._place
        _, _, found = self._store.logs(app_id, role, k, [(name, offset, count)])
        return found[name].data if name in found else b""
