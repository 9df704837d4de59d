"""The supervisor of one app: crash-only, level-triggered, one at a time by `flock`.

All its state is in the app's directory, which is the working directory of the supervisor and its shims, so they keep
access to it if the root is moved or unmounted while the app lives. If the supervisor is killed, an observer of the app
starts the next one, which reads the files and continues. It decides with `schedulers.retry.decide`, like every backend.

Runs in a bare interpreter, so it imports only modules that need the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import failure_message, services_message
from airflow_provider_launch.schedulers.local import layout, leases, processes, safe_files, shim
from airflow_provider_launch.schedulers.local.shim import ending_of
from airflow_provider_launch.schedulers.retry import Decision, Phase, ReplicaAttempt, RetryAction, RolePolicy, decide

PAUSE_S = 0.2
"""Interval of checks of adopted shims and sizes of logs; an own child and the bell wake the supervisor at once."""
IDLE_PAUSE_S = 5.0
"""Interval of checks for marks without a bell, because older versions of this package do not ring it."""
JOB_PAUSE_S = 1.0
"""The same in a job of a queue, because observers on other hosts cannot ring the bell."""
LAST_RESORT_S = 15.0
"""Seconds after the grace time until a shim that does not respond is killed with its command."""
FALSE_STARTS = 3
"""After this many shims that ended before they started, for lack of disk or memory, the attempt counts as failed."""
DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors of documents with another content than launchers, supervisors and shims write; a program can replace them."""
ENDED_BY_QUEUE = "the queue, or a user of it, ended the job of the app"
LOST_CODE = 128 + signal.SIGKILL
ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
HERE, ROOT = ".", "../.."
"""The app's directory and the root, as seen from the working directory."""


def main(app_dir: str) -> None:
    """Supervise the app until it has ended; return at once if it has another supervisor."""
    if os.fork():
        # The launcher waits only for this process, so it has no zombie child later.
        os._exit(0)
    _supervise(app_dir, in_job=False)


