"""Caches the parts of apps that do not change, so that they are read once."""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers.slurm.records import Attempt, Record, damage_text
from airflow_provider_launch.schedulers.slurm.request import SlurmRequest
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.store import Store

log = logging.getLogger(__name__)

_KEPT = 10_000
"""Maximum number of cached apps."""
_KEPT_BYTES = 32 * 1024 * 1024
"""Maximum bytes of their records together, unless one poll needs more; in memory they need several times as much."""
_ERROR_BYTES = 64 * 1024
_LINE_CHARS = 500
_ERRORS_AT_ONCE = 64
_KEPT_ERRORS = 64 * 1024 * 1024
"""Maximum memory in bytes of the errors of all cached apps."""
_STOPPED_READ = 200
"""Maximum number of stopped replicas whose errors are read."""
_ERRORS_BYTES = 2 * 1024 * 1024
"""Maximum bytes of the errors of all replicas of an app."""
_DAMAGED_S = 60.0
"""Seconds until a damaged record is read again, because a user may have repaired it."""
_MOST_READS = 20
"""Maximum reads of one app's request within `_DAMAGED_S`, because a program may keep replacing the file, and each read
delays all apps. A large record counts as several."""
_BYTES_OF_READ, _READS_OF_DAMAGED = 64 * 1024, 5
_FEW_ATTEMPTS = 1000
"""Number of attempts that an app may always have, whatever its retries."""
_MANY_ATTEMPTS, _MANY_OF_REPLICA = 20_000, 20
"""Maximum attempts of an app, and in addition for each replica, because all of them are parsed after each change."""


@dataclass
class CachedApp:
    """A cached app. Its request never changes, its attempts change only while it runs."""

    record: Record
    identity: str
    """`<spec hash>:<instance>`, as in the comments of its jobs."""
    request: SlurmRequest
    size: int = 0
    """Bytes of its record."""
    attempts: list[Attempt] = field(default_factory=list)
    attempts_as_of: str = ""
    errors: dict[str, str] | None = None
    last_log_line: str | None = None
    _newest_of: tuple[list[Attempt], dict[tuple[int, int], Attempt]] = field(default_factory=lambda: ([], {}))
    """The attempts, and the mapping that `_newest` computed from them."""

    def newest_paths(self, role: int, name: str) -> list[str]:
        """Return the path of a file in the last attempt of each replica of a role; empty if there is no attempt."""
        found = self._newest
        replicas = range(self.request.roles[role].num_replicas)
        return [self._path(found[role, k], name) if (role, k) in found else "" for k in replicas]

    def failed_paths(self, name: str) -> list[str]:
        """Return the path of a file in the last attempt of each replica that has a failed attempt.

        The files of some stopped replicas follow: one may have failed first, and was stopped while it was ending.
        """
        failed = {(one.role, one.replica) for one in self.attempts if one.code and not one.stopped}
        stopped = {(one.role, one.replica) for one in self.attempts if one.stopped} - failed
        chosen = [*sorted(failed), *sorted(stopped)[:_STOPPED_READ]]
        return [self._path(self._newest[replica], name) for replica in chosen]

    def error(self, role: int, replica: ReplicaStatus) -> str | None:
        """Return the error that a failed replica wrote."""
        newest = self._newest.get((role, replica.id))
        return (self.errors or {}).get(self._path(newest, "error.json")) if newest else None

    @property
    def _newest(self) -> dict[tuple[int, int], Attempt]:
        """Role and replica to its last attempt, computed once for a list of attempts, which may be long."""
        if self._newest_of[0] is not self.attempts:
            self._newest_of = self.attempts, {(one.role, one.replica): one for one in self.attempts}
        return self._newest_of[1]

    def _path(self, at: Attempt, name: str) -> str:
        slug = self.request.roles[at.role].slug
        return f"{self.record.app_id}/run/{at.app_attempt}/{slug}/{at.replica}/{at.number}/{name}"


