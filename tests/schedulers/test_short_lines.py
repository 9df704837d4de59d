"""Chunks of very short lines, each of which takes far more memory than its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.docker.log_frames import LineReader
from airflow_provider_launch.schedulers.logs import MOST_LINES, Stream


def read(path: Path, cursor: object) -> file_log.LogChunk:
    return file_log.read_chunk(
        [(0, 0)], cursor, Stream.STDOUT, open_log=lambda _at, _stream: file_log.open_file(str(path)),
        is_complete=lambda _number: True,
    )  # fmt: skip


@pytest.mark.parametrize("count", [MOST_LINES - 1, MOST_LINES, MOST_LINES + 1, 3 * MOST_LINES + 5])
def test_a_file_of_empty_lines_is_read_in_small_chunks(tmp_path, count):
    path = tmp_path / "stdout"
    path.write_text("\n" * (count - 1) + "last\n")
    texts: list[str] = []
    cursor = None
    while (chunk := read(path, cursor)).lines:
        assert len(chunk.lines) <= MOST_LINES
        texts += [line.text for line in chunk.lines]
        cursor = chunk.cursor

    assert texts == ["\n"] * (count - 1) + ["last\n"]


def test_frames_of_empty_lines_are_read_in_small_chunks():
    reader = LineReader(None, None, 0)
    frames = iter([("stdout", number, b"\n") for number in range(3 * MOST_LINES)])
    sizes = []
    while True:
        lines: list[object] = []
        if not reader.take(frames, lines, 1 << 20, MOST_LINES):
            break
        sizes.append(len(lines))

    assert sizes == [MOST_LINES] * 3
