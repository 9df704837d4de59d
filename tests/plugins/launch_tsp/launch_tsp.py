"""Task spooler (`tsp`), the queue of one host, as a scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge

from airflow_provider_launch.schedulers.queue import (
    JobState,
    JobStatus,
    QueueConnection,
    QueueJob,
    QueueOpts,
    QueueScheduler,
    run_command,
)
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError

_STATES = {
    "queued": JobState.QUEUED,
    "running": JobState.RUNNING,
    "finished": JobState.ENDED,
    "skipped": JobState.ENDED,
}


@dataclass(frozen=True)
class TspConnection(QueueConnection):
    """Options of a connection."""

    socket: str = "/tmp/launch-tsp"
    """Socket of the server of task spooler."""


@dataclass(frozen=True)
class TspOpts(QueueOpts):
    """Options of one launch."""

    slots: Annotated[int, Ge(1)] = 1
    """Slots of the queue that the app uses."""


class TspScheduler(QueueScheduler):
    """Runs each app as one job of task spooler."""

    name: ClassVar[str] = "tsp"
    opts_type = TspOpts
    connection_type = TspConnection
    poll_interval_s: ClassVar[float] = 0.5

    def submit_job(self, job: QueueJob) -> str:
        # This command starts the server if there is none.
        command = ["-L", job.app_id, "-N", str(job.options["slots"]), *job.command]
        return self._tsp(*command, TMPDIR=job.directory).strip()  # the job has an empty file there

    def job_statuses(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self._refuse_no_server()
        found = {}
        for line in self._tsp("-l").splitlines()[1:]:
            job_id, word = [*line.split(), "", ""][:2]  # the name of another job may have several lines
            if job_id in job_ids and word:
                found[job_id] = JobStatus(_STATES.get(word, JobState.RUNNING))
        return found

    def end_job(self, job_id: str) -> None:
        if not self._removed(job_id):
            self._tsp("-k", job_id)  # it has just started

    def forget_job(self, job_id: str) -> None:
        self._removed(job_id)

    def _removed(self, job_id: str) -> bool:
        """Remove a job that does not run; return whether the queue does not list it any more."""
        self._refuse_no_server()
        try:
            self._tsp("-r", job_id)
        except SchedulerRejectedError:
            # It runs, or another process was faster.
            return job_id not in self.job_statuses([job_id])
        return True

    def _tsp(self, *args: str, **env: str) -> str:
        return run_command(["tsp", *args], env={"TS_SOCKET": self.connection.socket, **env})

    def _refuse_no_server(self) -> None:
        # Any command would start another server, which lists no jobs.
        if not Path(self.connection.socket).is_socket():
            raise SchedulerUnavailableError(
                f"no server has the socket {self.connection.socket!r}; run tsp to start one"
            )


create_scheduler = TspScheduler.create
