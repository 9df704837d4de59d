"""Runs on the cluster, and needs only Ray: the driver of an app, and the guard of each of its programs.

The driver is the entrypoint of a Ray job. It reserves a placement group with one bundle for each replica, starts one
actor in each bundle, and prints events, from which the launcher computes states. Each actor starts a guard, which runs
the program, stores its output, and leaves none of its processes behind.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

SEGMENT = 256 * 1024
"""Bytes of a log file: Ray returns files only from their start, so short files make reads cheap."""
OWN = ("LAUNCH_DRIVER", "LAUNCH_REQUEST", "LAUNCH_RUN", "RAY_JOB_STOP_WAIT_TIME_S")
"""Variables of the driver, which programs do not get."""
_LOST_S = 15.0


class Driver:
    """Runs one app from its start to its end."""

    def __init__(self, request: dict[str, Any], run: str) -> None:
        self.request, self.run = request, run
        self.replicas: list[dict[str, Any]] = request["replicas"]
        self.is_cancelled = False
        self.end: tuple[str, str] | None = None
        """State and message of the app, once its end is decided."""

    def emit(self, **event: Any) -> None:
        """Print an event: of the app, or with `n` of its n-th replica."""
        print(self.run, json.dumps(event), flush=True)  # noqa: T201 - the log of the job transports events

    def main(self) -> int:
        """Run the app; return the exit code of the job."""
        import ray

        ray.init(log_to_driver=False)
        signal.signal(signal.SIGTERM, self._cancel)
        try:
            actors = self._placed(ray)
            if actors:
                self._run_all(ray, actors)
        except ray.exceptions.RayError as error:
            self.end = self.end or ("FAILED", f"Ray failed: {_line(error)}")
        state, message = self.end or ("SUCCEEDED", "")
        self.emit(end=state, msg=message, at=time.time())
        return 0 if state == "SUCCEEDED" else 1

    def _cancel(self, *_: object) -> None:
        self.is_cancelled = True

    def _check_cancel(self) -> bool:
        if self.is_cancelled and self.end is None:
            self.end = ("CANCELLED", "cancelled by request")
        return self.end is not None

    def _placed(self, ray: Any) -> list[Any]:
        """Return one actor for each replica, all of them ready; none if the app was cancelled before that."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # Ray refuses empty bundles.
        bundles = [{**replica["bundle"]} or {"CPU": 0.001} for replica in self.replicas]
        group = placement_group(bundles, strategy=self.request["strategy"])
        waits_for = None
        while not group.wait(timeout_seconds=1):
            if self._check_cancel():
                return []
            lacking = _lacking(ray.nodes(), bundles)
            if lacking != waits_for:
                waits_for = lacking
                self.emit(stuck=lacking)
        actor_type = ray.remote(max_restarts=0, max_concurrency=4)(Replica)
        actors = []
        for number, replica in enumerate(self.replicas):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            rest = {name: value for name, value in bundles[number].items() if name not in {"CPU", "GPU", "memory"}}
            options = {
                "num_cpus": bundles[number].get("CPU", 0),
                "num_gpus": bundles[number].get("GPU", 0),
                "memory": bundles[number].get("memory"),
                "resources": rest,
            }
            name = f"{self.run} {replica['role']}/{replica['id']}"
            actors.append(actor_type.options(name=name, scheduling_strategy=where, **options).remote())
        places = [actor.place.remote() for actor in actors]
        waiting = places
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.5)
            if self._check_cancel():
                return []
        found = ray.get(places)
        for number, place in enumerate(found):
            self.replicas[number]["env"][self.request["rank0_env"]] = found[0]["host"]
            self.emit(n=number, **place)
        return actors

    def _run_all(self, ray: Any, actors: list[Any]) -> None:
        started = time.monotonic()
        running = {}
        for number, (actor, replica) in enumerate(zip(actors, self.replicas, strict=True)):
            guarded = {**replica, "log": f"launch-{self.run}-{number}", "grace_s": self.request["grace_s"]}
            running[actor.run.remote(guarded)] = number
            self.emit(n=number, state="RUNNING", start_time=int(time.time()))
        stopped_at = 0.0
        while running:
            ended, _ = ray.wait([*running], timeout=0.1)
            for ref in ended:
                self._note_end(ray, ref, running.pop(ref))
            limit_s = self.request["time_limit_s"]
            if limit_s is not None and time.monotonic() > started + limit_s and self.end is None and running:
                self.end = ("FAILED", f"the time limit of {limit_s:g} s was exceeded")
            if not self._check_cancel():
                continue
            if not stopped_at:
                stopped_at = time.monotonic()
                for number in running.values():
                    actors[number].stop.remote()
            elif time.monotonic() > stopped_at + self.request["grace_s"] + _LOST_S:
                for number in running.values():
                    ray.kill(actors[number])

    def _note_end(self, ray: Any, ref: Any, number: int) -> None:
        replica = self.replicas[number]
        try:
            event = ray.get(ref)
        except ray.exceptions.RayError as error:
            event = {"reason": f"its actor was lost: {_line(error)}"}
        code = event.get("exit_code")
        if self.end is not None:
            event["state"] = "CANCELLED"
        elif code == 0:
            event["state"] = "SUCCEEDED"
        else:
            event["state"] = "FAILED"
            why = event.get("reason") or f"exit code {code}"
            how = f"ended by {why}" if why.startswith("SIG") else why
            self.end = ("FAILED", f"{replica['role']}/{replica['id']} failed: {how}")
        self.emit(n=number, end_time=int(time.time()), **event)


