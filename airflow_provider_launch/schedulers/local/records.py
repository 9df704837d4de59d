"""Records of the apps below one root, as launchers read and write them; `layout` has the file names."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from cachetools import FIFOCache

from airflow_provider_launch.schedulers._kit.request import stored_app
from airflow_provider_launch.schedulers.local import layout, processes, safe_files
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.roles import MAX_REPLICAS, AppDef
from airflow_provider_launch.util.untrusted import OversizedError, UntrustedError, one_line

log = logging.getLogger(__name__)
APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Valid app ids: names of directories that cannot be outside the root."""
_SWEEP_EVERY_S = 3600.0
_LEFT_S = 86400.0
"""Age of a half-removed or half-built app that no process completes any more."""
_EXIT_S, _EXIT_PAUSE_S = 0.5, 0.05
"""Seconds within which a supervisor that has stored the end of its app is gone."""
_REPLACED = safe_files.REPLACED | {errno.EINVAL, errno.ENOTDIR, errno.EACCES, errno.EPERM}
"""Errors of a path that was replaced by another type of file, or whose permissions were removed."""
OF_HOST = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.EINTR, errno.EBUSY,
})  # fmt: skip
"""Errors of this process, of the disk or of a network file system. Others come from the content of a directory.

Not EAGAIN: with the name of a file, a program has leased that file; of a new process, it comes without a name.
"""


_LATEST = 2.0**40
"""Limit for numbers in records, which are times, codes or counts."""
_Kind = type | tuple[type, ...]
_NUMBER_OR_NONE = (int, float, type(None))
_TEXT_OR_NONE = (str, type(None))
_APP_FIELDS: Mapping[str, _Kind] = {
    "app": dict, "request": dict, "host": str, "boot_id": str, "created": _NUMBER_OR_NONE
}  # fmt: skip
_REQUEST_FIELDS: Mapping[str, _Kind] = {"name": str, "metadata": dict, "roles": list, "spec_hash": str}
_STATE_FIELDS: Mapping[str, _Kind] = {
    "final": bool, "state": str, "msg": _TEXT_OR_NONE, "host": str, "app_attempt": int, "replicas": list
}  # fmt: skip
_REPLICA_FIELDS: Mapping[str, _Kind] = {
    "role": str, "id": int, "phase": str, "attempt": int, "code": (int, type(None)), "signal": (int, type(None)),
    "start": _NUMBER_OR_NONE, "end": _NUMBER_OR_NONE,
}  # fmt: skip


_KEPT_BYTES = 256 * 1024 * 1024
"""Maximum memory of the cached requests of all apps together, as estimated."""
_PART_BYTES, _PART_CHARS = 64, 3
"""Memory of an item of a list, and the length of the shortest one: `{},`."""
_CHANGES_S = 60.0
_TRACKED = 10_000
_MOST_CHANGED_BYTES = 1024 * 1024
"""Maximum bytes of changed requests of one app that are read in that time. A launcher writes a request only once."""
_LARGE_STATE, _LARGE_AGAIN_S = 256 * 1024, 2.0
"""Bytes of a state from which a change is not read again by each read of a log, but after these seconds."""
_STATE_PARTS, _REPLICA_PARTS = 5000, 20
"""Maximum items in a state: of the whole app with its ports, and in addition for each replica."""


Version = tuple[int, int, int]
"""Inode, size and time of a file, which differ after each change."""


class StoredApp(dict[str, Any]):
    """The content of `app.json`. It is cached, so callers must not change it."""

    def __init__(self, document: Mapping[str, Any], version: Version) -> None:
        super().__init__(document)
        self.version = version
        self.damage = ""
        """Why `app_def` cannot be built, once that was tried."""

    @cached_property
    def app_def(self) -> AppDef:
        """The app as it was submitted; an error of any type means that it is not an app, or has too many replicas."""
        return stored_app(self["app"])

    @property
    def most_replicas(self) -> int:
        """The number of its replicas, or the maximum if `app_def` was not built."""
        app: AppDef | None = vars(self).get("app_def")
        return sum(role.num_replicas for role in app.roles) if app else MAX_REPLICAS


