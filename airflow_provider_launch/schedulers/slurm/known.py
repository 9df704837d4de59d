"""What was read of apps and does not change any more, so that it is read once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers.slurm.records import Attempt, Record
from airflow_provider_launch.schedulers.slurm.request import SlurmRequest
from airflow_provider_launch.specs.statuses import ReplicaStatus

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.store import Store

__all__ = ["KnownApp", "KnownApps"]

_KEPT = 10_000
"""Apps at most."""
_ERROR_BYTES = 64 * 1024


@dataclass
class KnownApp:
    """One app. Its request never changes, its attempts only as long as it runs."""

    record: Record
    identity: str
    """`<spec hash>:<instance>`, as in the comments of its jobs."""
    request: SlurmRequest
    attempts: list[Attempt] = field(default_factory=list)
    attempts_as_of: str = ""
    errors: dict[str, str] | None = None

    def newest_path(self, role: int, k: int, name: str) -> str:
        """Return the path of a file in the last attempt of a replica; empty: there is no attempt."""
        mine = [one for one in self.attempts if (one.role, one.replica) == (role, k)]
        if not mine:
            return ""
        at = mine[-1]
        return f"{self.record.app_id}/run/{at.app_attempt}/{self.request.roles[role].slug}/{k}/{at.number}/{name}"

    def error(self, role: int, replica: ReplicaStatus) -> str | None:
        """Return what a failed replica wrote about its failure."""
        return (self.errors or {}).get(self.newest_path(role, replica.id, "error.json"))


class KnownApps:
    """The apps that were asked for last. Not to be used by two threads at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._apps: OrderedDict[str, KnownApp] = OrderedDict()

    def app(self, app_id: str) -> KnownApp:
        """Return an app that was loaded."""
        return self._apps[app_id]

    def request(self, app_id: str) -> SlurmRequest | None:
        """Return the request of an app, maybe of one that was deleted meanwhile; None: there is no such app."""
        if app_id in self._apps:
            return self._apps[app_id].request
        self._load_requests([Record(app_id)])
        return self._apps[app_id].request if app_id in self._apps else None

    def load(self, records: Mapping[str, Record]) -> dict[str, KnownApp]:
        """Return the apps of these records; one that was deleted meanwhile is left out."""
        self._load_requests(
            record
            for app_id, record in records.items()
            # The same id may be that of a later app.
            if app_id not in self._apps or self._apps[app_id].record.created != record.created
        )
        found = {app_id: self._apps[app_id] for app_id in records if app_id in self._apps}
        for app_id, app in found.items():
            app.record = records[app_id]
            self._apps.move_to_end(app_id)
        while len(self._apps) > max(_KEPT, len(found)):
            self._apps.popitem(last=False)
        return found

    def _load_requests(self, records: Iterable[Record]) -> None:
        wanted = {record.app_id: record for record in records}
        for app_id in wanted:
            self._apps.pop(app_id, None)
        if wanted:
            for app_id, (identity, request) in self._store.requests(wanted).items():
                self._apps[app_id] = KnownApp(wanted[app_id], identity, request)

    def load_attempts(self, apps: Iterable[KnownApp]) -> None:
        """Read the attempts of the apps that have new ones."""
        # A directory that is read shows all; its time may be old news on NFS: the end is always read.
        wanted = [app for app in apps if app.attempts_as_of != app.record.changed + app.record.end]
        if not wanted:
            return
        found = self._store.attempts([app.record.app_id for app in wanted])
        for app in wanted:
            app.attempts = found[app.record.app_id]
            app.attempts_as_of = app.record.changed + app.record.end

    def load_errors(self, app: KnownApp) -> None:
        """Read what the replicas of a failed app wrote about their failures, once."""
        if app.errors is None:
            failed = [(one.role, one.replica) for one in app.attempts if one.code and not one.stopped]
            paths = {app.newest_path(role, k, "error.json") for role, k in failed}
            found = self._store.read(sorted(paths), _ERROR_BYTES) if paths else {}
            app.errors = {path: data.decode("utf-8", "replace") for path, (data, _) in found.items()}
