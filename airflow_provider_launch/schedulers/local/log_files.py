"""Lines of one replica from its append-only files, by an exact cursor.

The cursor is `{"at": [app attempt, replica attempt], "stdout": [inode, offset, scanned], "stderr": [...]}`: offsets are
bytes of whole lines that were delivered; `scanned` says up to where no line feed was found beyond, so that a long line
which grows slowly is not searched again and again.
"""

from __future__ import annotations

import os
from typing import Any

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular
from airflow_provider_launch.schedulers.logs import JsonValue, LogChunk, LogLine, Stream, split_lines

__all__ = ["LONGEST_LINE", "read_chunk", "read_reply"]

CHUNK_BYTES = 256 * 1024
LONGEST_LINE = 16 * 1024 * 1024
"""Bytes after which a line without end is delivered in pieces: memory must not grow with the log."""
LONGEST_REPLY = 64 * 1024
_ORDER = (Stream.STDOUT, Stream.STDERR)


def read_chunk(
    app_dir: str, role_dir: str, k: int, cursor: JsonValue, streams: Stream | None, *, over: bool
) -> LogChunk:
    """Return the next lines of one replica.

    Args:
        app_dir: directory of the app.
        role_dir: directory name of the role.
        k: the replica.
        cursor: of an earlier chunk, or None.
        streams: what to read; None and COMBINED mean both.
        over: the app was terminal before this call, so nothing is added any more.
    """
    attempts = layout.attempts_of(app_dir, role_dir, k)
    state: dict[str, Any] = dict(cursor) if isinstance(cursor, dict) else {}
    wanted = _ORDER if streams in {None, Stream.COMBINED} else (streams,)
    lines: list[LogLine] = []
    for number, at in enumerate(attempts):
        if state.get("at") and list(at) < list(state["at"]):
            continue
        if state.get("at") != list(at):
            state = {"at": list(at)}
        path = layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])
        # Before the read: what was complete then is complete now.
        complete = over or number < len(attempts) - 1 or os.path.exists(f"{path}/exit")
        exhausted = True
        for stream in wanted:
            texts, state[stream.value], at_end = _read_file(f"{path}/{stream.value}", state.get(stream.value), complete)
            lines += [LogLine(text, stream, None, number) for text in texts]
            exhausted = exhausted and at_end
        if lines or not (complete and exhausted):
            break
    return LogChunk(lines, state or None)


def _read_file(path: str, position: Any, complete: bool) -> tuple[list[str], Any, bool]:
    """Return whole lines (with `complete` also an unfinished last one), the new position, whether nothing is left."""
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotRegularError):
        # The app has replaced its own file by what is none: nothing can be read from there.
        return [], position, True
    with file:
        status = os.fstat(file.fileno())
        inode, offset, scanned = position or (status.st_ino, 0, 0)
        if inode != status.st_ino:
            # Somebody replaced the file: its offsets mean nothing here.
            offset = scanned = 0
        size = status.st_size
        end = _end_of_lines(file, offset, max(scanned, offset), size, complete=complete)
        if end == offset:
            return [], [status.st_ino, offset, size], size <= offset
        file.seek(offset)
        data = _read_exactly(file, end - offset)
    return split_lines(data.decode("utf-8", "replace")), [status.st_ino, end, end], end >= size


def _end_of_lines(file: Any, offset: int, scanned: int, size: int, *, complete: bool) -> int:
    """Return the end of the last whole line in the next `CHUNK_BYTES`, or of the first line if it is longer."""
    # From here on nothing was searched yet; before it there is no line feed.
    position = scanned
    while position < size:
        file.seek(position)
        block = _read_exactly(file, min(CHUNK_BYTES, size - position))
        found = block.rfind(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(block)
        if not block:
            break
        if position - offset >= LONGEST_LINE:
            return position
    return position if complete else offset


def _read_exactly(file: Any, count: int) -> bytes:
    parts = []
    while count > 0:
        part = file.read(count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_reply(app_dir: str, role_dir: str, k: int) -> str | None:
    """Return what the last attempt of a replica wrote to `TORCHELASTIC_ERROR_FILE`."""
    attempts = layout.attempts_of(app_dir, role_dir, k)
    if not attempts:
        return None
    path = f"{layout.attempt_dir(app_dir, attempts[-1][0], role_dir, k, attempts[-1][1])}/error.json"
    try:
        with open_regular(path) as file:
            return file.read(LONGEST_REPLY).decode("utf-8", "replace") or None
    except OSError:
        return None
