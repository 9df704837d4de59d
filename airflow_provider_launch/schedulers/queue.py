"""Base for schedulers of queues whose jobs see the files of the launcher: PBS, LSF, HTCondor, Flux, task spooler.

A subclass submits a job, reports the statuses of many jobs, and ends a job. This base does the rest: one job runs the
whole app under the supervisor of the local scheduler, with the same files, so replicas, retries, grace, exit codes,
logs, results and deletion are those of `local`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from annotated_types import Ge

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE
from airflow_provider_launch.schedulers._kit.program_output import exchange
from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, StructuredOpts
from airflow_provider_launch.schedulers.local import bare, layout, processes, status
from airflow_provider_launch.schedulers.local.options import LocalOpts
from airflow_provider_launch.schedulers.local.request import LocalRequest, format_request
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    LaunchError,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.util.untrusted import UntrustedError, one_line

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_provider_launch.schedulers.local.records import StoredApp

__all__ = ["JobState", "JobStatus", "QueueConnection", "QueueJob", "QueueOpts", "QueueScheduler", "run_command"]

T = TypeVar("T")
_COMMAND_TIMEOUT_S = 60.0
_ANSWER_BYTES = 128 * 1024 * 1024
"""Maximum bytes of one answer: the list of a hundred thousand jobs has a tenth of it."""
_SUBMIT_WAIT_S = 90.0
"""Seconds for which a launcher waits for another one that submits the same app."""
_SUBMIT_PAUSE_S = 0.05
_DELETE_S, _DELETE_PAUSE_S = 10.0, 0.1
_LONGEST_ID = 1000
_JOB_ID = re.compile(r"\w[\w.:@#/+=~\[\]{}()-]*")
"""Valid ids of jobs. Another text could mean several jobs or an option in a command of the queue: `1,2`, `*`, `-u`."""


class _RemovedError(SchedulerUnavailableError):
    """The app was removed while it was submitted or observed; an observer reports that it does not exist."""


class JobState(enum.Enum):
    """States of a job. A job that the queue does not list, or not any more, has none."""

    QUEUED = "queued"
    """It has not started."""
    RUNNING = "running"
    """It runs, or the queue is starting or ending it."""
    ENDED = "ended"
    """It has ended, and the queue still lists it."""


@dataclass(frozen=True)
class JobStatus:
    """The report of the queue about one job."""

    state: JobState
    message: str = ""
    """The reason, in one line: why it waits, or how it ended."""
    is_stuck: bool = False
    """Whether a queued job cannot start until a user changes something; the task then fails after its start timeout."""


@dataclass(frozen=True)
class QueueJob:
    """One job to submit, which runs a whole app."""

    app_id: str
    command: Sequence[str]
    """The program and its arguments. It needs no variables, and no working directory."""
    directory: str
    """The directory of the app, for files of the job."""
    cpu: float
    """CPUs of all replicas together; 0 if no role asks for any."""
    memory_mb: int
    """Memory of all replicas together; 0 if no role asks for any."""
    options: Mapping[str, Any]
    """The options of this launch."""


@dataclass(frozen=True)
class QueueOpts(LocalOpts):
    """Options of one launch; a subclass adds those of its queue."""

    time_limit_s: Annotated[float, Ge(1)] | None = None
    """Seconds after the start of its job when the app is ended as FAILED. None means no limit."""


@dataclass(frozen=True)
class QueueConnection(StructuredOpts):
    """Options of a connection; a subclass adds those of its queue."""

    root: str = ""
    """Directory of apps and logs: an absolute path, at which launcher, triggerer and all nodes see the same files."""

    keep_days: Annotated[int, Ge(0)] = 14
    """Days after which the directory of a finished app is removed."""

    max_time_limit_s: Annotated[float, Ge(1)] | None = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: list[str] | None = None
    """Names of launch options that tasks cannot change: the value of the connection is used, or the default."""

    def __post_init__(self) -> None:
        """Refuse a missing or relative root, because it depends on the current directory of each process."""
        if not self.root.startswith(("/", "~")):
            raise ValueError(f"option 'root' must be an absolute path, not {self.root!r}; start it with / or ~")


@dataclass
class QueueRequest(LocalRequest):
    """All that is needed to run the app, and the options of its job."""

    options: dict[str, Any] = field(default_factory=dict)


class QueueScheduler(LocalScheduler, abc.ABC):
    """Runs each app as one job of a queue.

    A subclass sets `name`, `opts_type` and `connection_type`, and implements `submit_job`, `job_statuses` and
    `end_job`. Its `create_scheduler` is the classmethod `create`.
    """

    opts_type = QueueOpts
    connection_type = QueueConnection  # type: ignore[assignment] # has no GPUs, and always a root
    request_type: ClassVar[type[LocalRequest]] = QueueRequest
    capabilities: ClassVar[frozenset[Capability]] = (EVERYWHERE - {Capability.GPU}) | {
        Capability.STREAMS,
        Capability.WORKSPACE,
    }
    poll_interval_s: ClassVar[float] = 1.0
    limits_note: ClassVar[str] = "cpu and memMB are enforced only by the queue, if it does"
    is_journal_complete: ClassVar[bool] = False
    missing_after_s: ClassVar[float] = 10.0
    """Seconds after its submission from which a job that the queue does not list has ended."""

    def __init__(self, session_name: str, connection: QueueConnection | None = None) -> None:
        given = connection or self.connection_type()
        # The records need only the root, and the rest is common.
        super().__init__(session_name, given)  # type: ignore[arg-type] # as above
        self._statuses: dict[str, JobStatus | LaunchError | None] = {}
        """Job id to its status in the current poll; None: the queue does not list it; an error: it was refused."""
        # Several threads poll, each for its own jobs.
        self._polling = threading.RLock()

    @classmethod
    def create(cls, session_name: str, **kwargs: Any) -> Self:
        """Return the scheduler of a connection, without a request to the queue.

        Raises:
            InvalidRunConfigException: a keyword is not an option of the connection, or has a wrong value.
        """
        return cls(session_name, resolve_options(cls.connection_type, kwargs, strict=True))

    @property
    def _forgets(self) -> bool:
        """Whether ended jobs must be removed from the list of the queue."""
        return type(self).forget_job is not QueueScheduler.forget_job

    # ---- for subclasses --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def submit_job(self, job: QueueJob) -> str:
        """Submit a job that runs `job.command`, and return the id that the queue gave it: a word without commas.

        It may be called twice for one app if a launcher is killed: the second job then ends at once.

        Raises:
            SchedulerUnavailableError: the queue was not reached; the same call may succeed later.
            SchedulerRejectedError: the queue has refused the job.
        """

    @abc.abstractmethod
    def job_statuses(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the statuses of these jobs, with one request; leave out the jobs that the queue does not list.

        Raises:
            SchedulerUnavailableError: the queue was not reached; never leave out a job because of that.
            SchedulerRejectedError: the queue has refused the request.
        """

    @abc.abstractmethod
    def end_job(self, job_id: str) -> None:
        """Remove a queued job from the queue; do nothing if the queue does not list it.

        If it has just started, TERM is enough. Jobs that run are ended by the base.

        Raises:
            Exception: the same as `job_statuses`.
        """

    def forget_job(self, job_id: str) -> None:
        """Remove an ended job from the list of the queue, if it keeps ended jobs; called before the app is removed.

        Do nothing if the queue does not list it, because another process may have been faster. A scheduler that
        overrides this waits in `delete` for the end of the job.
        """

    # ---- submit ----------------------------------------------------------------------------------------------

    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        request = super()._build_request(app, opts, app_id)
        return QueueRequest(**vars(request), options=dict(opts))

    def _format_request(self, request: LocalRequest) -> str:
        common = {item.name for item in dataclasses.fields(QueueOpts)}
        options = request.options if isinstance(request, QueueRequest) else {}
        named = ", ".join(f"{name}={value!r}" for name, value in options.items() if name not in common)
        return format_request(request, f"one job of {self.name!r} runs all replicas" + (f": {named}" if named else ""))

    def _gpus(self) -> list[str]:
        return []

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:  # noqa: D102 - of the base
        app_id = dryrun_info.request.app_id
        if self._is_marked(app_id, layout.DELETE):
            raise SchedulerUnavailableError(f"app {app_id!r} is being deleted; try again, or choose another id")
        return super().schedule(dryrun_info)

    def _ensure(self, app_id: str) -> None:
        """Submit the job if there is none, or wait until another process has submitted it."""
        started = time.monotonic()
        while not self._is_submitted(app_id):
            if self._submit_if_free(app_id):
                return
            if time.monotonic() > started + _SUBMIT_WAIT_S:
                raise SchedulerUnavailableError(f"another process still submits app {app_id!r}; try again")
            time.sleep(_SUBMIT_PAUSE_S)

    def _submit_if_free(self, app_id: str) -> bool:
        """Submit the job, unless another process is submitting it; return whether this one did."""
        with self._submit_lock(app_id) as is_locked:
            if is_locked:
                self._submit(app_id)
        return is_locked

    @contextmanager
    def _submit_lock(self, app_id: str) -> Iterator[bool]:
        """Lock the submission of an app for other processes; False if another one has it. It ends with its process."""
        with self._existing(app_id):
            lock = processes.take_lock(f"{self._records.dir(app_id)}/{layout.SUBMIT_LOCK}")
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _is_submitted(self, app_id: str) -> bool:
        return self._job_id(app_id) is not None or self._records.has_ended(app_id)

    def _submit(self, app_id: str) -> None:
        app = self._records.app(app_id)
        if app is None or self._is_submitted(app_id) or self._records.is_supervised(app_id):
            return
        if self._is_cancelled(app_id):
            self._write_end(app_id, app, "CANCELLED", "cancelled by request")
            return
        try:
            job_id = self.submit_job(self._job(app_id, app))
            if not _is_job_id(job_id):
                raise SchedulerRejectedError(
                    f"{self.name!r} gave the job of app {app_id!r} the id {job_id[:100]!r}; fix `submit_job`, "
                    f"which returns one word that starts with a letter or a digit, without commas"
                )
        except LaunchError:
            # The caller learns that nothing was launched. A job that the queue has accepted nevertheless finds no
            # directory, and ends.
            self._records.remove(app_id)
            raise
        with self._existing(app_id):
            path = f"{self._records.dir(app_id)}/{layout.JOB}"
            layout.write_json(path, {"id": job_id, "at": time.time()}, durable=True)

    def _job(self, app_id: str, app: StoredApp) -> QueueJob:
        roles = self._records.app_def(app_id, app).roles
        app_dir = self._records.dir(app_id)
        # The directory has the id of the job, which is removed first.
        mode = bare.RUN_AND_KEEP if self._forgets else bare.RUN
        return QueueJob(
            app_id=app_id,
            command=[sys.executable, "-I", "-S", "-X", "utf8", bare.__file__, mode, app_dir],
            directory=app_dir,
            cpu=sum(max(role.resource.cpu or 0, 0) * role.num_replicas for role in roles),
            memory_mb=sum(max(role.resource.memMB or 0, 0) * role.num_replicas for role in roles),
            options=app["request"].get("options") or {},
        )

    # ---- state -----------------------------------------------------------------------------------------------

    def _describe_many(
        self, app_ids: Iterable[str], *, errors: bool = True
    ) -> tuple[dict[str, DescribeAppResponse | None], dict[str, str]]:
        ids = [*app_ids]
        with self._polling:
            self._statuses = self._ask(ids)
            return super()._describe_many(ids, errors=errors)

    def _ask(self, app_ids: Iterable[str]) -> dict[str, JobStatus | LaunchError | None]:
        """Return the statuses of the jobs whose apps do not report for themselves, with at most one request."""
        wanted, asked = [], [*app_ids]
        for app_id in asked:
            try:
                if self._needs_status(app_id) and (job := self._job_id(app_id)) is not None:
                    wanted.append(job)
            except (LaunchError, OSError):
                continue  # reported below, for this app alone
        found = self._listed(list(dict.fromkeys(wanted)))
        refused = [each for each in found.values() if isinstance(each, LaunchError)]
        # If there are several, the reason is not the record of one app.
        if refused and len(refused) == len(found) and (len(found) > 1 or len(asked) == 1):
            raise refused[0]
        return found

    def _listed(self, jobs: Sequence[str]) -> dict[str, JobStatus | LaunchError | None]:
        """Return the statuses of jobs; a job that the queue refuses hides no other, because each half is asked for."""
        if not jobs:
            return {}
        try:
            return {**dict.fromkeys(jobs), **self.job_statuses(jobs)}
        except SchedulerRejectedError as error:
            if len(jobs) == 1:
                return {jobs[0]: error}
        except LaunchError:
            raise
        except Exception as error:
            # A job of another user may have a name that its command does not show as one line.
            raise SchedulerUnavailableError(
                f"the list of {self.name!r} cannot be read ({type(error).__name__}: {one_line(str(error), 200)}); fix "
                f"`job_statuses`, or remove the job with the unusual name"
            ) from error
        half = len(jobs) // 2
        return self._listed(jobs[:half]) | self._listed(jobs[half:])

    def _needs_status(self, app_id: str) -> bool:
        if self._records.app(app_id) is None or self._records.is_supervised(app_id):
            return False
        return not self._records.has_ended(app_id) or self._is_marked(app_id, layout.DELETE)

    def _load(self, app_id: str, *, errors: bool) -> DescribeAppResponse | None:
        is_deleted = self._records.app(app_id) is not None and self._is_marked(app_id, layout.DELETE)
        if is_deleted and self._records.has_ended(app_id) and self._remove_job(app_id):
            return None
        try:
            return super()._load(app_id, errors=errors)
        except _RemovedError:
            return None

    def _attend(self, app_id: str, app: StoredApp, app_def: AppDef) -> DescribeAppResponse | None:
        if self._records.is_supervised(app_id):
            return self._waiting(app_id, app, app_def, JobStatus(JobState.RUNNING))
        job = self._job_id(app_id)
        if job is None:
            # Its launcher was killed, or submits it now. A wait would delay all other apps.
            is_done = self._for_app(app_id, lambda: self._submit_if_free(app_id))
            text = "it was just submitted" if is_done else "another process submits it"
            return self._waiting(app_id, app, app_def, JobStatus(JobState.QUEUED, text))
        # A job that was not asked for had a supervisor a moment ago.
        found = self._statuses.get(job, JobStatus(JobState.RUNNING))
        if isinstance(found, LaunchError):
            raise AppUnavailableError(f"job {job} of app {app_id!r}: {found}") from found
        if found is None and time.time() < self._submitted_at(app_id) + self.missing_after_s:
            found = JobStatus(JobState.QUEUED, f"the queue does not list job {job} yet")
        if found is not None and found.state is JobState.QUEUED and self._is_cancelled(app_id):
            if (owner := self._owner_of(app_id, job)) is not None:
                raise AppUnavailableError(self._records.damage(app_id, f"its job {job} is that of app {owner!r}"))
            self._for_app(app_id, lambda: self.end_job(job))
            self._end(app_id, app, "CANCELLED", "cancelled by request")
            return None
        if found is None or found.state is JobState.ENDED:
            why = f": {one_line(found.message)}" if found and found.message else ""
            word, message = "FAILED", f"job {job} ended before its app{why}"
            if found is None:
                message = f"the queue does not list job {job} any more, and the app has not ended"
            if self._is_cancelled(app_id):
                word, message = "CANCELLED", "cancelled by request"
            self._end(app_id, app, word, message)
            return None
        return self._waiting(app_id, app, app_def, found)

    def _waiting(self, app_id: str, app: StoredApp, app_def: AppDef, found: JobStatus) -> DescribeAppResponse | None:
        """Return the response of an app that has no state yet; None if it has one, or was removed meanwhile."""
        if self._records.state(app_id) is not None or self._records.app(app_id) is None:
            return None
        response = status.response_from(app_id, app, None, app_def, limits=self.limits_note)
        is_queued = found.state is JobState.QUEUED
        response.msg = one_line(found.message) or ("its job is in the queue" if is_queued else "its job is starting")
        response.is_stuck = is_queued and found.is_stuck
        return response

    def _end(self, app_id: str, app: StoredApp, word: str, message: str) -> None:
        """Write the end of an app whose job has ended, unless something of it still runs."""
        with self._existing(app_id):
            # The supervisor and another observer have the same lock.
            lock = processes.take_lock(f"{self._records.dir(app_id)}/{layout.LOCK}")
            if lock is None:
                return
            try:
                if not self._records.has_ended(app_id) and not self._has_shims(app_id, app):
                    self._write_end(app_id, app, word, message)
            finally:
                os.close(lock)

    def _write_end(self, app_id: str, app: StoredApp, word: str, message: str) -> None:
        state = self._records.state(app_id)
        with self._existing(app_id):
            self._records.write_end(app_id, status.ended(state, app, word, message, time.time()))

    def _has_shims(self, app_id: str, app: StoredApp) -> bool:
        """Return whether a program still runs, which is stopped because its job was killed."""
        app_dir = self._records.dir(app_id)
        app_attempt = max(layout.numbers_in(f"{app_dir}/run"), default=None)
        if app_attempt is None:
            return False
        for index, role in enumerate(app["request"]["roles"]):
            role_dir = layout.role_dir(index, role["name"])
            for k in range(len(role["replicas"])):
                path = f"{app_dir}/run/{app_attempt}/{role_dir}/{k}"
                attempt = max(layout.numbers_in(path), default=None)
                if attempt is not None and processes.is_locked(f"{path}/{attempt}/shim.lock"):
                    return True
        return False

    # ---- end -------------------------------------------------------------------------------------------------

    def _mark(self, app_id: str, name: str) -> None:
        app = self._records.app(app_id)
        if app is None or self._records.has_ended(app_id):
            return
        if self._records.mark(app_id, name) and not self._records.is_supervised(app_id):
            # Its job may be in the queue, and no process of the app reads the mark then.
            self._describe_many([app_id], errors=False)

    def _delete_existing(self, app_id: str) -> None:
        app = self._records.app(app_id)
        # The mark also if it has ended, so that observers remove its job from the queue, then the app.
        if app is None or not self._records.mark(app_id, layout.DELETE):
            return
        deadline = time.monotonic() + (app["request"].get("grace_s") or 0) + _DELETE_S
        while self._describe_many([app_id], errors=False)[0].get(app_id) is not None:
            if not self._forgets or time.monotonic() > deadline:
                return  # the supervisor removes it, or the next observer
            time.sleep(_DELETE_PAUSE_S)

    def _remove_job(self, app_id: str) -> bool:
        """Remove an app that has ended, and its job; return False while its job is still ending."""
        job = self._job_id(app_id)
        if job and self._forgets and job not in self._statuses:
            return False  # its supervisor was alive when the queue was asked
        found = self._statuses.get(job) if job else None
        if job and isinstance(found, JobStatus):
            if found.state is JobState.RUNNING and self._forgets:
                return False
            if found.state is JobState.QUEUED and self._owner_of(app_id, job) is None:
                self._for_app(app_id, lambda: self.end_job(job))
            elif found.state is JobState.ENDED:
                self._for_app(app_id, lambda: self.forget_job(job))
        self._records.remove(app_id)
        return True

    @contextmanager
    def _existing(self, app_id: str) -> Iterator[None]:
        """Translate errors of the file system, and those of an app that was removed meanwhile to `_RemovedError`."""
        try:
            with self._records.readable():
                yield
        except AppUnavailableError as error:
            if isinstance(error.__cause__, FileNotFoundError) and self._records.app(app_id) is None:
                raise _RemovedError(f"app {app_id!r} was removed meanwhile; try again") from error
            raise

    # ---- files -----------------------------------------------------------------------------------------------

    def _job_id(self, app_id: str) -> str | None:
        found = self._job_file(app_id).get("id")
        return found if isinstance(found, str) and _is_job_id(found) else None

    def _owner_of(self, app_id: str, job: str) -> str | None:
        """Return another app to which the job belongs; None if it belongs to this app.

        A program may have copied the record of another app, and a queue that was restarted may use its ids again.
        """
        is_over, since = self._records.has_ended(app_id), self._recorded_at(app_id)
        for other in self._records.ids():
            with contextlib.suppress(LaunchError, OSError):  # it is damaged
                has_it = other != app_id and self._job_id(other) == job and not self._records.has_ended(other)
                if has_it and (is_over or self._recorded_at(other) < since):
                    return other
        return None

    def _recorded_at(self, app_id: str) -> float:
        """Return when the id of the job was written; infinite if it was not. A program cannot set this time."""
        try:
            return os.lstat(f"{self._records.dir(app_id)}/{layout.JOB}").st_ctime
        except OSError:
            return math.inf

    def _for_app(self, app_id: str, act: Callable[[], T]) -> T:
        """Return what `act` returns; a refusal of the queue is an error of this app, and hides no other."""
        try:
            return act()
        except SchedulerRejectedError as error:
            raise AppUnavailableError(f"app {app_id!r}: {error}") from error

    def _submitted_at(self, app_id: str) -> float:
        found = self._job_file(app_id).get("at")
        return found if isinstance(found, float) else 0.0

    def _job_file(self, app_id: str) -> dict[str, Any]:
        with self._records.readable():
            found = layout.read_json(f"{self._records.dir(app_id)}/{layout.JOB}", layout.LARGEST_EXIT)
        return found if isinstance(found, dict) else {}

    def _is_marked(self, app_id: str, name: str) -> bool:
        return os.path.lexists(f"{self._records.dir(app_id)}/{name}")

    def _is_cancelled(self, app_id: str) -> bool:
        return self._is_marked(app_id, layout.CANCEL) or self._is_marked(app_id, layout.DELETE)


