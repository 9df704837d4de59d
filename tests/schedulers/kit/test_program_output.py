"""The output of a program within limits: real programs that read little, write much or never end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_launch.schedulers._kit.program_output import _written, exchange
from airflow_provider_launch.util.untrusted import OversizedError

LIMIT_S = 20
MANY = b"x" * 300_000
"""More than a pipe takes at once."""


@contextmanager
def program(script: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("script", "stdin", "out", "error"),
    [
        ("echo out; echo error >&2", b"", b"out\n", b"error\n"),
        ("cat", MANY, MANY, b""),
        ("exec >&-; cat >&2", MANY, b"", MANY),
        ("exec 2>&-; cat", MANY, MANY, b""),
        ("head -c 3; exec <&-; sleep 0.2; echo .", MANY, b"xxx.\n", b""),
        ("exec <&-; echo done", MANY, b"done\n", b""),
    ],
    ids=["two streams", "much", "stdout closed", "stderr closed", "stdin half read", "stdin closed"],
)
def test_all_is_exchanged(script: str, stdin: bytes, out: bytes, error: bytes) -> None:
    """A stream that is closed, or read by no program, does not delay the others."""
    with program(script) as process:
        assert exchange(process, time.monotonic() + LIMIT_S, len(MANY), stdin) == (out, error)


@pytest.mark.parametrize(
    ("script", "limit_s", "error"),
    [("exec sleep 60", 0.2, TimeoutError), ("exec cat /dev/zero", LIMIT_S, OversizedError)],
    ids=["time", "bytes"],
)
def test_a_program_that_never_ends_is_an_error(script: str, limit_s: float, error: type[Exception]) -> None:
    with program(script) as process, pytest.raises(error):
        exchange(process, time.monotonic() + limit_s, 2 * 1024 * 1024)


def test_a_full_pipe_takes_nothing_and_keeps_the_rest() -> None:
    """Another process may have filled it since the pipe was found to have space."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        rest = _written(writer, memoryview(MANY))
        assert 0 < len(rest) < len(MANY)
        assert _written(writer, rest) == rest
    finally:
        os.close(reader)
    assert _written(writer, rest) == b""
    os.close(writer)
