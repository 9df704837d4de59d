"""The Slurm scheduler: apps as jobs of a cluster."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE, BuiltinScheduler
from airflow_provider_launch.schedulers._kit.naming import file_slug
from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.responses import add_error_files
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.schedulers.slurm.app_cache import AppCache, CachedApp, most_attempts
from airflow_provider_launch.schedulers.slurm.log_reader import read_chunk
from airflow_provider_launch.schedulers.slurm.options import SlurmConnection, SlurmOpts
from airflow_provider_launch.schedulers.slurm.records import FORGED_END, Job, Observation, Record, damage_text
from airflow_provider_launch.schedulers.slurm.request import SlurmRequest, build_request, format_request
from airflow_provider_launch.schedulers.slurm.status import (
    FORGOTTEN,
    Standing,
    accounted,
    ending_of,
    response_from,
    standing,
    until_stopped,
)
from airflow_provider_launch.schedulers.slurm.store import FilePart, Store
from airflow_provider_launch.schedulers.slurm.transport import LocalTransport, Transport
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import AppUnavailableError, InvalidAppError, LaunchError, UnknownAppException
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.untrusted import one_line
from airflow_provider_launch.workspace.api import CopiedWorkspaceMixin

_APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESULTS_AT_ONCE = 50
_SWEEP_EVERY_S = 3600.0
_DAY_S = 86400.0
_DEAD_S = 120.0
"""Seconds after which the job of a deleted app counts as ended, counted from the last change of its file `alive`. A
running job changes that file every 15 s."""


class SlurmScheduler(CopiedWorkspaceMixin, BuiltinScheduler[SlurmOpts, SlurmConnection, SlurmRequest]):
    """Runs each app as one job. The script of the job runs the attempts and keeps the record in a shared directory.

    The directory decides the state of the app; Slurm adds the state of the job. Every process that can read both sees
    the same apps.
    """

    name: ClassVar[str] = "slurm"
    opts_type = SlurmOpts
    connection_type = SlurmConnection
    app_id_pattern = _APP_ID
    app_id_help: ClassVar[str] = "cannot name a job; use up to 100 letters, digits, '.', '_' and '-'"
    needs_image: ClassVar[bool] = False
    refusal_cures: ClassVar[Mapping[Capability, str]] = dict.fromkeys(
        (Capability.BIND_MOUNT, Capability.VOLUME_MOUNT, Capability.DEVICE_MOUNT),
        "replicas see the files of their node, and containers those of option container_mounts: leave them out",
    )
    capabilities: ClassVar[frozenset[Capability]] = EVERYWHERE | {
        Capability.DISRUPTION_RETRY,
        Capability.STREAMS,
        Capability.WORKSPACE,
    }
    poll_interval_s: ClassVar[float] = 5.0

    def __init__(self, session_name: str, connection: SlurmConnection | None = None) -> None:
        super().__init__(session_name, connection)
        self._store = Store(self.connection, _transport(self.connection))
        self._cache = AppCache(self._store)
        # Without ssh the root is a directory of this host.
        self._mount = self.connection.mount or (None if self.connection.ssh_host else self.connection.root)
        # Several followers call describe from their threads.
        self._mutex = threading.Lock()
        self._next_sweep = 0.0

    # ---- submit ----------------------------------------------------------------------------------------------

    def _app_slug(self, name: str) -> str:
        return file_slug(name)[:60] or "app"

    def _build_request(self, app: AppDef, opts: SlurmOpts, app_id: str) -> SlurmRequest:
        return build_request(app, opts, app_id, os.environ)

    _format_request = staticmethod(format_request)

    def schedule(self, dryrun_info: AppDryRunInfo[SlurmRequest]) -> str:
        request = dryrun_info.request
        self._store.submit(request)
        return request.app_id

    # ---- state -----------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        found: dict[str, DescribeAppResponse | None] = dict.fromkeys(ids)
        # Ids come from handles, which users can write.
        valid = [app_id for app_id in found if self._is_app_id(app_id)]
        if valid:
            responses, damaged = self._responses(self._store.observe(valid))
            if damaged:
                raise AppUnavailableError(next(iter(damaged.values())), texts=damaged)
            found.update(responses)
        return found

    def _responses(self, seen: Observation) -> tuple[dict[str, DescribeAppResponse], dict[str, str]]:
        """Return the response for each app, and the error for each damaged app.

        Deleted apps that have ended are removed.
        """
        with self._mutex:
            apps, damaged = self._cache.load(seen.records)
            damaged |= _damaged(seen)
            apps = {app_id: app for app_id, app in apps.items() if app_id not in damaged}
            standings = self._standings(seen, apps)
            damaged |= _damaged(seen)  # found when an end was recorded
            gone = [app_id for app_id, found in standings.items() if _is_left_over(apps[app_id], found)]
            dead = [app_id for app_id in damaged if _is_dead(seen.records[app_id], seen.now - _DEAD_S)]
            self._store.remove([*gone, *dead])
            damaged = {app_id: text for app_id, text in damaged.items() if app_id not in dead}
            left = {app_id: apps[app_id] for app_id in standings if app_id not in gone}
            # An app without a claim has no attempts yet.
            damaged |= self._cache.load_attempts([app for app in left.values() if app.record.claim])
            responses = {}
            for app_id, app in left.items():
                if app_id in damaged:
                    continue
                try:
                    responses[app_id] = self._response(app, standings[app_id], seen.now)
                except LaunchError:
                    raise
                except Exception as error:  # noqa: BLE001 - its program may have written any value into its record
                    damaged[app_id] = damage_text(app_id, f"{type(error).__name__}: {one_line(str(error), 200)}")
        return responses, damaged

    def _response(self, app: CachedApp, found: Standing, now: int) -> DescribeAppResponse:
        found = until_stopped(found, app.record, app.request, app.attempts, now)
        if found.reason == "nostart":
            found = replace(found, msg=self._cache.last_log_line(app) or found.msg)
        response = response_from(app.record, found, app.request, app.attempts)
        if response.state is AppState.FAILED:
            self._cache.load_errors(app)
            add_error_files(response, app.error)
        return response

    def _standings(self, seen: Observation, apps: Mapping[str, CachedApp]) -> dict[str, Standing]:
        """Return the state of each app. Records new ends, and returns the recorded end if there was an earlier one.

        An app whose recorded end is forged is left out, and its record gets a damage.
        """
        jobs: dict[str, builtins.list[Job]] = {}
        for job in seen.jobs:
            jobs.setdefault(job.app, []).append(job)
        found = {
            app_id: standing(app.record, jobs.get(app.identity, []), seen.now, self.connection.settle_s)
            for app_id, app in apps.items()
        }
        forgotten = [app_id for app_id, one in found.items() if one.is_new and one.reason in FORGOTTEN]
        accounts = self._store.accounts(forgotten)
        for app_id in forgotten:
            rows = [one for one in accounts if one.app_id == app_id]
            found[app_id] = accounted(found[app_id], apps[app_id].record, apps[app_id].identity, rows)
        self._store.discard(
            [
                job.id
                for app in apps.values()
                for job in jobs.get(app.identity, [])
                if app.record.end and (job.state, job.reason) == ("PENDING", "JobHeldUser")
            ]
        )
        new = [(app_id, one.claim, f"{one.end},{seen.now}") for app_id, one in found.items() if one.is_new]
        for app_id, end in self._store.mark_ends(new).items():
            if end is None:
                apps[app_id].record.damage = FORGED_END
                del found[app_id]
                continue
            apps[app_id].record.end = end
            found[app_id] = standing(apps[app_id].record, [], seen.now, self.connection.settle_s)
        # If a job has claimed the app meanwhile, the app runs, and the next poll shows its state.
        return {app_id: Standing(AppState.PENDING) if one.is_new else one for app_id, one in found.items()}

    def describe_native(self, app_id: str) -> AppDryRunInfo[SlurmRequest] | None:
        if not self._is_app_id(app_id):
            return None
        found = self._store.requests([app_id]).get(app_id)
        if isinstance(found, str):
            raise AppUnavailableError(found)
        return AppDryRunInfo(found[1], format_request) if found else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one root
        rows = []
        seen = self._store.observe(None)
        responses, damaged = self._responses(seen)
        for app_id, response in responses.items():
            name = self._cache.app(app_id).request.name
            owner, created = owner_of(response.metadata), seen.records[app_id].submitted or None
            rows.append(ListAppResponse(app_id, response.state, name=name, owner=owner, created_at=created))
        for app_id in damaged:
            record = seen.records[app_id]
            state = AppState[record.end.partition(",")[0]] if record.end else AppState.UNKNOWN
            rows.append(ListAppResponse(app_id, state, created_at=record.submitted or None))
        self._sweep(seen)
        return sorted(rows, key=lambda row: row.app_id)

    def _sweep(self, seen: Observation) -> None:
        """Remove apps that ended more than `keep_days` ago, at most once an hour."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + _SWEEP_EVERY_S
        limit = seen.now - self.connection.keep_days * _DAY_S
        old = [one.app_id for one in seen.records.values() if one.end and float(one.end.split(",")[2]) < limit]
        self._store.remove(
            [*old, *(one.app_id for one in seen.records.values() if one.damage and _is_idle(one, limit))]
        )

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        found = self.describe(app_id)
        if found is None:
            raise UnknownAppException(app_id)
        with self._mutex:
            paths = self._cache.app(app_id).newest_paths(0, "result")
        for at in range(0, len(paths), _RESULTS_AT_ONCE):
            some = paths[at : at + _RESULTS_AT_ONCE]
            files = self._store.read([path for path in some if path], RESULT_LIMIT_BYTES, whole=True)
            yield from (_result_in(files.get(path)) for path in some)

    # ---- end -------------------------------------------------------------------------------------------------

    def cancel(self, app_id: str) -> None:
        if self._is_app_id(app_id):
            self._cancel_existing(app_id)

    def _cancel_existing(self, app_id: str) -> None:
        self._store.cancel(app_id, "cancel")

    def delete(self, app_id: str) -> None:
        if self._is_app_id(app_id):
            self._delete_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        if self._store.cancel(app_id, "delete"):
            # `describe` removes an app that has ended. Another app is removed after its end, by its job or by a poll.
            with contextlib.suppress(AppUnavailableError):  # a damaged app is removed after its job
                self.describe(app_id)

    def close(self) -> None:
        self._store.close()

    def probe(self) -> str:
        """Check worker, login node and directory, and return a summary.

        Raises:
            LaunchError: names the missing part and its host.
        """
        return self._store.probe(mount=self._mount, with_node=self.connection.test_node)

    # ---- logs ------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        request = self._request(app_id)
        if request is None:
            raise UnknownAppException(app_id)
        role = check_replica(request.app_def.roles, role_name, k)
        number = request.app_def.roles.index(role)
        replica = (number, request.roles[number].slug, k)
        most = most_attempts(request, of_replica=True)
        return read_chunk(self._store, self._mount, app_id, replica, cursor, streams, most_attempts=most)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        request = self._request(app_id)
        if request is None:
            raise UnknownAppException(app_id)
        number = request.app_def.roles.index(check_replica(request.app_def.roles, role_name, k))
        _, attempts, _ = self._store.logs(app_id, number, k, [])
        return ending_of(attempts[attempt]) if attempt < len(attempts) else ""

    def _request(self, app_id: str) -> SlurmRequest | None:
        """Return the request of an app, possibly a cached one of an app that was deleted meanwhile."""
        if not self._is_app_id(app_id):
            return None
        with self._mutex:
            return self._cache.request(app_id)


create_scheduler = SlurmScheduler.create


def _transport(connection: SlurmConnection) -> Transport:
    if connection.ssh_host is None:
        return LocalTransport()
    from airflow_provider_launch.schedulers.slurm.ssh import SshTransport

    return SshTransport(connection)


def _result_in(file: FilePart | None) -> JsonValue:
    if file is None:
        return None
    if not file.is_plain:
        raise InvalidAppError("the result is not a plain file; write one JSON document to LAUNCH_RESULT_PATH")
    return parse_result(file.data, file.size)


def _damaged(seen: Observation) -> dict[str, str]:
    return {
        record.app_id: f"the record of app {record.app_id!r} is damaged: {record.damage}"
        for record in seen.records.values()
        if record.damage
    }


def _is_left_over(app: CachedApp, found: Standing) -> bool:
    return app.record.deleted and is_terminal(found.state)


def _is_idle(record: Record, since: float) -> bool:
    return max(record.alive, record.submitted) < since


def _is_dead(record: Record, since: float) -> bool:
    """Return whether a deleted app with a damaged record has ended."""
    return record.deleted and (bool(record.end) or _is_idle(record, since))