class _SeenState(NamedTuple):
    """The content of one version of a state."""

    version: Version
    is_final: bool
    is_document: bool
    damage: str
    """The error if its program has replaced it; empty: it is sound."""
    read_at: float = 0.0
    """When it was read, by the monotonic clock."""


class _StoredApps:
    """The cached requests by app id. A request never changes, but a program may replace that of its own app."""

    def __init__(self) -> None:
        # Calls come from several threads, so reading must not change the order.
        self._lock = threading.Lock()
        self._apps: FIFOCache[str, StoredApp] = FIFOCache(_KEPT_BYTES, getsizeof=lambda app: _memory_of(app.version[1]))
        self._changes: FIFOCache[str, tuple[Version, int, float]] = FIFOCache(_TRACKED)
        """App id to the version that was read last, the bytes of all versions read, and since when."""

    def get(self, app_id: str, version: Version | None = None) -> StoredApp | None:
        """Return the cached request if there is one of this version, or of any version if `version` is None."""
        found = self._apps.get(app_id)
        return found if found is None or version in {None, found.version} else None

    def keep(self, app_id: str, app: StoredApp) -> None:
        """Cache a request."""
        with self._lock:
            self._apps[app_id] = app

    def may_read(self, app_id: str, version: Version) -> bool:
        """Return whether a request may be read, after those that were read before; note that it is read."""
        now = time.monotonic()
        with self._lock:
            last, size, since = self._changes.get(app_id, (None, 0, now))
            if now - since > _CHANGES_S:
                size, since = 0, now
            if version != last:
                if size > _MOST_CHANGED_BYTES:
                    return False
                size += version[1]
            self._changes[app_id] = version, size, since
        return True

    def forget(self, app_id: str) -> None:
        """Forget what was read of an earlier app with this id."""
        with self._lock:
            self._changes.pop(app_id, None)


