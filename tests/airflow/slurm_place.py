"""Jobs of the Slurm cluster of the session, for the tests of the guarantees; the tasks reach it over ssh."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_launch.specs import Resource, Role
from tests.support.app_folders import unreadable


class SlurmPlace:
    """Apps below a directory of the test's own, behind a pipe in front of sshd."""

    lag_s, log_lag_s, drain_s = 3.0, 0.0, 0.0
    cfg_without_result: ClassVar[dict[str, Any]] = {}

    def __init__(self, cluster: Any, commands: Any, root: Path, pipe: Any) -> None:
        self.root = root
        self.mark = f"t{uuid.uuid4().hex[:10]}"
        sshd = cluster.sshd
        extra = {"root": str(root), "slurm_bin": str(commands.dir), "grace_s": 1, "settle_s": 2, "timeout_s": 5}
        extra |= {"ssh_host": "127.0.0.1", "ssh_port": pipe.port, "ssh_user": "root"}
        extra |= {"ssh_key_file": str(sshd.key), "ssh_host_key": sshd.host_key}
        self.connection = {"conn_type": "launch_slurm", "extra": extra}
        self.outages = {
            "connections are refused": pipe.refused,
            "commands hang": commands.hanging,
            "root is unreadable": lambda: unreadable(self.root),
        }
        self._cluster, self._commands, self._pipe = cluster, commands, pipe
        self._record, self._go = root.parent / f"ran-{self.mark}", root.parent / f"go-{self.mark}"

    def another(self) -> SlurmPlace:
        return SlurmPlace(self._cluster, self._commands, self.root, self._pipe)

    def role(self, script: str, **fields: Any) -> Role:
        text = f"echo $LAUNCH_REPLICA_ID >> {self._record}; GO={self._go}; {script}"
        resource = fields.pop("resource", Resource(cpu=1, gpu=0, memMB=64))
        return Role("main", "", entrypoint="sh", args=["-c", text], resource=resource, **fields)

    def apps(self) -> list[str]:
        return sorted(path.name for path in self.root.glob(f"apps/*{self.mark}*"))

    def starts(self) -> list[str]:
        return sorted(self._record.read_text().split()) if self._record.exists() else []

    def alive(self) -> int:
        return len(self._programs())

    def _programs(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[:2] == [b"sh", b"-c"] and str(self._go).encode() in words[2]:
                    found.append(int(entry.name))
        return found

    def go(self) -> None:
        self._go.touch()

    def vanish(self, app_id: str) -> None:
        # In one step: nothing is to be written any more about how the app ended.
        gone = self.root.parent / f"gone-{app_id}"
        (self.root / "apps" / app_id).rename(gone)
        self._cluster.run("scancel", "--full", "--signal=KILL", f"--name={app_id}")
        for pid in self._programs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(gone, ignore_errors=True)

    def stalled_logs(self) -> contextlib.AbstractContextManager[object]:
        return self._commands.hanging_logs()

    def close(self) -> None:
        self.go()
        for app_id in self.apps():
            with contextlib.suppress(Exception):
                self._cluster.run("scancel", f"--name={app_id}")