class AppCache:
    """The cache of recently requested apps. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._apps: OrderedDict[str, CachedApp] = OrderedDict()
        self._damaged: dict[str, tuple[str, float, str]] = {}
        """App id to its version, the time of the next read, and the error."""
        self._reads: dict[str, tuple[int, float, str]] = {}
        """App id to the number of reads of its request, since when, and the version that was read last."""
        self._overfull: dict[str, tuple[float, str]] = {}
        """App id to the time when its attempts are read again, and their error."""
        self._with_errors: deque[tuple[str, int]] = deque()
        """The ids of the apps whose errors are cached, the oldest first, and the memory of each in bytes."""

    def app(self, app_id: str) -> CachedApp:
        """Return a loaded app."""
        return self._apps[app_id]

    def request(self, app_id: str) -> SlurmRequest | None:
        """Return the request of an app, even if the app was deleted after it was cached; None if it does not exist."""
        if app_id in self._apps:
            return self._apps[app_id].request
        if text := self._load_requests([Record(app_id)]).get(app_id):
            raise AppUnavailableError(text)
        return self._apps[app_id].request if app_id in self._apps else None

    def load(self, records: Mapping[str, Record]) -> tuple[dict[str, CachedApp], dict[str, str]]:
        """Return the apps of these records, and the errors of apps with damaged records.

        Apps that were deleted meanwhile are left out.
        """
        damaged = self._load_requests(
            record
            for app_id, record in records.items()
            # A later app may have the same id.
            if app_id not in self._apps or self._apps[app_id].record.created != record.created
        )
        found = {app_id: self._apps[app_id] for app_id in records if app_id in self._apps}
        for app_id, app in found.items():
            app.record = records[app_id]
            self._apps.move_to_end(app_id)
        size = sum(app.size for app in self._apps.values())
        while len(self._apps) > len(found) and (len(self._apps) > _KEPT or size > _KEPT_BYTES):
            size -= self._apps.popitem(last=False)[1].size
        return found, damaged

    def _load_requests(self, records: Iterable[Record]) -> dict[str, str]:
        """Read the requests; return the errors of damaged ones."""
        now = time.monotonic()
        self._damaged = {app_id: one for app_id, one in self._damaged.items() if one[1] > now}
        self._reads = {app_id: one for app_id, one in self._reads.items() if now - one[1] < _DAMAGED_S}
        wanted, damaged = {}, {}
        for record in records:
            self._apps.pop(record.app_id, None)
            version, _, text = self._damaged.get(record.app_id, ("", 0.0, ""))
            if text and version == record.created:
                damaged[record.app_id] = text
            elif self._is_replaced_often(record):
                damaged[record.app_id] = damage_text(record.app_id, "id is replaced too often")
            else:
                wanted[record.app_id] = record
        for app_id, one in (self._store.requests(wanted) if wanted else {}).items():
            count, since = self._reads.get(app_id, (0, now, ""))[:2]
            read = _READS_OF_DAMAGED if isinstance(one, str) else 1 + one[2] // _BYTES_OF_READ
            self._reads[app_id] = count + read, since, wanted[app_id].created
            if isinstance(one, str):
                damaged[app_id] = one
                self._damaged[app_id] = wanted[app_id].created, now + _DAMAGED_S, one
            else:
                self._apps[app_id] = CachedApp(wanted[app_id], *one)
        return damaged

    def _is_replaced_often(self, record: Record) -> bool:
        count, _, version = self._reads.get(record.app_id, (0, 0.0, ""))
        # The same version is read again after the cache has dropped it.
        return count >= _MOST_READS and not (version and version == record.created)

    def load_attempts(self, apps: Iterable[CachedApp]) -> dict[str, str]:
        """Read the attempts of the apps that have new ones; return the errors of apps whose attempts are unreadable."""
        # On NFS the time of a directory may be outdated, but reading it shows all files: always read it at the end.
        now = time.monotonic()
        self._overfull = {app_id: one for app_id, one in self._overfull.items() if one[0] > now}
        changed = [app for app in apps if app.attempts_as_of != app.record.changed + app.record.end]
        wanted = [app for app in changed if app.record.app_id not in self._overfull]
        found = self._store.attempts([app.record.app_id for app in wanted]) if wanted else {}
        for app in wanted:
            app_id = app.record.app_id
            attempts = found[app_id]
            if not isinstance(attempts, str) and len(attempts) > (most := most_attempts(app.request)):
                attempts = damage_text(
                    app_id, f"status has records of {len(attempts)} attempts; at most {most} are possible"
                )
            if isinstance(attempts, str):
                # Do not read them in each poll: all followers of the connection would wait.
                self._overfull[app_id] = now + _DAMAGED_S, attempts
                continue
            counts = [role.num_replicas for role in app.request.roles]
            # The app itself can write records, so check them.
            app.attempts = [one for one in attempts if one.role < len(counts) and one.replica < counts[one.role]]
            app.attempts_as_of = app.record.changed + app.record.end
        ids = (app.record.app_id for app in changed)
        return {app_id: self._overfull[app_id][1] for app_id in ids if app_id in self._overfull}

    def last_log_line(self, app: CachedApp) -> str:
        """Return the last line of srun, or of the script, in the log of an ended app; empty if there is none."""
        if app.last_log_line is None:
            path = f"{app.record.app_id}/job.log"
            file = self._store.read([path], _ERROR_BYTES).get(path)
            text = file.data.decode("utf-8", "replace") if file and file.is_plain else ""
            lines = [line for line in text.split("\n") if line.strip()]
            of_srun = [line for line in lines if line.startswith("srun: ")]
            app.last_log_line = clean_text((of_srun or lines or [""])[-1])[:_LINE_CHARS]
        return app.last_log_line

    def load_errors(self, app: CachedApp) -> None:
        """Read the errors that the replicas of a failed app wrote, once."""
        if app.errors is None:
            paths = app.failed_paths("error.json")
            errors, size = {}, 0
            while paths and size < _ERRORS_BYTES:
                for path, file in self._store.read(paths[:_ERRORS_AT_ONCE], _ERROR_BYTES).items():
                    if size >= _ERRORS_BYTES:
                        break
                    errors[path] = clean_text(file.data.decode("utf-8", "replace"))
                    size += len(file.data)
                    if not file.is_plain:
                        log.warning("%s is not a plain file of this user, and is ignored", path)
                paths = paths[_ERRORS_AT_ONCE:]
            app.errors = errors
            self._with_errors.append((app.record.app_id, sum(map(sys.getsizeof, errors.values()))))
            while len(self._with_errors) > 1 and sum(one[1] for one in self._with_errors) > _KEPT_ERRORS:
                oldest = self._apps.get(self._with_errors.popleft()[0])
                if oldest is not None:
                    oldest.errors = None  # read again if it is polled again


def most_attempts(request: SlurmRequest, *, of_replica: bool = False) -> int:
    """Return the maximum number of attempts of all replicas of an app together, or of one replica."""
    roles = request.app_def.roles
    tries = 1 + max((role.max_retries for role in roles), default=0)
    count = 1 if of_replica else sum(role.num_replicas for role in roles)
    # In each attempt of the app, a replica may have this many attempts. The app may have changed its own `max_retries`.
    return min(_FEW_ATTEMPTS + count * tries**2, _MANY_ATTEMPTS + count * _MANY_OF_REPLICA)
