"""Runs the commands of a cluster, on the worker itself or on a login node.

```python
answer = transport.run("squeue --me -h", stdin=b"", timeout_s=30)     # a script for sh; arguments are $1, $2, ...
answer.code, answer.out, answer.error
```
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_launch.specs.errors import SchedulerUnavailableError

ANSWER_BYTES = 128 * 1024 * 1024
"""Maximum bytes of one answer: an answer about a hundred thousand apps has half of it."""
_PIPE_BYTES = 64 * 1024
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "SLURM_CONF", "LD_LIBRARY_PATH")


class AnswerTooLargeError(SchedulerUnavailableError):
    """A script wrote more than `ANSWER_BYTES`."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host}: an answer has more than {ANSWER_BYTES >> 20} MB, and was not read completely")


@dataclass(frozen=True)
class Answer:
    """The output and exit code of a script."""

    code: int
    out: bytes
    error: str


class Transport(Protocol):
    """Runs scripts on the host that has the commands of Slurm. Thread-safe."""

    host: str
    """The host, for messages."""

    def run(self, script: str, *args: str, stdin: bytes = b"", timeout_s: float, can_wait: bool = False) -> Answer:
        """Run a script of sh to its end; scripts with `can_wait` leave capacity for others, even if they hang.

        Raises:
            SchedulerUnavailableError: unreachable, or no complete answer in time; the script may have had its effect.
            AnswerTooLargeError: the answer has more than `ANSWER_BYTES`.
            SchedulerRejectedError: the host refuses the login, or has another host key.
        """
        ...

    def close(self) -> None:
        """Close the connections; may be repeated."""
        ...


class LocalTransport:
    """Runs scripts as processes of this host."""

    host = "this host"

    def run(
        self,
        script: str,
        *args: str,
        stdin: bytes = b"",
        timeout_s: float,
        can_wait: bool = False,  # noqa: ARG002 - each script has its own process
    ) -> Answer:
        """Run a script to its end; see `Transport`."""
        # The launcher's environment has secrets, and sbatch would copy it into the job.
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        process = subprocess.Popen(
            ["/bin/sh", "-c", script, "launch", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        with process:
            try:
                deadline = time.monotonic() + timeout_s
                out, error = self._exchange(process, stdin, deadline)
                process.wait(max(0.0, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, TimeoutError) as late:
                raise SchedulerUnavailableError(
                    f"a command of Slurm on this host has not ended within {timeout_s:g} s"
                ) from late
            finally:
                # Kill the children of the shell, too.
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        return Answer(process.returncode, out, error.decode("utf-8", "replace"))

    def _exchange(self, process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
        """Return the output of a process: like `communicate`, with a limit for the bytes."""
        assert process.stdin
        assert process.stdout
        assert process.stderr
        out, error = process.stdout.fileno(), process.stderr.fileno()
        parts: dict[int, list[bytes]] = {out: [], error: []}
        left, size = memoryview(stdin), 0
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            for fd in parts:
                selector.register(fd, selectors.EVENT_READ)
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
                        if size > ANSWER_BYTES:
                            raise AnswerTooLargeError(self.host)
                        continue
                    left = _written(key.fd, left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
        return b"".join(parts[out]), b"".join(parts[error])

    def close(self) -> None:
        """Do nothing: there are no connections."""


def _written(fd: int, data: memoryview) -> memoryview:
    """Write as much as the pipe accepts; return the rest, which is empty if the other end was closed."""
    try:
        return data[os.write(fd, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]