def _is_job_id(text: str) -> bool:
    return len(text) <= _LONGEST_ID and _JOB_ID.fullmatch(text) is not None


def run_command(
    command: Sequence[str],
    *,
    timeout_s: float = _COMMAND_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    unavailable: Sequence[str] = (),
) -> str:
    """Run a command of a queue and return its stdout.

    Args:
        command: the program and its arguments.
        timeout_s: seconds after which the queue counts as not reached.
        env: variables in addition to those of this process.
        unavailable: texts in the output of a failed command which mean that the queue was not reached.

    Raises:
        MissingDependencyError: the program is not installed.
        SchedulerUnavailableError: it did not end in time, wrote more than 128 MB, or its output has a text of
            `unavailable`.
        SchedulerRejectedError: it failed.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError as error:
        raise MissingDependencyError(f"{command[0]!r} is not installed on this host; install it") from error
    except OSError as error:
        raise SchedulerUnavailableError(f"{command[0]!r} was not answered: {error}; try again later") from error
    with process:
        deadline = time.monotonic() + timeout_s
        try:
            found = exchange(process, deadline, _ANSWER_BYTES)
            out, messages = (part.decode(errors="replace").replace("\r\n", "\n") for part in found)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise SchedulerUnavailableError(
                f"{command[0]!r} has not answered within {timeout_s:g} s; try again later"
            ) from error
        except UntrustedError as error:
            raise SchedulerUnavailableError(f"{command[0]!r} cannot be read: {error}; check the command") from error
        finally:
            process.kill()
    if code:
        text = (messages or out).strip() or f"exit code {code}"
        kind = SchedulerUnavailableError if any(part in text for part in unavailable) else SchedulerRejectedError
        raise kind(f"{' '.join(command[:2])!r} failed: {text[:500]}; check the queue, or the options of the launch")
    return out