def run_job(app_dir: str, *, keeps_deleted: bool) -> None:
    """Run a whole app in this process, which is a job of a queue; return at once if it runs, has ended or was deleted.

    TERM ends the app as FAILED, unless it was cancelled before. KILL ends its programs too. With `keeps_deleted`
    observers remove a deleted app.
    """
    try:
        log = safe_files.regular_fd(f"{app_dir}/{layout.SUPERVISOR_LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except FileNotFoundError:
        return  # it was deleted before the queue started this job
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # it may be closed
        os.dup(1)  # stays open, because some queues take the closing of its output for the end of a job
    for fd, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    _supervise(app_dir, in_job=True, keeps_deleted=keeps_deleted)


def _supervise(app_dir: str, *, in_job: bool, keeps_deleted: bool = False) -> None:
    os.chdir(app_dir)
    # Check again in the working directory, because the path that the launcher checked may have been replaced.
    for path in (ROOT, f"{ROOT}/apps", HERE, layout.APP):
        safe_files.refuse_foreign(path)
    lock = processes.take_lock(layout.LOCK)
    if lock is None:
        return
    state = layout.read_json(layout.STATE)
    if not isinstance(state, dict) or not state.get("final"):
        try:
            _Supervisor(app_dir, lock, in_job=in_job).run()
        except DAMAGE as error:
            _end_damaged(app_dir, error)
        if os.path.exists(layout.DELETE) and not keeps_deleted:
            app_id = os.path.basename(app_dir)
            os.chdir(ROOT)
            layout.remove_app(".", f"apps/{app_id}")


def _end_damaged(app_dir: str, error: Exception) -> None:
    """End an app whose files no supervisor can use: none would enforce its limits, or see that it is cancelled."""
    processes.kill_all(os.getpid(), signal.SIGKILL)
    processes.kill_marked(f"{processes.MARKER}={app_dir}/".encode())
    # The log may be on a full disk.
    with contextlib.suppress(OSError):
        import traceback  # here, because it is rarely needed and takes milliseconds

        traceback.print_exception(error)
    is_cancelled = os.path.lexists(layout.CANCEL) or os.path.lexists(layout.DELETE)
    state = "CANCELLED" if is_cancelled else "FAILED"
    text = f"its files in {app_dir!r} are damaged ({type(error).__name__}: {str(error)[:200]}), so it was ended"
    with contextlib.suppress(OSError):
        os.unlink(layout.BELL)
    document = {
        "state": state,
        "final": True,
        "msg": "cancelled by request" if is_cancelled else text,
        "app_attempt": 0,
        "host": os.uname().nodename,
        "boot_id": layout.boot_id(),
        "ports": {},
        "replicas": [],
    }
    layout.write_json(layout.STATE, document, durable=True)
    layout.append_journal(ROOT, os.path.basename(app_dir), state)


class _Replica:
    """The latest attempt of one replica in the current attempt of the app."""

    def __init__(self, role: dict[str, Any], role_dir: str, k: int) -> None:
        self.role = role
        self.role_dir = role_dir
        self.k = k
        self.attempt = 0
        self.phase = Phase.WAITING
        self.child = 0
        """Pid of the shim if it is a child of this process; 0 for a shim of a former supervisor."""
        self.asked_to_stop = False
        self.false_starts = 0
        self.exit: dict[str, Any] = {}

    def view(self) -> ReplicaAttempt:
        return ReplicaAttempt(self.role["name"], self.k, self.attempt, self.phase, self.exit.get("end", 0.0))


class _Supervisor:
    def __init__(self, app_dir: str, lock: int, *, in_job: bool) -> None:
        self.in_job = in_job
        """Whether this process is a job of a queue, which may end it and then must not find the app alive."""
        self.is_ended_by_queue = False
        self.name = app_dir
        """The absolute path of the app's directory, for commands of replicas and for messages."""
        self.lock = lock
        self.app: dict[str, Any] = layout.read_json(layout.APP)
        self.app_id: str = self.app["request"]["app_id"]
        # The time in a queue does not count.
        self.limited_from: float = time.time() if in_job else self.app["created"]
        self.request: dict[str, Any] = self.app["request"]
        self.policies = {
            # A request of an older version has no services.
            role["name"]: RolePolicy(role["policy"], role["max_retries"], bool(role.get("service")))
            for role in self.request["roles"]
        }
        self.leases = leases.Leases(ROOT, HERE, self.app_id)
        self.ports: dict[str, int] = {}
        self.gpus: dict[str, list[str]] | None = {}
        self.app_attempt = 0
        self.replicas: list[_Replica] = []
        self.published: object = None
        self.stop_started_at: float | None = None
        self.wake = 0
        self.bell: int | None = None
        self.is_leased = False
        self.is_behind = False
        """A write failed in the latest step; the next step repeats it."""
        self.reported_errors: set[int | None] = set()

    def run(self) -> None:
        self._listen()
        self._load_attempt(max(layout.numbers_in("run"), default=0))
        while True:
            has_ended = False
            with self._later():
                has_ended = self._step()
            if has_ended:
                break
            idle = self._is_idle()
            while not self._woken(self._pause() if idle else PAUSE_S):
                if not idle or self._is_asked_to_end() or self._limit():
                    break

    def _woken(self, pause_s: float) -> bool:
        """Wait up to `pause_s`; return whether a child has ended or the bell was rung."""
        ready, _, _ = select.select([fd for fd in (self.wake, self.bell) if fd is not None], [], [], pause_s)
        for fd in ready:
            os.read(fd, 4096)
        return bool(ready)

    def _pause(self) -> float:
        """Return how many seconds an idle supervisor may wait; sizes of logs must be polled."""
        if self.bell is None or self.request.get("log_max_mb") is not None:
            return PAUSE_S
        limit = self.request["time_limit_s"]
        longest = JOB_PAUSE_S if self.in_job else IDLE_PAUSE_S
        left = longest if limit is None else self.limited_from + limit - time.time()
        return min(max(left, 0.0), longest)

    def _is_idle(self) -> bool:
        """Return whether nothing can change without a signal, a mark or the clock."""
        if self.is_behind or self.stop_started_at is not None:
            return False
        return all(r.phase in ENDED or (r.child and r.exit) for r in self.replicas)

    def _is_asked_to_end(self) -> bool:
        return self.is_ended_by_queue or self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return os.path.exists(layout.CANCEL) or os.path.exists(layout.DELETE)

    def _is_over_time(self) -> bool:
        limit = self.request["time_limit_s"]
        return limit is not None and time.time() >= self.limited_from + limit

    def _limit(self) -> str:
        """Return which limit of the app is reached; empty if none is."""
        if self._is_over_time():
            return f"time limit of {self.request['time_limit_s']:g} s reached"
        # A request of an older version has no such field.
        limit_mb: int | None = self.request.get("log_max_mb")
        if limit_mb is None:
            return ""
        # Also for ended replicas, because the reason must remain while the others are stopped.
        for replica in self.replicas:
            for stream in ("stdout", "stderr"):
                with contextlib.suppress(OSError):
                    if os.path.getsize(f"{self._path(replica)}/{stream}") > limit_mb * 1_000_000:
                        name = f"{stream} of role {replica.role['name']!r} replica {replica.k}"
                        return f"{name} has more than {limit_mb} MB; write less, or raise log_max_mb"
        return ""

    def _step(self) -> bool:
        """Check, decide, act, publish; return whether the app has ended."""
        self.is_behind = False
        self._reap()
        for replica in self.replicas:
            self._check_replica(replica)
        if not self.is_leased or self.leases.is_partial:
            self._lease()
        decision = self._decide()
        final = self._end_reason(decision)
        if final is None and decision.next is RetryAction.CONTINUE and self._fail_foreign_stops():
            decision = self._decide()
            final = self._end_reason(decision)
        # Before a retry is started, because it replaces the failed attempt.
        message = self._message(decision)
        if final is None and decision.next is RetryAction.CONTINUE:
            if decision.start and not self._is_in_place():
                if layout.is_gone(layout.APP):
                    raise FileNotFoundError(layout.APP)  # the app was removed
                self.is_behind = True
                message = f"waits until {self.name!r} exists again, to start further attempts"
            else:
                self._start(decision)
        elif not self._stop_all():
            pass
        elif final is None:
            self._load_attempt(self.app_attempt + 1)
            return self._step()
        has_ended = final is not None and self._all_ended()
        self._publish(final if has_ended else None, message)
        if not has_ended:
            return False
        # A delete need not wait for space to store the end, because the removal frees space.
        return not self.is_behind or os.path.exists(layout.DELETE)

    def _is_in_place(self) -> bool:
        """Return whether the directory still has its path, because commands get paths in it."""
        try:
            return os.path.samefile(HERE, self.name)
        except OSError:
            return False

    @contextlib.contextmanager
    def _later(self) -> Iterator[None]:
        """Suppress errors of the file system, so that the next step retries; marks and time limit are still checked."""
        try:
            yield
        except OSError as error:
            if layout.is_gone(layout.APP):
                raise  # the app was removed by hand
            self.is_behind = True
            if error.errno not in self.reported_errors:
                self.reported_errors.add(error.errno)
                # The log may be on the same disk.
                with contextlib.suppress(OSError):
                    os.write(2, f"will try again: {error}\n".encode("utf-8", "replace"))

    def _lease(self) -> None:
        """Lease ports and GPUs, or take over the leases of shims of a former supervisor."""
        self.is_leased = False
        with self._later():
            self.ports = self.leases.ports(self.request["roles"])
            found = self.leases.gpus(self.request["roles"], self.app.get("gpus") or [], self._adopted_live)
            # Other GPUs are fine, unless a replica already runs on the lost ones.
            is_used = any(r.phase is Phase.RUNNING for r in self.replicas)
            self.gpus = None if self.gpus and found != self.gpus and is_used else found
            self.is_leased = True

    def _adopted_live(self) -> bool:
        """Return whether a shim of a former supervisor lives, because it keeps the leases."""
        return any(not r.child and processes.is_locked(f"{self._path(r)}/shim.lock") for r in self.replicas)

    def _decide(self) -> Decision:
        return decide(self.policies, self.app_attempt, [r.view() for r in self.replicas])

    def _fail_foreign_stops(self) -> bool:
        """Mark replicas as failed that an outside TERM has stopped; return whether there was one.

        Only called if the supervisor itself has no reason to stop replicas.
        """
        foreign = [r for r in self.replicas if r.phase is Phase.STOPPED]
        for replica in foreign:
            replica.exit["outside"] = True
            replica.phase = Phase.FAILED
        return bool(foreign)

    def _end_reason(self, decision: Decision) -> tuple[str, str] | None:
        """Return (state, message) if the app must end now, even if replicas still run."""
        if decision.next is RetryAction.SUCCEED:
            return "SUCCEEDED", self._services_text(is_over=True)
        if decision.next is RetryAction.FAIL:
            return "FAILED", self._failure(decision)
        # After the checks above, so that a failure before the cancel keeps its reason; a pending restart does not.
        if self._is_cancelled():
            return "CANCELLED", "cancelled by request"
        if self.is_ended_by_queue:
            return "FAILED", ENDED_BY_QUEUE
        reason = self.leases.conflict or self._limit()
        if self.gpus is None:
            reason = "another app took the GPUs of this host while nothing of this app ran on them"
        return ("FAILED", reason) if reason else None

    def _message(self, decision: Decision) -> str:
        if decision.next is RetryAction.SUCCEED:
            return self._services_text(is_over=False)
        return self._failure(decision) if decision.cause else ""

    def _services_text(self, *, is_over: bool) -> str:
        """Return the message of an app that has succeeded; empty if it has no services."""
        services = [name for name, policy in self.policies.items() if policy.is_service]
        counts = {role["name"]: len(role["replicas"]) for role in self.request["roles"] if role["name"] not in services}
        return services_message(counts, services, is_over=is_over) if services else ""

    def _failure(self, decision: Decision) -> str:
        cause = decision.cause
        if cause is None:
            return "failed"
        replica = next(r for r in self.replicas if (r.role["name"], r.k) == (cause.role, cause.replica))
        attempt = max(self.app_attempt, replica.attempt)
        return failure_message(cause.role, cause.replica, ending_of(replica.exit), attempt)

    # ---- checking ---------------------------------------------------------------------------------------------

    def _load_attempt(self, app_attempt: int) -> None:
        """Make `app_attempt` the current attempt, with the replicas found in its directory."""
        replicas = []
        for index, role in enumerate(self.request["roles"]):
            role_dir = layout.role_dir(index, role["name"])
            for k in range(len(role["replicas"])):
                replica = _Replica(role, role_dir, k)
                attempts = layout.numbers_in(f"run/{app_attempt}/{role_dir}/{k}")
                replica.attempt = max(attempts, default=0)
                replicas.append(replica)
        # All at once, so that an error above cannot leave a partial list, with which the app would end too early.
        self.app_attempt, self.stop_started_at, self.replicas = app_attempt, None, replicas
        with self._later():
            safe_files.make_dirs(f"run/{app_attempt}")

    def _path(self, replica: _Replica, app_dir: str = HERE) -> str:
        return layout.attempt_dir(app_dir, self.app_attempt, replica.role_dir, replica.k, replica.attempt)

    def _check_replica(self, replica: _Replica) -> None:
        if replica.phase in ENDED or replica.child:
            return
        path = self._path(replica)
        # The lock first, because the shim writes `exit` before it releases the lock.
        alive = processes.is_locked(f"{path}/shim.lock")
        found = layout.read_json(f"{path}/exit", layout.LARGEST_EXIT)
        if found is None and not alive and os.path.exists(f"{path}/started"):
            # Read again, because the shim may have ended between the two checks.
            found = layout.read_json(f"{path}/exit", layout.LARGEST_EXIT) or self._lost(replica, path)
        if found is None and not alive and replica.false_starts >= FALSE_STARTS:
            found = self._lost(replica, path)
        if found is not None:
            replica.exit = found
            replica.phase = _phase(found)
        elif alive:
            replica.phase = Phase.RUNNING
        else:
            replica.phase = Phase.WAITING

    def _lost(self, replica: _Replica, path: str) -> dict[str, Any]:
        """Kill the descendants of a killed shim and write its `exit`; PDEATHSIG has already ended its command."""
        processes.kill_marked(f"{processes.MARKER}={self._path(replica, self.name)}".encode())
        end = time.time()
        found = {"start": None, "end": end, "code": LOST_CODE, "signal": int(signal.SIGKILL), "lost": True,
                 "stopped": replica.asked_to_stop}  # fmt: skip
        # If this write fails, the next supervisor detects the loss itself.
        with self._later():
            layout.write_json(f"{path}/exit", found, durable=True)
        # As a subreaper the supervisor inherits the descendants of the shim.
        shims = {r.child for r in self.replicas}
        for pid in processes.children(os.getpid()):
            if pid not in shims:
                processes.kill_all(pid, signal.SIGKILL)
                processes.send(pid, signal.SIGKILL)
        return found

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for replica in self.replicas:
                if replica.child == pid:
                    replica.child = 0
                    replica.false_starts += not os.path.exists(f"{self._path(replica)}/started")

    # ---- acting ----------------------------------------------------------------------------------------------

    def _start(self, decision: Decision) -> None:
        if not self.is_leased:
            return
        wanted = {(role, k): attempt for role, k, attempt in decision.start}
        for replica in self.replicas:
            attempt = wanted.get((replica.role["name"], replica.k))
            if attempt is not None:
                if attempt != replica.attempt:
                    replica.attempt, replica.exit, replica.asked_to_stop, replica.false_starts = attempt, {}, False, 0
                    replica.phase = Phase.WAITING
                path = self._path(replica)
                with self._later():
                    safe_files.make_dirs(path)
                if os.path.isdir(path):
                    self._fork_shim(replica, path)

    def _fork_shim(self, replica: _Replica, path: str) -> None:
        # Blocked until the shim handles it: an early stop must not kill the shim.
        signal.pthread_sigmask(signal.SIG_BLOCK, {shim.STOP})
        supervisor = os.getpid()
        # Before the fork, which must not continue as a second supervisor after an error.
        command = self._command(replica)
        pid = os.fork()
        if pid == 0:
            # The inherited descriptor shares the lock, which must end with the supervisor.
            os.close(self.lock)
            parent = supervisor if self.in_job else None
            shim.run(path, command, self.request["grace_s"], parent=parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {shim.STOP})
        replica.child = pid
        replica.phase = Phase.RUNNING

    def _command(self, replica: _Replica) -> dict[str, Any]:
        role = replica.role
        path = self._path(replica, self.name)
        spec = role["replicas"][replica.k]
        env = {
            **role["env"],
            **{name: str(port) for name, port in self.ports.items()},
            "LAUNCH_ATTEMPT": str(max(self.app_attempt, replica.attempt)),
            "TORCHELASTIC_ERROR_FILE": f"{path}/error.json",
            # Directory for logs of torchrun, which otherwise creates one of its own that is never removed.
            "PET_LOG_DIR": f"{path}/torch",
            **({"LAUNCH_RESULT_PATH": f"{path}/result"} if role is self.request["roles"][0] else {}),
            **leases.gpu_env((self.gpus or {}).get(f"{role['name']}/{replica.k}")),
            **{name: leases.with_ports(text, self.ports) for name, text in spec["env"].items()},
            processes.MARKER: path,
        }
        logs = self.request.get("log_dir")
        return {
            "argv": [role["entrypoint"], *(leases.with_ports(arg, self.ports) for arg in spec["args"])],
            "env": env,
            "cwd": role["working_dir"],
            "logs": f"{logs}/{role['name'].replace('/', '-')}/{replica.k}" if logs else None,
        }

    def _stop_all(self) -> bool:
        """Stop running replicas and discard waiting ones; return whether all have ended."""
        now = time.monotonic()
        self.stop_started_at = self.stop_started_at or now
        late = now - self.stop_started_at > self.request["grace_s"] + LAST_RESORT_S
        for replica in self.replicas:
            if replica.phase is Phase.WAITING:
                with self._later():
                    self._discard(replica)
            if replica.phase is Phase.RUNNING and (late or not replica.asked_to_stop):
                self._signal_shim(replica, signal.SIGKILL if late else shim.STOP)
        return self._all_ended()

    def _discard(self, replica: _Replica) -> None:
        """Make sure that the attempt never starts, even if a shim of a killed supervisor is about to start it."""
        path = self._path(replica)
        safe_files.make_dirs(path)
        try:
            os.close(os.open(f"{path}/started", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            replica.phase = Phase.RUNNING  # it has started; the next check reads its state
            return
        replica.exit = {"start": None, "end": time.time(), "code": None, "stopped": True}
        replica.phase = Phase.STOPPED
        layout.write_json(f"{path}/exit", replica.exit)

    def _signal_shim(self, replica: _Replica, signum: int) -> None:
        if replica.child:
            processes.send(replica.child, signum)
            replica.asked_to_stop = True
            return
        found = shim.shim_of(self._path(replica))
        if found is not None:
            replica.asked_to_stop |= processes.send_if_same(found["shim"], found["start"], signum)
        elif signum == signal.SIGKILL:
            # Its program has removed the pid of the shim, which ends after it.
            processes.kill_marked(f"{processes.MARKER}={self._path(replica, self.name)}".encode())

    def _all_ended(self) -> bool:
        return all(r.phase in ENDED for r in self.replicas)

    # ---- reporting ---------------------------------------------------------------------------------------------

    def _publish(self, final: tuple[str, str] | None, message: str) -> None:
        if final is not None:
            # Tools that copy the record of an ended app cannot copy a FIFO.
            with contextlib.suppress(OSError):
                os.unlink(layout.BELL)
        state, message = final or ("RUNNING", message)
        document = {
            "state": state,
            "final": final is not None,
            "msg": message,
            "app_attempt": self.app_attempt,
            "host": os.uname().nodename,
            "boot_id": layout.boot_id(),
            "ports": self.ports,
            "replicas": [self._replica_document(r) for r in self.replicas],
        }
        if document == self.published:
            return
        with self._later():
            layout.write_json(layout.STATE, document, durable=final is not None)
            layout.append_journal(ROOT, self.app_id, state)
            self.published = document

    def _replica_document(self, replica: _Replica) -> dict[str, Any]:
        if replica.phase is Phase.RUNNING and not replica.exit:
            found = shim.shim_of(self._path(replica))
            if found is not None:
                replica.exit = {"start": found["at"]}
        return {
            "role": replica.role["name"],
            "id": replica.k,
            "phase": replica.phase.value,
            "attempt": replica.attempt,
            **{key: replica.exit.get(key) for key in ("code", "signal", "start", "end", "lost", "outside")},
        }

    # ---- the rest --------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        self.wake, write = shim.pipe()
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self.in_job:
            # Queues end a job by TERM, at its time limit too; some then send KILL.
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(signum, self._on_end_by_queue)
        # Some file systems have no FIFOs.
        with contextlib.suppress(OSError):
            self.bell = safe_files.open_fifo(layout.BELL)

    def _on_end_by_queue(self, *_: object) -> None:
        self.is_ended_by_queue = True


def _phase(found: dict[str, Any]) -> Phase:
    if found["stopped"]:
        return Phase.STOPPED
    return Phase.SUCCEEDED if found["code"] == 0 else Phase.FAILED
