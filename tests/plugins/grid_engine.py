"""A Grid Engine of one host for tests, next to any that the host has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

HOME = Path("/usr/lib/gridengine")
"""Programs of the Debian packages."""
IS_INSTALLED = all((HOME / name).exists() for name in ("sge_qmaster", "sge_execd", "qsub")) and os.geteuid() == 0
REASON = "needs root, and Grid Engine: apt install gridengine-master gridengine-exec gridengine-client"

_SHARE = Path("/usr/share/gridengine")
_BOOTSTRAP = """admin_user none
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {root}/spooldb
binary_path /usr/sbin
qmaster_spool_dir {root}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
_ENVIRONMENT = """pe_name smp
slots 1000
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_QUEUE = {
    "qname": "all.q",
    "hostlist": "{host}",
    "pe_list": "smp",
    "slots": "100",
    "load_thresholds": "NONE",
    "priority": "10",
    "shell": "/bin/sh",
}
"""The rest is that of the template of `qconf`."""
_SCHEDULE = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}


class GridEngine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = socket.gethostname()
        with socket.create_server(("", 0)) as first, socket.create_server(("", 0)) as second:
            self.port, execd_port = first.getsockname()[1], second.getsockname()[1]
        self._env = {
            **os.environ,
            "SGE_ROOT": str(root),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(self.port),
            "SGE_EXECD_PORT": str(execd_port),
        }

    def run(self, program: str, *args: str) -> str:
        done = subprocess.run(
            [str(HOME / program), *args],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {args}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        common = self.root / "default" / "common"
        for folder in (common, self.root / "spooldb", self.root / "qmaster" / "job_scripts", self.root / "execd"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.root / name).symlink_to(f"/var/lib/gridengine/{name}")
        (common / "bootstrap").write_text(_BOOTSTRAP.format(root=self.root))
        (common / "act_qmaster").write_text(f"{self.host}\n")
        # The host may be its loopback address.
        (common / "host_aliases").write_text(f"{self.host} localhost\n")
        configuration = self.root / "configuration"
        text = (_SHARE / "default-configuration").read_text(encoding="utf-8")
        configuration.write_text(
            _changed(text, {"min_uid": "0", "min_gid": "0", "execd_spool_dir": f"{self.root}/execd"})
        )
        self.run("spoolinit", "berkeleydb", "libspoolb", f"{self.root}/spooldb", "init")
        for kind, path in (
            ("configuration", configuration),
            ("complexes", _SHARE / "util/resources/centry"),
            ("usersets", _SHARE / "util/resources/usersets"),
            ("managers", "root"),
        ):
            self.run("spooldefaults", kind, str(path))
        self.run("sge_qmaster")
        self._until("qconf", "-sh")
        self.run("qconf", "-as", self.host)
        self._add("-Msconf", _changed(self.run("qconf", "-ssconf"), _SCHEDULE))
        self._add("-Ap", _ENVIRONMENT)
        self.run("sge_execd")
        self._until("qconf", "-se", self.host)
        template = self.run("qconf", "-sq")
        self._add("-Aq", _changed(template, {name: text.format(host=self.host) for name, text in _QUEUE.items()}))

    def stop(self) -> None:
        for path in [*self.root.rglob("execd.pid"), *self.root.rglob("qmaster.pid")]:
            os.kill(int(path.read_text()), signal.SIGTERM)
        shutil.rmtree(self.root, ignore_errors=True)

    def _add(self, option: str, text: str) -> None:
        path = self.root / "given"
        path.write_text(text)
        self.run("qconf", option, str(path))

    def _until(self, program: str, *args: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self.run(program, *args)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


def _changed(text: str, values: dict[str, str]) -> str:
    """Return a configuration, which has one name and one value per line, with other values."""
    lines = []
    for line in text.splitlines():
        name = line.split(maxsplit=1)[0] if line.strip() else ""
        lines.append(f"{name} {values[name]}" if name in values else line)
    return "\n".join(lines) + "\n"
