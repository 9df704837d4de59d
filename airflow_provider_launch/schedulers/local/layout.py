"""Files below the root: their names, and functions to read, write and remove them.

```text
<root>/apps/<app>/   app.json          the request; the directory appears whole, by a rename
                     lock              flock of the supervisor
                     state.json        latest state from the supervisor; final once terminal
                     cancel, delete    marks: requests of an observer
                     ports.json        chosen ports
                     supervisor.log
                     job.json, submit.lock   of an app in a queue
                     run/<app attempt>/<role>/<replica>/<replica attempt>/
                         started pid exit stdout stderr times shim.lock result error.json torch/
<root>/journal       one line per change of any app
<root>/ports/        <port>.lock       <root>/gpus/ <gpu>.lock
<root>/building/     half-built and half-removed apps
```

Imports only the standard library, because the supervisor uses it too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular, regular_fd
from airflow_provider_launch.util.untrusted import OversizedError, UntrustedError, parse_json, refuse_parts

APP = "app.json"
LOCK = "lock"
STATE = "state.json"
CANCEL = "cancel"
DELETE = "delete"
BELL = "bell"
"""A FIFO from which the supervisor reads: a byte wakes it. Without it, the supervisor polls for marks."""
SUPERVISOR_LOG = "supervisor.log"
JOB = "job.json"
"""In apps of a queue: the id of the job."""
SUBMIT_LOCK = "submit.lock"
"""In apps of a queue: flock of the process that submits the job."""
PORTS = "ports.json"
JOURNAL = "journal"
ROOT_ID = "id"
JOURNAL_LIMIT = 1024 * 1024
"""Size in bytes after which a new journal is started."""
BUILDING = "building"
# Programs that do not run as root can close their directories, also for this user.
_REMOVE = """{
rm -rf -- "$@" || { find "$@" -type d ! -perm -0700 -exec chmod u+rwx {} ";"; rm -rf -- "$@"; }
} </dev/null >/dev/null 2>&1 &"""
_BATCH = 200
"""Maximum directories that one process removes: a command line has 128 KB at least."""


def role_dir(index: int, name: str) -> str:
    """Return the directory name of a role: the index makes it unique, the name makes it readable."""
    return f"{index}-" + re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40]


def attempt_dir(app_dir: str, app_attempt: int, role: str, replica: int, attempt: int) -> str:
    """Return the directory of one attempt; `role` is the result of `role_dir`."""
    return f"{app_dir}/run/{app_attempt}/{role}/{replica}/{attempt}"


MOST_ATTEMPTS = 10_000
"""Maximum attempts of one replica; its program could create any number of directories, and each read lists them all."""
_MOST_ENTRIES = 3 * MOST_ATTEMPTS
"""Maximum entries of all directories that are read to find the attempts of one replica."""


def attempts_of(app_dir: str, role: str, replica: int) -> list[tuple[int, int]]:
    """Return (app attempt, replica attempt) of every attempt of one replica, in order.

    Refuses more than `MOST_ATTEMPTS`, and too many other files.
    """
    found: list[tuple[int, int]] = []
    left = _MOST_ENTRIES
    app_attempts, left = _numbers_in(f"{app_dir}/run", left)
    if len(app_attempts) > MOST_ATTEMPTS:
        raise UntrustedError(f"the app has more than {MOST_ATTEMPTS} attempts")
    for app_attempt in app_attempts:
        numbers, left = _numbers_in(f"{app_dir}/run/{app_attempt}/{role}/{replica}", left)
        found += [(app_attempt, n) for n in numbers]
        if len(found) > MOST_ATTEMPTS:
            raise UntrustedError(f"replica {replica} of {role!r} has more than {MOST_ATTEMPTS} attempts")
    return found


def numbers_in(path: str) -> list[int]:
    """Return the entries of a directory that are numbers, sorted; empty if it does not exist."""
    return _numbers_in(path, _MOST_ENTRIES)[0]


def _numbers_in(path: str, most: int) -> tuple[list[int], int]:
    """Return the same, and how many entries may still be read of `most`."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in itertools.islice(entries, most + 1)]
    except FileNotFoundError:
        return [], most
    if len(names) > most:
        raise UntrustedError(f"{path!r} has more than {_MOST_ENTRIES} entries, with the directories next to it")
    # The app may have created other entries. Not `isdigit`, which accepts non-ASCII digits.
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{1,9}", name)), most - len(names)


LARGEST_RECORD = 16 * 1024 * 1024
"""Maximum size of a document in bytes; the program can replace it and could make it as large as the disk."""
MOST_PARTS = 500_000
"""Maximum items of lists and objects in it: each needs fifty times the memory of its text, and CPU time."""
LARGEST_EXIT = 4096
"""Maximum size in bytes of the files `exit` and `pid` of an attempt."""


