"""Files of attempts, read as one log."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.api import LogChunk


def read(tmp_path, cursor=None) -> LogChunk:
    return file_log.read_chunk(
        [(0, 0), (0, 1)],
        cursor,
        None,
        open_log=lambda at, stream: file_log.open_file(str(tmp_path / f"{at[1]}.{stream.value}")),
        is_complete=lambda _number: False,
    )


def test_an_earlier_attempt_has_ended_also_within_a_line(tmp_path):
    """Its log is complete, although its end was never stored."""
    (tmp_path / "0.stdout").write_text("whole\nhalf")
    (tmp_path / "1.stdout").write_text("again\nunfinished")
    first = read(tmp_path)
    second = read(tmp_path, first.cursor)

    assert [line.text for line in first.lines] == ["whole\n"]
    assert [(line.text, line.attempt) for line in second.lines] == [("half", 0)]
    assert [line.text for line in read(tmp_path, second.cursor).lines] == ["again\n"]


def test_each_file_of_a_log_is_closed(tmp_path):
    """A triggerer reads the files of many apps for months; a directory in place of a file is closed, too."""
    (tmp_path / "0.stdout").write_text("one\n")
    (tmp_path / "1.stdout").mkdir()
    read(tmp_path)
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        read(tmp_path)

    assert len([*Path("/proc/self/fd").iterdir()]) < before + 10  # threads of other tests may open some


@pytest.mark.parametrize("has_root", [False, True], ids=["path", "below a root"])
@pytest.mark.parametrize("name", ["absent", "folder", "link", "socket", "fifo"])
def test_a_file_that_is_not_a_plain_one_is_none(tmp_path, monkeypatch, name, has_root):
    """A program may put anything in place of its log, which must not be followed and must not block."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # the path of a socket is limited to 108 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        path = name if has_root else str(tmp_path / name)
        with file_log.open_file(path, str(tmp_path) if has_root else None) as found:
            assert found is None


def test_a_folder_of_a_log_that_was_replaced_is_no_error_below_a_root(tmp_path):
    """There the program owns the folders; elsewhere the path comes from the launcher."""
    (tmp_path / "file").write_text("x")
    with file_log.open_file("file/log", str(tmp_path)) as found:
        assert found is None
    with pytest.raises(NotADirectoryError), file_log.open_file(str(tmp_path / "file" / "log")):
        pass


@pytest.mark.parametrize("has_root", [False, True], ids=["path", "below a root"])
def test_an_error_of_the_file_system_is_not_an_empty_log(tmp_path, has_root):
    """An empty log would hide an outage of the file system, and the reader would never retry."""
    name = "x" * 300
    path = name if has_root else str(tmp_path / name)
    opened = file_log.open_file(path, str(tmp_path) if has_root else None)
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)), opened:
        pass
