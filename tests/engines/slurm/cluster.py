"""Our Slurm cluster on this host: slurmctld, three virtual nodes, munge and sshd, stopped by their pids."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import install
from tests.engines.slurm.accounting import Accounting
from tests.engines.slurm.processes import PATH, children_of, is_gone, name_of, pid_in, wait
from tests.engines.slurm.sshd import Sshd

NODES = ("n1", "n2", "n3")
_PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_SSHD = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
_CONF = """
ClusterName=launch SlurmctldHost={host}(127.0.0.1) SlurmctldPort={port} SlurmUser=root SlurmdUser=root
AuthType=auth/munge AuthInfo=socket={dir}/munge/munge.sock,cred_expire=5 CredType=cred/munge
StateSaveLocation={dir}/state SlurmdSpoolDir={dir}/spool/%n SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid SlurmctldLogFile={dir}/log/slurmctld.log SlurmdLogFile={dir}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherType=jobacct_gather/none MpiDefault=none
SwitchType=switch/none SelectType=select/cons_tres SelectTypeParameters=CR_Core_Memory SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,bf_hetjob_immediate
MinJobAge={min_job_age_s} KillWait=30 ReturnToService=2 SlurmdTimeout=6 SlurmctldTimeout=30 InactiveLimit=0
{accounting} SlurmdParameters=config_overrides GresTypes=gpu MailProg={dir}/mail
HealthCheckProgram={dir}/resume HealthCheckInterval=5 HealthCheckNodeState=ANY
"""
_RESUME = """#!/bin/sh
# A node drains itself if a crashed controller reuses the number of its job. No administrator resumes it here.
export PATH={path} SLURM_CONF={conf}
sinfo -h -N -t drain,drng -o '%N|%E' | grep 'Duplicate jobid' | while IFS='|' read -r node why; do
    scontrol update nodename="$node" state=resume
done
exit 0
"""
_NODES_CONF = """
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=64 Sockets=1 CoresPerSocket=64 \
ThreadsPerCore=1 RealMemory=64000 Gres=gpu:fake:{fake_gpus},gpu:large:1 State=UNKNOWN
PartitionName=debug Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""


def install_programs() -> None:
    """Install what is missing, as root on Debian."""
    install(**_PROGRAMS, **_SSHD)