class Replica:
    """The actor of one replica. Its guard ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self._guard: subprocess.Popen[bytes] | None = None

    def place(self) -> dict[str, Any]:
        """Return where it runs."""
        import ray

        context = ray.get_runtime_context()
        return {"node": context.get_node_id(), "host": ray.util.get_node_ip_address(), "pid": os.getpid()}

    def run(self, replica: dict[str, Any]) -> dict[str, Any]:
        """Run the program to its end, and return how it ended."""
        import ray

        context = ray.get_runtime_context()
        logs = Path(context.get_temp_dir(), context.get_session_name(), "logs")
        with self._lock:
            if self._is_stopped:
                return {}
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", os.environ["LAUNCH_DRIVER"], "guard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._send(json.dumps({**replica, "log": str(logs / replica["log"])}).encode() + b"\n")
        report = self._guard.stdout.read() if self._guard.stdout else b""
        self._guard.wait()
        ended: dict[str, Any] = json.loads(report) if report else {"reason": "its guard was killed"}
        return ended

    def stop(self) -> None:
        """End the program with TERM, and with KILL after its grace."""
        with self._lock:
            self._is_stopped = True
            if self._guard:
                self._send(b"t")

    def _send(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # it has just ended
            if self._guard and self._guard.stdin:
                self._guard.stdin.write(data)
                self._guard.stdin.flush()


class Guard:
    """Runs one program, and ends all processes that it leaves behind.

    Its input has one line with the replica, then a byte to end the program; the end of the input ends it at once.
    """

    def __init__(self, replica: dict[str, Any]) -> None:
        self.replica = replica
        self.status: int | None = None
        self.kill_at: float | None = None
        self.logs = {"stdout": Log(f"{replica['log']}.stdout"), "stderr": Log(f"{replica['log']}.stderr")}

    def main(self) -> dict[str, Any]:
        """Run the program; return how it ended."""
        _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of the program become children of this process
        with tempfile.TemporaryDirectory(prefix="launch-ray-") as folder:
            path = f"{folder}/result"
            env = {name: value for name, value in os.environ.items() if name not in OWN}
            env |= self.replica["env"]
            if self.replica["gives_result"]:
                env["LAUNCH_RESULT_PATH"] = path
            try:
                child = subprocess.Popen(
                    self.replica["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=env,
                    cwd=self.replica["cwd"] or None,
                    start_new_session=True,
                    preexec_fn=lambda: _prctl(1, signal.SIGKILL),  # noqa: PLW1509 - no threads; PR_SET_PDEATHSIG
                )
            except OSError as error:
                text = f"cannot start {self.replica['argv'][0]!r}: {error.strerror}"
                self.logs["stderr"].write(f"{text}\n".encode())
                code = 127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126
                return {"exit_code": code, "reason": f"{text} (exit code {code})"}
            self._watch(child)
            return {**self._ending(), **_result(path)}

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ, None)
            selector.register(child.stdout, selectors.EVENT_READ, self.logs["stdout"])  # type: ignore[arg-type]
            selector.register(child.stderr, selectors.EVENT_READ, self.logs["stderr"])  # type: ignore[arg-type]
            open_pipes = 2
            while self.status is None or open_pipes:
                for key, _ in selector.select(0.05):
                    data = os.read(key.fd, 64 * 1024)
                    if key.data:
                        key.data.write(data)
                        if not data:
                            selector.unregister(key.fileobj)
                            open_pipes -= 1
                    elif data:
                        with suppress(ProcessLookupError):
                            os.killpg(child.pid, signal.SIGTERM)
                        self.kill_at = time.monotonic() + self.replica["grace_s"]
                    else:
                        selector.unregister(0)
                        self.kill_at = 0.0
                self._reap(child)
                # Processes that outlive their program are ended, so that its pipes end too.
                if self.status is not None or (self.kill_at is not None and time.monotonic() > self.kill_at):
                    for pid in _descendants(os.getpid()):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            while _descendants(os.getpid()):
                self._reap(child)
                time.sleep(0.01)

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == child.pid:
                    self.status = child.returncode = os.waitstatus_to_exitcode(status)

    def _ending(self) -> dict[str, Any]:
        code = self.status or 0
        if code >= 0:
            return {"exit_code": code}
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return {"exit_code": 128 - code, "reason": name}


class Log:
    """A stream of one program, in files of `SEGMENT` bytes each; the last one is shorter."""

    def __init__(self, path: str) -> None:
        self.path, self.size = path, 0
        Path(f"{path}.0").touch(exist_ok=False)  # it shows that a program was started

    def write(self, data: bytes) -> None:
        """Append to the stream."""
        while data:
            number, used = divmod(self.size, SEGMENT)
            part, data = data[: SEGMENT - used], data[SEGMENT - used :]
            with Path(f"{self.path}.{number}").open("ab") as file:
                file.write(part)
            self.size += len(part)


def _result(path: str) -> dict[str, Any]:
    """Return what the program wrote as its result; a pipe, a link or a directory is refused as a wrong document."""
    if not os.path.lexists(path):
        return {}
    data = b"not a regular file"
    size = len(data)
    with suppress(OSError):
        # A pipe would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode):
                data, size = file.read(4097), found.st_size
    return {"result": base64.b64encode(data).decode(), "result_size": size}


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [each for child in children for each in _descendants(child)]


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def _lacking(nodes: list[dict[str, Any]], bundles: list[dict[str, float]]) -> str:
    """Return the resources that no node has, as a message; empty if each bundle fits on a node."""
    totals = [node["Resources"] for node in nodes if node["Alive"]]
    for bundle in bundles:
        if not any(all(total.get(name, 0) >= value for name, value in bundle.items()) for total in totals):
            wanted = ", ".join(f"{name}: {value:g}" for name, value in bundle.items())
            return f"no node of the cluster has {wanted}; lower the resources of the role, or add a node"
    return ""


def _line(error: object) -> str:
    return " ".join(str(error).split())[:500]


if __name__ == "__main__":
    if sys.argv[1:] == ["guard"]:
        if os.fork():
            os._exit(0)  # Ray kills the children of an actor that ends, but the guard must still end the program
        # Unbuffered, because the bytes after the line are commands.
        given = json.loads(sys.stdin.buffer.raw.readline())  # type: ignore[attr-defined]
        sys.stdout.write(json.dumps(Guard(given).main()))
    else:
        packed = base64.b64decode(os.environ["LAUNCH_REQUEST"])
        sys.exit(Driver(json.loads(zlib.decompress(packed)), os.environ["LAUNCH_RUN"]).main())
