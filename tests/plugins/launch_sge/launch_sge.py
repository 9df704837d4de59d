"""Grid Engine (`qsub`) as a scheduler: each app is one job, on one host."""

import math
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from xml.etree import ElementTree as ET

from airflow_provider_launch.schedulers.queue import (
    JobState,
    JobStatus,
    QueueConnection,
    QueueJob,
    QueueOpts,
    QueueScheduler,
    run_command,
)
from airflow_provider_launch.specs.errors import SchedulerRejectedError

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNAVAILABLE = ["commlib error", "unable to send message to qmaster", "unable to contact qmaster"]


@dataclass(frozen=True)
class SgeConnection(QueueConnection):
    """Options of a connection."""

    sge_root: str = "/var/lib/gridengine"
    """Directory of Grid Engine."""

    qmaster_port: int | None = None
    """Port of the master. None means that of the service `sge_qmaster`."""


@dataclass(frozen=True)
class SgeOpts(QueueOpts):
    """Options of one launch."""

    queue: str | None = None
    """Queue that runs the app. None lets Grid Engine choose."""

    environment: str | None = None
    """Parallel environment with allocation rule `$pe_slots`, which gives a slot per CPU. None means one slot."""

    memory: str | None = None
    """Resource that gets the memory of the app, such as `h_vmem`. None requests no memory."""


class SgeScheduler(QueueScheduler):
    """Runs each app as one job of Grid Engine."""

    name: ClassVar[str] = "sge"
    opts_type = SgeOpts
    connection_type = SgeConnection
    poll_interval_s: ClassVar[float] = 1

    def submit_job(self, job: QueueJob) -> str:
        args = ["-terse", "-N", f"launch-{job.app_id}", "-j", "y", "-o", f"{job.directory}/job.log"]
        slots = math.ceil(job.cpu) or 1
        if queue := job.options["queue"]:
            args += ["-q", queue]
        if environment := job.options["environment"]:
            args += ["-pe", environment, str(slots)]
        if (memory := job.options["memory"]) and job.memory_mb:
            # Grid Engine multiplies it by the slots.
            per_slot = math.ceil(job.memory_mb / (slots if environment else 1))
            args += ["-l", f"{memory}={per_slot}M"]
        return self._run("qsub", *args, "-shell", "n", "-b", "y", *job.command).strip()

    def job_statuses(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        found = {}
        # A name may have characters that no XML has, which would hide all jobs.
        text = _NO_XML.sub("?", self._run("qstat", "-xml", "-u", _user()))
        for job in ET.fromstring(text).iter("job_list"):
            job_id = job.findtext("JB_job_number", "")
            if job_id in job_ids:
                found[job_id] = _status(job.findtext("state", ""))
        return found

    def end_job(self, job_id: str) -> None:
        try:
            self._run("qdel", job_id)
        except SchedulerRejectedError:
            if job_id in self.job_statuses([job_id]):
                raise

    def _run(self, *command: str) -> str:
        env = {"SGE_ROOT": self.connection.sge_root}
        if self.connection.qmaster_port:
            env["SGE_QMASTER_PORT"] = str(self.connection.qmaster_port)
        return run_command(command, env=env, unavailable=_UNAVAILABLE)


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _status(word: str) -> JobStatus:
    """Translate the letters of a state, such as `qw`, `hqw`, `Eqw`, `r` or `dr`."""
    if "qw" not in word:
        return JobStatus(JobState.RUNNING)
    if "E" in word:
        return JobStatus(JobState.QUEUED, "the job could not start; see qstat -j, and qmod -cj", is_stuck=True)
    if "h" in word:
        return JobStatus(JobState.QUEUED, "the job is held; see qrls", is_stuck=True)
    return JobStatus(JobState.QUEUED)


create_scheduler = SgeScheduler.create