def largest_state(replicas: int) -> int:
    """Return the maximum size in bytes of the state of an app with this many replicas."""
    return 256 * 1024 + 1024 * replicas


def parse_record(data: str | bytes, most_parts: int = MOST_PARTS) -> Any:
    """Return the document; an UntrustedError if it is not valid JSON, or too large."""
    refuse_parts(data, most_parts)
    return parse_json(data, LARGEST_RECORD)


def read_json(path: str, most_bytes: int = LARGEST_RECORD) -> Any:
    """Return the document, or None if the file does not exist, has no valid document, or is larger."""
    try:
        return read_record(path, MOST_PARTS, most_bytes)
    except (FileNotFoundError, NotRegularError, UntrustedError):
        return None


def read_record(path: str, most_parts: int, most_bytes: int) -> Any:
    """Return the document.

    Raises:
        OversizedError: it has more items or bytes, so that a program has written it; it would cost time in each poll.
        UntrustedError: it is not valid JSON.
        OSError: it cannot be read; FileNotFoundError and NotRegularError as in `open_regular`.
    """
    with open_regular(path) as file:
        # Check the size before reading, because a sparse file would fill the memory.
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OversizedError(f"the document has {size} bytes, the limit is {most_bytes}")
        # A program may write more meanwhile; the rest is not read, so the document is not valid.
        return parse_record(file.read(most_bytes), most_parts)


def write_json(path: str, document: object, *, durable: bool = False) -> None:
    """Replace the file atomically: a reader sees the old document or the new one, never half of it."""
    # A new file under a name that nothing can predict: a FIFO of the app's program there would block for ever.
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if os.path.isdir(path) and not os.path.islink(path):
            # The app has created a directory there; its supervisor would retry the write for ever.
            os.rename(path, f"{path}.{time.monotonic_ns()}.replaced")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def is_gone(path: str) -> bool:
    """Return whether the file certainly does not exist; False also if that cannot be checked now."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def remove_app(root: str, app_dir: str) -> bool:
    """Remove the directory atomically; return False if another process has already removed it.

    Its files are removed in the background.
    """
    trash = discard_app(root, app_dir)
    if trash is None:
        return False
    # A later sweep removes the rest.
    with contextlib.suppress(OSError):
        remove_trees([trash])
    return True


def discard_app(root: str, app_dir: str) -> str | None:
    """Rename the directory, so that the app no longer exists, and return its path for `remove_trees`.

    None: another process has already removed it.
    """
    app_id = os.path.basename(app_dir)
    trash = f"{root}/{BUILDING}/{app_id}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        # First, and without parents: create nothing if the root is not mounted now.
        os.stat(app_dir)
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(trash), mode=0o700)
        os.rename(app_dir, trash)
    except FileNotFoundError:
        return None
    # The disk may be full. Observers that miss this line notice the removal later.
    with contextlib.suppress(OSError):
        append_journal(root, app_id, "DELETED")
    return trash


def remove_trees(paths: Sequence[str]) -> None:
    """Remove directories in a background process, which outlives this one.

    A program can leave any number of files, which would delay a launch, and directories of any depth, at which
    `shutil.rmtree` fails.

    Raises:
        OSError: no process can be started.
    """
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        command = ["sh", "-c", _REMOVE, "sh", *batch]
        # Its own group, because Airflow ends the process group of a task.
        pid = os.posix_spawnp(command[0], command, {"PATH": os.environ.get("PATH", os.defpath)}, setpgroup=0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def append_journal(root: str, app_id: str, word: str) -> None:
    """Notify every observer of this root that something about the app has changed."""
    path = f"{root}/{JOURNAL}"
    line = f"{app_id} {word}\n".encode()
    tries = 3
    while True:
        try:
            fd = regular_fd(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except NotRegularError:
            if tries == 0:
                raise
            # A program has put a pipe, a link, a directory or a lease there, which would block the end of every app.
            tries -= 1
            with contextlib.suppress(OSError):
                os.rename(path, f"{path}.{time.monotonic_ns()}.replaced")
            continue
        try:
            os.write(fd, line)
            status = os.fstat(fd)
            if status.st_size > JOURNAL_LIMIT:
                _start_new_journal(path, status.st_ino)
            if _inode(path) in {status.st_ino, None}:
                return
            # Another process has started a new journal and observers may already read that one: write there too.
        finally:
            os.close(fd)


def _start_new_journal(path: str, inode: int) -> None:
    if _inode(path) == inode:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, f"{path}.old")


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def boot_id() -> str:
    """Return an id that changes when this host boots; empty if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
