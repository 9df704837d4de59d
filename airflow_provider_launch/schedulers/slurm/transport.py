"""Runs the commands of a cluster, on the worker itself or on a login node.

```python
answer = transport.run("squeue --me -h", stdin=b"", timeout_s=30)     # a script for sh; arguments are $1, $2, ...
answer.code, answer.out, answer.error
```
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_launch.schedulers._kit.program_output import exchange
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.util.untrusted import OversizedError

ANSWER_BYTES = 128 * 1024 * 1024
"""Maximum bytes of one answer: an answer about a hundred thousand apps has half of it."""
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
                out, error = exchange(process, deadline, ANSWER_BYTES, stdin)
                process.wait(max(0.0, deadline - time.monotonic()))
            except OversizedError as large:
                raise AnswerTooLargeError(self.host) from large
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

    def close(self) -> None:
        """Do nothing: there are no connections."""
