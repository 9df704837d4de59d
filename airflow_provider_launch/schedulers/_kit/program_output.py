"""Reads the output of a program of a scheduler, with limits for its time and its bytes."""

from __future__ import annotations

import os
import selectors
import subprocess
import time

from airflow_provider_launch.util.untrusted import OversizedError

_PIPE_BYTES = 64 * 1024


def exchange(
    process: subprocess.Popen[bytes], deadline: float, most_bytes: int, stdin: bytes = b""
) -> tuple[bytes, bytes]:
    """Return stdout and stderr of a process, like `communicate`, once both are closed.

    `deadline` is a time of `time.monotonic`; `most_bytes` limits both together, because a broken program may write for
    ever. Raises TimeoutError or OversizedError beyond these.
    """
    assert process.stdout
    assert process.stderr
    out, error = process.stdout.fileno(), process.stderr.fileno()
    parts: dict[int, list[bytes]] = {out: [], error: []}
    left, size = memoryview(stdin), 0
    with selectors.DefaultSelector() as selector:
        for fd in parts:
            selector.register(fd, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            if (wait_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(wait_s):
                if key.fd in parts:
                    part = os.read(key.fd, _PIPE_BYTES)
                    parts[key.fd].append(part)
                    size += len(part)
                    if not part:
                        selector.unregister(key.fd)
                    if size > most_bytes:
                        raise OversizedError(f"it wrote more than {most_bytes >> 20} MB")
                    continue
                left = _written(key.fd, left)
                if not left and process.stdin is not None:
                    selector.unregister(process.stdin)
                    process.stdin.close()
    return b"".join(parts[out]), b"".join(parts[error])


def _written(fd: int, data: memoryview) -> memoryview:
    """Write as much as the pipe accepts; return the rest, which is empty if the other end was closed."""
    try:
        return data[os.write(fd, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]