def _memory_of(size: int) -> int:
    """Return the memory that a request with this number of bytes needs at most."""
    return size + _PART_BYTES * min(size // _PART_CHARS, layout.MOST_PARTS)


class Records:
    """Creates, reads, marks and removes the directories of the apps.

    An app that cannot be read is an error, not an app that does not exist.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._is_used = False
        self._apps = _StoredApps()
        # Reads come from several threads, so they must not change the order.
        self._lock = threading.Lock()
        self._states: FIFOCache[str, _SeenState] = FIFOCache(_TRACKED)
        self._damaged: dict[str, tuple[Version | None, str]] = {}
        """App id to the version of a damaged record and its error, so that it is not read again in each poll."""
        self._id: str | None = None
        """Id of the root in which the first app was found; None before that, or if the root has no id."""

    def dir(self, app_id: str) -> str:
        """Return the directory of the app, whether it exists or not."""
        # The id comes from a handle, so it is not trusted.
        return f"{self.root}/apps/{app_id if APP_ID.fullmatch(app_id) else '.none'}"

    def ids(self) -> list[str]:
        """Return the ids of all apps, sorted."""
        found: list[str] = []
        with self.readable(), contextlib.suppress(FileNotFoundError):
            found = sorted(os.listdir(f"{self.root}/apps"))
        self._refuse_other_root()
        return found

    def app(self, app_id: str) -> StoredApp | None:
        """Return the request of the app, or None if the app does not exist."""
        root_id = self._id or self._read_id()
        with self.readable():
            self._refuse_foreign(app_id)
            path = f"{self.dir(app_id)}/{layout.APP}"
            version = self._version(path)
            found = self._apps.get(app_id, version) if version is not None else None
            if found is None:
                found = self._read_app(app_id, path, version)
        if found is not None:
            self._is_used, self._id = True, root_id
        else:
            self._refuse_other_root()
        return found

    def _read_app(self, app_id: str, path: str, version: Version | None) -> StoredApp | None:
        if version is not None:
            damaged_version, text = self._damaged.get(app_id, (None, ""))
            if version == damaged_version:
                raise AppUnavailableError(text)
            if not self._apps.may_read(app_id, version):
                raise AppUnavailableError(self.damage(app_id, f"{layout.APP} is replaced too often"))
        self._damaged.pop(app_id, None)
        document = layout.read_json(path)
        if document is None and os.path.lexists(path):
            # Check again, because an app may be launched or removed at this moment, each atomically.
            version = self._version(path)
            document = layout.read_json(path)
            if document is None and os.path.lexists(path):
                raise self._noted(app_id, version, f"{layout.APP} is not a valid document")
        if document is None or version is None:
            return None if document is None else self._read_app(app_id, path, self._version(path))
        try:
            self._refuse_damaged(app_id, document, _APP_FIELDS)
            self._refuse_damaged(app_id, document["request"], _REQUEST_FIELDS)
        except AppUnavailableError as error:
            self._damaged[app_id] = version, str(error)
            raise
        found = StoredApp(document, version)
        self._apps.keep(app_id, found)
        return found

    def _noted(self, app_id: str, version: Version | None, why: str) -> AppUnavailableError:
        text = self.damage(app_id, why)
        self._damaged[app_id] = version, text
        return AppUnavailableError(text)

    def app_def(self, app_id: str, app: StoredApp) -> AppDef:
        """Return the app as it was submitted; the caller must not change it."""
        if not app.damage:
            try:
                return app.app_def
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                app.damage = self.damage(app_id, f"{layout.APP}: {type(error).__name__}: {one_line(str(error), 200)}")
        raise AppUnavailableError(app.damage)

    def state(self, app_id: str) -> dict[str, Any] | None:
        """Return the latest state from the supervisor, or None if it has not written one yet."""
        found = self._state(app_id)
        if found is not None:
            self._refuse_damaged(app_id, found, _STATE_FIELDS)
            for replica in found["replicas"]:
                self._refuse_damaged(app_id, replica, _REPLICA_FIELDS)
        return found

    def _state(self, app_id: str) -> dict[str, Any] | None:
        seen = self._seen_state(app_id)
        if seen is not None and not seen.is_document:
            return None
        kept = self._apps.get(app_id)
        count = kept.most_replicas if kept else MAX_REPLICAS
        # Before the read, so that a later version is read again.
        version = self.state_version(app_id)
        found: dict[str, Any] | None = None
        damage = ""
        try:
            path = f"{self.dir(app_id)}/{layout.STATE}"
            found = layout.read_record(path, _STATE_PARTS + _REPLICA_PARTS * count, layout.largest_state(count))
            if found is not None:
                self._refuse_damaged(app_id, found, {"final": bool})
        except (FileNotFoundError, safe_files.NotRegularError):
            return None  # a program may have leased it, so the same version may be read later
        except AppUnavailableError as error:
            damage = str(error)
        except OversizedError as error:
            damage = self.damage(app_id, f"{layout.STATE}: {error}")
        except UntrustedError:
            pass  # the next supervisor writes it again
        if version is not None:
            is_final = found is not None and not damage and bool(found["final"])
            with self._lock:
                self._states[app_id] = _SeenState(version, is_final, found is not None, damage, time.monotonic())
        if damage:
            raise AppUnavailableError(damage)
        return found

    def _seen_state(self, app_id: str) -> _SeenState | None:
        """Return what was read if the state has not changed since."""
        safe_files.refuse_foreign(self.dir(app_id))
        seen = self._states.get(app_id)
        if seen is None or seen.version != self.state_version(app_id):
            return None
        if seen.damage:
            raise AppUnavailableError(seen.damage)
        return seen

    def has_ended(self, app_id: str) -> bool:
        """Return whether the state is final; each read of a log calls this, so each version is parsed once."""
        seen = self._seen_state(app_id)
        if seen is not None:
            return seen.is_final
        latest = self._states.get(app_id)
        # Its program can change a large one before each read of a log.
        is_large = latest is not None and latest.version[1] > _LARGE_STATE and not latest.is_final
        if latest is not None and is_large and time.monotonic() - latest.read_at < _LARGE_AGAIN_S:
            return False
        document = self._state(app_id)
        return document is not None and bool(document["final"])

    def state_version(self, app_id: str) -> Version | None:
        """Return a version that changes with the state; None if there is no state yet."""
        return self._version(f"{self.dir(app_id)}/{layout.STATE}")

    def is_supervised(self, app_id: str) -> bool:
        """Return whether the app has a live supervisor."""
        return processes.is_locked(f"{self.dir(app_id)}/{layout.LOCK}")

    def commit(self, app_id: str, document: dict[str, Any], fill: Callable[[str], None] | None = None) -> None:
        """Build the directory under a temporary name and rename it, so that the app exists completely or not at all.

        Does nothing if another process was first; the caller must check whose app it is. Creates the root only if this
        object has never seen one. `document` becomes `app.json`; `fill` adds files to the directory before it is
        renamed.
        """
        self._refuse_other_root()
        temporary = f"{self.root}/building/{app_id}.{uuid.uuid4().hex}"
        try:
            if not self._is_used:
                with contextlib.suppress(FileNotFoundError):  # the parent of `/`
                    safe_files.make_dirs(os.path.dirname(self.root), mode=0o755)
                for path in (self.root, f"{self.root}/apps"):
                    safe_files.make_dirs(path)
                with contextlib.suppress(FileExistsError, PermissionError):
                    # A dangling link, because it is created atomically and only once.
                    os.symlink(uuid.uuid4().hex, f"{self.root}/{layout.ROOT_ID}")
            for path in (f"{self.root}/building", temporary):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, mode=0o700)
            # Again, because another user may have created the root at the same moment.
            self._refuse_foreign_root()
            for path in (f"{self.root}/building", temporary):
                safe_files.refuse_foreign(path)
            if fill is not None:
                fill(temporary)
            layout.write_json(f"{temporary}/{layout.APP}", document, durable=True)
            os.rename(temporary, self.dir(app_id))
            self._apps.forget(app_id)
        except LaunchError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if error.errno == errno.ENOENT and self._is_used:
                self._refuse_other_root()
                raise self._was_away() from error
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise SchedulerRejectedError(
                    f"cannot write {self.root!r}: {error.strerror}; free or choose another root in the connection"
                ) from error

    def write_end(self, app_id: str, document: dict[str, Any]) -> None:
        """Write the final state on behalf of the supervisor."""
        layout.write_json(f"{self.dir(app_id)}/{layout.STATE}", document, durable=True)
        layout.append_journal(self.root, app_id, document["state"])

    def mark(self, app_id: str, name: str) -> bool:
        """Write a mark for the supervisor; return whether the app still exists."""
        with self.readable():
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(f"{self.dir(app_id)}/{name}", flags, 0o600))
            except FileNotFoundError:
                self._refuse_returned(app_id)
                return False
            except OSError as error:
                # The app itself has put something there, which counts as the mark.
                if error.errno not in _REPLACED:
                    raise
            safe_files.wake_reader(f"{self.dir(app_id)}/{layout.BELL}")
        return True

    def remove(self, app_id: str) -> None:
        """Remove an app that has ended."""
        with self.readable():
            if not layout.remove_app(self.root, self.dir(app_id)):
                self._refuse_returned(app_id)

    def is_left(self, app_id: str) -> bool:
        """Return whether there is a directory, or what replaced it, without a request."""
        path = self.dir(app_id)
        return os.path.lexists(path) and not os.path.lexists(f"{path}/{layout.APP}")

    def delete_damaged(self, app_id: str) -> None:
        """Delete an app whose files its program has replaced, whatever they are: nothing in them is read.

        A live supervisor cancels it, and removes it after its end; otherwise its processes are killed here.
        """
        path = self.dir(app_id)
        with self.readable():
            try:
                is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
            except FileNotFoundError:
                self._refuse_other_root()
                return
            if is_directory:
                with contextlib.suppress(PermissionError):  # another user owns it
                    # Its program may have closed it; a directory that cannot be written cannot be moved either.
                    os.chmod(path, 0o700)
                if self._is_alive(app_id):
                    self.mark(app_id, layout.DELETE)
                    if self._stays_alive(app_id):
                        return
            processes.kill_marked(f"{processes.MARKER}={path}/".encode())
            if layout.remove_app(self.root, path):
                self._damaged.pop(app_id, None)

    def _stays_alive(self, app_id: str) -> bool:
        """Return whether the supervisor will see a mark: not if the app has just ended."""
        until = time.monotonic() + _EXIT_S
        while time.monotonic() < until:
            if not self._is_alive(app_id):
                return False
            time.sleep(_EXIT_PAUSE_S)
        return True

    def _is_alive(self, app_id: str) -> bool:
        """Return whether the app has a supervisor, even if another file is in the place of its lock."""
        try:
            return self.is_supervised(app_id)
        except OSError as error:
            if error.errno not in _REPLACED:
                raise
            return False

    def sweep(self, keep_s: float) -> None:
        """Remove apps that ended more than `keep_s` seconds ago, at most once an hour per root.

        Damaged apps without a supervisor are removed as well, if their state is as old.

        Their files, and what earlier removals have left, are removed in the background.
        """
        stamp = f"{self.root}/swept"
        now = time.time()
        # Not opened, because any program of this user may have put something else there.
        try:
            # A program may have set any time, also a later one.
            if abs(now - os.lstat(stamp).st_mtime) < _SWEEP_EVERY_S:
                return
            os.utime(stamp, follow_symlinks=False)
        except FileNotFoundError:
            try:
                os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                return  # another first launch was faster, and sweeps
        trash = [*self._left_before(now - _LEFT_S)]
        for app_id in os.listdir(f"{self.root}/apps"):
            # An app that cannot be read or removed must not stop the removal of the others.
            try:
                ended_at = os.lstat(f"{self.dir(app_id)}/{layout.STATE}").st_mtime
                if now - ended_at > keep_s and self._has_ended_or_is_damaged(app_id):
                    trash += filter(None, [layout.discard_app(self.root, self.dir(app_id))])
            except FileNotFoundError:
                continue  # it has no state yet, or was removed meanwhile
            except Exception as error:  # noqa: BLE001 - its program may have left anything
                log.warning("cannot remove app %s, which may have ended: %s", app_id, one_line(str(error), 200))
        layout.remove_trees(trash)

    def _has_ended_or_is_damaged(self, app_id: str) -> bool:
        try:
            return self.has_ended(app_id)
        except (AppUnavailableError, safe_files.ForeignFileError):
            # Its program has damaged it; kept, it would take space for ever.
            return not self._is_alive(app_id)

    def _left_before(self, time_s: float) -> Iterator[str]:
        """Yield what removals and submissions have left, and other processes may remove now."""
        with contextlib.suppress(FileNotFoundError), os.scandir(f"{self.root}/{layout.BUILDING}") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_ctime < time_s:
                        yield entry.path

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """Translate errors of the file system into errors of a scheduler."""
        try:
            self._refuse_foreign_root()
            yield
        except UntrustedError as error:
            raise AppUnavailableError(f"the files of the app were replaced: {error}; delete the app") from error
        except (NotADirectoryError, PermissionError) as error:
            # An empty mount point may be closed to all users.
            self._refuse_other_root()
            if self.is_of_one_app(error):
                raise self._replaced(error) from error
            raise SchedulerRejectedError(
                f"cannot use {self.root!r}: {error.strerror}; choose another root in the connection"
            ) from error
        except OSError as error:
            if self.is_of_one_app(error):
                raise self._replaced(error) from error
            raise SchedulerUnavailableError(f"cannot use {self.root!r}: {error.strerror}") from error

    def _refuse_foreign_root(self) -> None:
        safe_files.refuse_foreign_root(self.root)
        if os.path.islink(f"{self.root}/apps"):
            # A link would also break the supervisor, which finds the root by '..'.
            raise SchedulerRejectedError(
                f"'apps' in {self.root!r} is a link; make the root a link instead, or choose another in the connection"
            )
        safe_files.refuse_foreign(f"{self.root}/apps")

    def _refuse_foreign(self, app_id: str) -> None:
        """Refuse a record that another user may have written, because its commands would run as this user."""
        for path in (self.dir(app_id), f"{self.dir(app_id)}/{layout.APP}"):
            safe_files.refuse_foreign(path)

    def _refuse_damaged(self, app_id: str, document: object, kinds: Mapping[str, _Kind]) -> None:
        """Refuse a record with fields of wrong types; the program of an app may have replaced it."""
        if not isinstance(document, dict):
            raise AppUnavailableError(self.damage(app_id, "it is not an object"))
        for name, kind in kinds.items():
            value = document.get(name)
            # A bool is an int in Python; huge numbers cannot be converted to times.
            is_sound = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not is_sound or (isinstance(value, (int, float)) and not -_LATEST < value < _LATEST):
                raise AppUnavailableError(self.damage(app_id, f"{name!r} has a wrong value"))

    @staticmethod
    def _version(path: str) -> Version | None:
        """Return a version that changes with the file; None if the file does not exist."""
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def damage(self, app_id: str, why: object) -> str:
        """Return the error message about a damaged record."""
        return f"the record of app {app_id!r} is damaged: {why}; delete the app; its files are in {self.dir(app_id)!r}"

    def is_of_one_app(self, error: OSError) -> bool:
        """Return whether an error is about a file of one app, while the directory of all apps can be read."""
        name = str(error.filename or "/")
        # A relative name is below the directory of an app, which was opened before.
        is_of_app = name.startswith(f"{self.root}/apps/") or not name.startswith("/")
        if error.errno in OF_HOST or not is_of_app:
            return False
        try:
            with os.scandir(f"{self.root}/apps") as entries:
                next(entries, None)
        except OSError:
            return False
        return True

    @staticmethod
    def _replaced(error: OSError) -> AppUnavailableError:
        return AppUnavailableError(f"the file {error.filename!r} was replaced: {error.strerror}; delete the app")

    def _read_id(self) -> str | None:
        try:
            return os.readlink(f"{self.root}/{layout.ROOT_ID}")
        except OSError:
            return None

    def _refuse_other_root(self) -> None:
        """Refuse to conclude anything if the root is missing, or is not the one that was used before."""
        if not self._is_used:
            return
        # A missing root means that it is not mounted now: its apps may still run.
        if not os.path.isdir(f"{self.root}/apps"):
            raise SchedulerUnavailableError(f"the root {self.root!r} is missing; it existed before, mount it again")
        # Not by device and inode numbers, which change with each mount of some file systems.
        if self._id is not None and self._read_id() != self._id:
            raise SchedulerUnavailableError(
                f"the root {self.root!r} was replaced by another directory; mount the previous one again, or restart "
                f"this process if the previous one no longer exists"
            )

    def _refuse_returned(self, app_id: str) -> None:
        """Raise an error if an app that was not found exists again, because then it was not removed."""
        if self.app(app_id) is not None:
            raise self._was_away()

    def _was_away(self) -> SchedulerUnavailableError:
        return SchedulerUnavailableError(f"the root {self.root!r} was missing for a moment; try again")