def why_missing() -> str | None:
    """Return the reason why a cluster cannot be started here, or None."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root can start a Slurm cluster"
    missing = [name for name in (*_PROGRAMS, *_SSHD) if not shutil.which(name, path=PATH)]
    return f"{', '.join(missing)}: not installed; LAUNCH_REQUIRE_ENGINES=slurm installs it" if missing else None


class Cluster:
    """A cluster below `dir`, with all its ports from `port` on: controller, three nodes, sshd."""

    def __init__(
        self, dir_: Path, port: int, *, min_job_age_s: int = 300, accounting: bool = False, fake_gpus: int = 2
    ) -> None:
        self.dir = dir_
        self.port = port
        self.min_job_age_s = min_job_age_s
        self.fake_gpus = fake_gpus
        self.accounting = Accounting(dir_ / "accounting", port + 7) if accounting else None
        self.sshd = Sshd(dir_ / "ssh", port + 9, {"SLURM_CONF": f"{dir_}/slurm.conf", "HOME": f"{dir_}/home"})

    @property
    def conf(self) -> Path:
        return self.dir / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": PATH, "SLURM_CONF": str(self.conf), "HOME": str(self.dir / "home"), "LANG": "C.UTF-8"}

    @property
    def home(self) -> Path:
        """The home of the login user; empty, because files of a real home slow down every command."""
        return self.dir / "home"

    def run(self, *command: str, timeout_s: float = 60) -> str:
        """Return the output of a Slurm command."""
        done = subprocess.run(command, env=self.env, text=True, capture_output=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise EngineError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def mails(self) -> list[str]:
        """Return a line for each mail that Slurm has sent: its subject, and last its user."""
        file = self.dir / "mails"
        return file.read_text().splitlines() if file.exists() else []

    def answers(self) -> bool:
        """Return whether all nodes are ready."""
        if not self.conf.exists() or pid_in(self.dir / "slurmctld.pid", "slurmctld") is None:
            return False  # without configuration each Slurm command retries for a minute
        try:
            idle = self.run("sinfo", "-h", "-t", "idle,mix,alloc", "-o", "%D", timeout_s=10).split()
        except (EngineError, subprocess.TimeoutExpired):
            return False
        return sum(map(int, idle)) == len(NODES) and self.sshd.runs()

    def start(self, timeout_s: float = 60) -> None:
        """Start the cluster, and wait until the nodes are ready."""
        self.stop()
        self.remove()
        for name in ("munge", "state", "log", "home", *(f"spool/{node}" for node in NODES)):
            (self.dir / name).mkdir(parents=True, exist_ok=True)
        (self.dir / "munge").chmod(0o711)
        self._write_conf()
        self._start_munge()
        if self.accounting:
            self.accounting.start(self.env)
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        self.sshd.start()
        wait(self.answers, timeout_s, f"the Slurm nodes below {self.dir} are ready; see {self.dir}/log")

    def start_controller(self, *flags: str) -> None:
        """Start slurmctld, which detaches itself."""
        (self.dir / "slurmctld.pid").unlink(missing_ok=True)
        self.run("slurmctld", *flags)

    def kill_controller(self) -> None:
        """Kill slurmctld, as in a crash; its unsaved state is lost."""
        if (pid := pid_in(self.dir / "slurmctld.pid", "slurmctld")) is not None:
            helpers = [child for child in children_of(pid) if name_of(child) == "slurmscriptd"]
            for one in (pid, *helpers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            wait(lambda: is_gone(pid), 10, "slurmctld is gone")

    def start_node(self, node: str) -> None:
        self.run("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill slurmd and all its processes, as in a power loss."""
        pid = pid_in(self.dir / f"slurmd-{node}.pid", "slurmd")
        steps = self.steps(node)
        for one in (*([pid] if pid else []), *steps):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def kill_daemon(self, node: str) -> None:
        """Kill only slurmd: Slurm loses the node, but its processes continue."""
        if (pid := pid_in(self.dir / f"slurmd-{node}.pid", "slurmd")) is not None:
            os.kill(pid, signal.SIGKILL)

    def steps(self, node: str) -> list[int]:
        """Return the pids of all processes below the jobs of one node."""
        mark = f"SLURMD_NODENAME={node}\0".encode()
        own = self._processes()
        found = [pid for pid, environ in own.items() if mark in environ]
        sessions = set(map(_session, found))
        # The first process of each session belongs to Slurm and lacks the variable.
        return found + [pid for pid in own if name_of(pid) == "slurmstepd" and _session(pid) in sessions]

    def _processes(self) -> dict[int, bytes]:
        """Return pid to environment of the processes of jobs of this cluster."""
        mark, found = f"SLURM_CONF={self.conf}\0".encode(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (entry / "environ").read_bytes() + b"\0"
                if mark in environ and (b"SLURMD_NODENAME=" in environ or name_of(int(entry.name)) == "slurmstepd"):
                    found[int(entry.name)] = environ
        return found

    def stop(self) -> None:
        """Stop all daemons and their jobs."""
        if self.conf.exists() and pid_in(self.dir / "slurmctld.pid", "slurmctld") is not None:
            with contextlib.suppress(EngineError, subprocess.TimeoutExpired):
                self.run("scancel", "--full", "--signal=KILL", "--user=root", timeout_s=10)
                self.run("scancel", "--user=root", timeout_s=10)
                deadline = time.monotonic() + 10
                while self.run("squeue", "-h", "-t", "running,completing") and time.monotonic() < deadline:
                    time.sleep(0.1)
        for name, program in [*((f"slurmd-{node}", "slurmd") for node in NODES), ("slurmctld", "slurmctld")]:
            self._end(name, program)
        # Processes of jobs that a killed controller could not stop.
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.accounting:
            self.accounting.stop()
        self.sshd.stop()
        self._end("munge/munged", "munged")

    def remove(self) -> None:
        shutil.rmtree(self.dir, ignore_errors=True)

    def _end(self, name: str, program: str) -> None:
        if (pid := pid_in(self.dir / f"{name}.pid", program)) is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            wait(lambda: is_gone(pid), 15, f"{program} ends")
        except EngineError:
            os.kill(pid, signal.SIGKILL)

    def _write_conf(self) -> None:
        host = socket.gethostname().split(".")[0]
        values = {
            "dir": self.dir,
            "host": host,
            "port": self.port,
            "first": self.port + 1,
            "last": self.port + len(NODES),
            "min_job_age_s": self.min_job_age_s,
            "fake_gpus": self.fake_gpus,
            "accounting": self.accounting.conf if self.accounting else "AccountingStorageType=accounting_storage/none",
        }
        self.conf.write_text("\n".join(_CONF.format(**values).split()) + "\n" + _NODES_CONF.format(**values))
        resume = self.dir / "resume"
        resume.write_text(_RESUME.format(path=PATH, conf=self.conf))
        resume.chmod(0o755)
        # Devices that every host has; no test opens them.
        gpus = (f"Type=fake File=/dev/tty[10-{9 + self.fake_gpus}]", f"Type=large File=/dev/tty{10 + self.fake_gpus}")
        (self.dir / "gres.conf").write_text("".join(f"NodeName=n[1-3] Name=gpu {gpu}\n" for gpu in gpus))
        # Slurm calls it with a subject and a user.
        mail = self.dir / "mail"
        mail.write_text(f'#!/bin/sh\necho "$*" >>{self.dir}/mails\n')
        mail.chmod(0o755)

    def _start_munge(self) -> None:
        munge = self.dir / "munge"
        key = munge / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log")
        files = [f"--{name}={munge}/{file}" for name, _, file in (text.partition("=") for text in names)]
        self.run("munged", *files, f"--seed-file={munge}/munged.seed", "--num-threads=2")


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
