"""Several growing files merged into one."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.streams import Tee


def test_everything_written_before_close_arrives(tmp_path):
    out, one, two = tmp_path / "out", tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\n")
    tee = Tee(io.FileIO(out, "w"), str(one), str(two))
    two.write_bytes(b"x" * 200_000 + b"\n")
    tee.write(b"own\n")
    with one.open("ab") as file:
        file.write(b"last\n")

    tee.close()

    text = out.read_bytes()
    assert sorted(text.split(b"\n")) == sorted([b"a", b"last", b"own", b"x" * 200_000, b""])
    assert text.index(b"a\n") < text.index(b"last\n")


def test_lines_arrive_while_it_is_open(tmp_path):
    out, one = tmp_path / "out", tmp_path / "one"
    one.write_bytes(b"")
    tee = Tee(io.FileIO(out, "w"), str(one))
    one.write_bytes(b"now\n")
    deadline = time.monotonic() + 10
    while out.read_bytes() != b"now\n" and time.monotonic() < deadline:
        time.sleep(0.02)

    assert out.read_bytes() == b"now\n"
    tee.close()


def test_close_may_be_repeated(tmp_path):
    tee = Tee(io.FileIO(tmp_path / "out", "w"), str(tmp_path / "never"))
    tee.close()
    tee.close()


def test_close_leaves_no_file_and_no_thread(tmp_path):
    (tmp_path / "one").write_bytes(b"x" * 1_000_000)
    out = io.FileIO(tmp_path / "out", "w")
    opened = {path.resolve() for path in Path("/proc/self/fd").iterdir()}
    tee = Tee(out, str(tmp_path / "one"))
    tee.close()

    assert out.closed
    assert "launch-tee" not in [thread.name for thread in threading.enumerate()]
    assert (tmp_path / "one") not in {path.resolve() for path in Path("/proc/self/fd").iterdir()} - opened
    assert (tmp_path / "out").stat().st_size == 1_000_000


def test_a_source_is_needed(tmp_path):
    with io.FileIO(tmp_path / "out", "w") as out, pytest.raises(ValueError, match="at least one source"):
        Tee(out)
