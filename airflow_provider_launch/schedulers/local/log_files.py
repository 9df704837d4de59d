"""Reads the files that the programs of one replica write: logs, error file and result."""

from __future__ import annotations

import os

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.local import layout, log_times
from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular
from airflow_provider_launch.schedulers.local.shim import ending_of
from airflow_provider_launch.schedulers.logs import JsonValue, LogChunk, LogLine, Stream
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.specs.errors import InvalidAppError

LONGEST_REPLY = 64 * 1024
_EXIT_PARTS = 100


def read_chunk(
    app_dir: str, role_dir: str, k: int, cursor: JsonValue, streams: Stream | None, *, over: bool
) -> LogChunk:
    """Return the next lines of one replica.

    With `over` the app was terminal before this call, so the logs are complete.
    """
    attempts = layout.attempts_of(app_dir, role_dir, k)

    def path(at: tuple[int, int]) -> str:
        return layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])

    return file_log.read_chunk(
        attempts,
        cursor,
        streams,
        open_log=lambda at, stream: file_log.open_file(f"{path(at)}/{stream.value}"),
        open_index=lambda at: file_log.open_file(f"{path(at)}/{log_times.NAME}"),
        is_complete=lambda number: over or os.path.exists(f"{path(attempts[number])}/exit"),
    )


def read_unfinished(app_dir: str, role_dir: str, k: int, cursor: JsonValue, streams: Stream | None) -> LogLine | None:
    """Return the text after the last line of the newest attempt of a replica, from the stream written last."""
    attempts = layout.attempts_of(app_dir, role_dir, k)
    if not attempts:
        return None
    at = attempts[-1]
    found: list[tuple[float, LogLine]] = []
    for stream in (Stream.STDOUT, Stream.STDERR) if streams in {None, Stream.COMBINED} else (streams,):
        path = f"{layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])}/{stream.value}"
        with file_log.open_file(path) as file:
            text = file_log.unfinished_text(file, file_log.position_in(cursor, at, stream)) if file else ""
        if text:
            found.append((os.stat(path).st_mtime, LogLine(text, stream, None, len(attempts) - 1)))
    return max(found)[1] if found else None


def read_ending(app_dir: str, role_dir: str, k: int, attempt: int) -> str:
    """Return how an attempt of a replica ended; empty if it has not ended, or does not exist."""
    attempts = layout.attempts_of(app_dir, role_dir, k)
    if attempt >= len(attempts):
        return ""
    at = attempts[attempt]
    path = f"{layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])}/exit"
    try:
        document = layout.read_record(path, _EXIT_PARTS, layout.LARGEST_EXIT)
        is_sound = document and isinstance(document["code"], (int, type(None)))
        return ending_of(document) if is_sound else ""
    except FileNotFoundError:
        return ""
    except (NotRegularError, LookupError, TypeError, ValueError, AttributeError):
        return ""  # its program has replaced the file of the shim


# The state has the last attempt, because a listing of its directory, in which its program may have put any number of
# files, would cost time for each replica.


def read_reply(app_dir: str, role_dir: str, k: int, at: tuple[int, int]) -> str | None:
    """Return the text that an attempt of a replica wrote to `TORCHELASTIC_ERROR_FILE`.

    `at` is its attempt, as attempt of the app and of the replica. An OSError means that it cannot be read now.
    """
    try:
        with open_regular(f"{layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])}/error.json") as file:
            return file.read(LONGEST_REPLY).decode("utf-8", "replace") or None
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotRegularError):
        return None


def read_result(app_dir: str, role_dir: str, k: int, at: tuple[int, int]) -> JsonValue:
    """Return the result of a replica of the first role; None if it wrote none. `at` is as in `read_reply`."""
    try:
        with open_regular(f"{layout.attempt_dir(app_dir, at[0], role_dir, k, at[1])}/result") as file:
            data = file.read(RESULT_LIMIT_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    except NotRegularError as error:
        raise InvalidAppError(
            "the result is not a regular file; write one JSON document to LAUNCH_RESULT_PATH"
        ) from error
    return parse_result(data, size)
