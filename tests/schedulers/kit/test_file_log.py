"""Files of attempts, read as one log."""

from __future__ import annotations

from pathlib import Path

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
