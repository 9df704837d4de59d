"""How the commands of a cluster are run: on the worker itself, or on a login node.

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
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_launch.specs.errors import SchedulerUnavailableError

__all__ = ["Answer", "LocalTransport", "Transport"]

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "SLURM_CONF", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Answer:
    """What a script wrote, and its exit code."""

    code: int
    out: bytes
    error: str


class Transport(Protocol):
    """Runs scripts where the commands of Slurm are. Calls may come from several threads at once."""

    place: str
    """Where that is, for messages."""

    def run(self, script: str, *args: str, stdin: bytes = b"", timeout_s: float, can_wait: bool = False) -> Answer:
        """Run a script of sh to its end; one that can wait leaves room for others, even if it hangs.

        Raises:
            SchedulerUnavailableError: not reached, or no whole answer in time; what was run may have had its effect.
            SchedulerRejectedError: reached, and refused: host key, user, key.
        """
        ...

    def close(self) -> None:
        """Free the connections; may be repeated."""
        ...


class LocalTransport:
    """Runs scripts as processes of this host."""

    place = "this host"

    def run(
        self,
        script: str,
        *args: str,
        stdin: bytes = b"",
        timeout_s: float,
        can_wait: bool = False,  # noqa: ARG002 - each has a process of its own
    ) -> Answer:
        """Run a script to its end; see `Transport`."""
        # The rest of the launcher's environment holds secrets, and sbatch takes it over into the job.
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
                out, error = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired as late:
                raise SchedulerUnavailableError(
                    f"a command of Slurm on this host has not ended within {timeout_s:g} s"
                ) from late
            finally:
                # Also what the shell has started and waits for.
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        return Answer(process.returncode, out, error.decode("utf-8", "replace"))

    def close(self) -> None:
        """Do nothing: nothing is kept."""
