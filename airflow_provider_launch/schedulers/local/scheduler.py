"""The local scheduler: runs apps as processes of this host, which outlive their launcher."""

from __future__ import annotations

import builtins
import copy
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE, BuiltinScheduler
from airflow_provider_launch.schedulers._kit.naming import file_slug
from airflow_provider_launch.schedulers._kit.refusals import deleted_meanwhile, refuse_other_spec
from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    LogLine,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.local import bare, layout, leases, log_files, safe_files, status
from airflow_provider_launch.schedulers.local.log_files import read_result
from airflow_provider_launch.schedulers.local.observed import Kept, KeptResponses, Observed
from airflow_provider_launch.schedulers.local.options import LocalConnection, LocalOpts
from airflow_provider_launch.schedulers.local.records import APP_ID, Records, StoredApp
from airflow_provider_launch.schedulers.local.request import LocalRequest, build_request, format_request, request_from
from airflow_provider_launch.schedulers.local.safe_files import ForeignFileError
from airflow_provider_launch.schedulers.responses import add_error_files
from airflow_provider_launch.settings import ENV_LAUNCH_HOME, ENV_TORCHX_HOME, getenv
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import UntrustedError, one_line
from airflow_provider_launch.workspace.dir_workspace import TmpDirWorkspaceMixin

log = logging.getLogger(__name__)
_SPAWN_TIMEOUT_S = 30.0
_STUCK_S = 300.0
"""Seconds until a supervisor that did not start in time is started again."""
_DAY_S = 86400.0
_RELEASE_S, _RELEASE_PAUSE_S = 2.0, 0.05
"""Seconds within which an ended app releases its ports and GPUs, and the pause between two checks."""
T = TypeVar("T")


class LocalScheduler(TmpDirWorkspaceMixin, BuiltinScheduler[LocalOpts, LocalConnection, LocalRequest]):
    """Runs each replica as a process of this host, under a supervisor process of the app.

    All state is in files below `root`, so all processes of this host with the same root see the same apps.
    """

    name: ClassVar[str] = "local"
    opts_type = LocalOpts
    connection_type = LocalConnection
    request_type: ClassVar[type[LocalRequest]] = LocalRequest
    app_id_pattern = APP_ID
    app_id_help: ClassVar[str] = "cannot name a directory; use up to 200 letters, digits, '.', '_' and '-'"
    needs_image: ClassVar[bool] = False
    refusal_cures: ClassVar[Mapping[Capability, str]] = dict.fromkeys(
        (Capability.BIND_MOUNT, Capability.VOLUME_MOUNT, Capability.DEVICE_MOUNT),
        "its replicas see the files of this host: leave them out, or use a scheduler with containers",
    )
    capabilities: ClassVar[frozenset[Capability]] = EVERYWHERE | {Capability.STREAMS, Capability.WORKSPACE}
    poll_interval_s: ClassVar[float] = 0.25
    limits_note: ClassVar[str] = status.LIMITS_NOT_ENFORCED
    """A note in the metadata of each response; empty: none."""
    is_journal_complete: ClassVar[bool] = True
    """Whether the journal has each change, because all apps run on this host."""

    def __init__(self, session_name: str, connection: LocalConnection | None = None) -> None:
        super().__init__(session_name, connection)
        self.root = _root(self.connection)
        self._records = Records(self.root)
        self._observed = Observed(self.root, self._records.is_supervised)
        self._kept = KeptResponses()
        # `describe` is called from the threads of several followers.
        self._mutex = threading.Lock()
        self._stuck: dict[str, tuple[float, str]] = {}
        """App id to the time when its supervisor may be started again, and the error message."""

    # ---- submit ----------------------------------------------------------------------------------------------

    def _app_slug(self, name: str) -> str:
        return file_slug(name)[:100] or "app"

    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        return build_request(app, opts, app_id, os.environ, self._gpus(), self._records.dir(app_id), backend=self.name)

    def _format_request(self, request: LocalRequest) -> str:
        return format_request(request)

    def prepare_workspaces(self, roles: Iterable[Role], cfg: Mapping[str, Any]) -> None:
        """Copy nothing yet, because `schedule` copies into the directory of the app."""

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        request = dryrun_info.request
        app_dir = self._records.dir(request.app_id)
        existing = self._records.app(request.app_id)
        if existing is None:
            self._refuse_taken_gpus(request)
            self._refuse_taken_ports(request)
            document = self._document(request, dryrun_info.app)
            try:
                layout.parse_record(json.dumps(document))
            except UntrustedError as error:
                raise InvalidAppError(
                    f"the app cannot be stored: {error}; make its arguments, variables and metadata smaller"
                ) from error
            self._records.commit(request.app_id, document, request.copy_workspaces)
            existing = self._records.app(request.app_id)
        if existing is None and os.path.isdir(app_dir):
            raise SchedulerRejectedError(f"{layout.APP} in {app_dir!r} is damaged; remove that directory")
        if existing is None:
            raise deleted_meanwhile(request.app_id)
        refuse_other_spec(self.backend, request.app_id, request.spec_hash, existing["request"]["spec_hash"])
        self._ensure(request.app_id)
        # Another process may sweep or delete at the same moment; the app is launched anyway.
        try:
            self._records.sweep(self.connection.keep_days * _DAY_S)
        except Exception as error:  # noqa: BLE001 - the files are of other apps
            log.warning("old apps in %r are not removed: %s", self.root, error)
        return request.app_id

    def _document(self, request: LocalRequest, app: AppDef | None) -> dict[str, Any]:
        return {
            "request": request.to_json(),
            "app": app_to_dict(app or AppDef(request.name)),
            "created": time.time(),
            "host": socket.gethostname(),
            "boot_id": layout.boot_id(),
            "gpus": self._gpus(),
        }

    def _refuse_taken_gpus(self, request: LocalRequest) -> None:
        wanted = sum(role.gpu * len(role.replicas) for role in request.roles)
        if not wanted:
            return
        free = self._settled(
            lambda: leases.free_gpus(self.root, self._gpus()), is_enough=lambda free: len(free) >= wanted
        )
        if wanted > len(free):
            raise SchedulerRejectedError(
                f"app {request.app_id!r} wants {wanted} GPUs, {len(free)} of {len(self._gpus())} are free on "
                f"{socket.gethostname()}; wait for the others"
            )

    def _refuse_taken_ports(self, request: LocalRequest) -> None:
        """Refuse a fixed port of another app: its processes would meet, or fail when that app ends."""
        fixed = {port for role in request.roles for port in role.ports.values() if port}
        owners = self._settled(
            lambda: {
                port: owner
                for port in fixed
                if (owner := leases.port_owner(self.root, port)) not in {"", request.app_id}
            },
            is_enough=lambda owners: not owners,
        )
        for port, owner in owners.items():
            raise SchedulerRejectedError(
                f"app {request.app_id!r} wants port {port}, which app {owner!r} has on {socket.gethostname()}; wait "
                f"for its end, or use port 0, for which a free one is chosen"
            )

    def _settled(self, read: Callable[[], T], is_enough: Callable[[T], bool]) -> T:
        """Return the state of leases; not enough only if that stays: an app releases them shortly after its end."""
        deadline = time.monotonic() + _RELEASE_S
        while True:
            with self._records.readable():
                found = read()
            if is_enough(found) or time.monotonic() > deadline:
                return found
            time.sleep(_RELEASE_PAUSE_S)

    def _gpus(self) -> builtins.list[str]:
        return self.connection.gpus if self.connection.gpus is not None else _driver_gpus()

    # ---- state -----------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        found, damaged = self._describe_many(ids)
        if damaged:
            raise AppUnavailableError(next(iter(damaged.values())), texts=damaged)
        return found

    def _describe_many(
        self, app_ids: Sequence[str], *, errors: bool = True
    ) -> tuple[dict[str, DescribeAppResponse | None], dict[str, str]]:
        """Return the response of each app, and the error messages of damaged apps.

        `errors`: also read the error files of failed apps, which can be many and large.
        """
        found: dict[str, DescribeAppResponse | None] = {}
        damaged: dict[str, str] = {}
        with self._mutex, self._records.readable():
            self._observed.forget_changed()
            for app_id in app_ids:
                try:
                    response = self._observed.get(app_id) or self._load(app_id, errors=errors)
                except AppUnavailableError as error:
                    damaged[app_id] = str(error)
                    continue
                except OSError as error:
                    if not self._records.is_of_one_app(error):
                        raise
                    damaged[app_id] = self._records.damage(app_id, error)
                    continue
                except SchedulerRejectedError as error:
                    if len(app_ids) == 1 or not isinstance(error.__cause__, ForeignFileError):
                        raise
                    damaged[app_id] = str(error)
                    continue
                except SchedulerUnavailableError:
                    raise
                except Exception as error:  # noqa: BLE001 - its program may have replaced what this launcher wrote
                    damaged[app_id] = self._records.damage(app_id, f"{type(error).__name__}: {str(error)[:200]}")
                    continue
                # A copy, so that a caller cannot change the cached response.
                found[app_id] = copy.copy(response) if response else None
        return found, damaged

    def _load(self, app_id: str, *, errors: bool) -> DescribeAppResponse | None:
        """Read the files of one app; start a new supervisor if the last one was killed."""
        app = self._records.app(app_id)
        if app is None:
            return None
        app_def = self._records.app_def(app_id, app)
        if not self._records.has_ended(app_id):
            response = self._attend(app_id, app, app_def)
            if response is not None:
                return response
        kept = self._built(app_id, app, app_def)
        if kept is None:
            return None  # deleted meanwhile; a missing root would be an error
        if kept.response.state is AppState.FAILED:
            if errors and not kept.has_errors and not self._add_error_files(app_id, kept):
                return None  # as above
        elif not is_terminal(kept.response.state) and self.is_journal_complete:
            self._observed.keep(app_id, kept.response)
        return kept.response

    def _attend(self, app_id: str, app: StoredApp, app_def: AppDef) -> DescribeAppResponse | None:
        """Make sure that an app that has not ended has a supervisor, or write its end.

        Return its response if its files do not have it.
        """
        here = socket.gethostname()
        if app["host"] != here:
            response = status.response_from(app_id, app, self._records.state(app_id), app_def)
            response.msg = status.foreign_host(app, here)
            return response
        if app["boot_id"] != layout.boot_id():
            document = status.rebooted(self._records.state(app_id), app, time.time())
            try:
                self._records.write_end(app_id, document)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and self._records.app(app_id) is None:
                    return None  # deleted meanwhile
                # Its program may have replaced the id of the boot; a full disk then concerned all other apps.
                raise AppUnavailableError(
                    f"host {here} was rebooted while app {app_id!r} ran, but its end cannot be written: {error}"
                ) from error
        else:
            self._ensure(app_id)
        return None

    def _built(self, app_id: str, app: StoredApp, app_def: AppDef) -> Kept | None:
        """Return the response, which is built once for each version of the files; None if the app does not exist."""
        # Before the read, so that a later version is read again.
        files = app.version, self._records.state_version(app_id)
        kept = self._kept.get(app_id, files)
        if kept is None:
            try:
                document = self._records.state(app_id)
                if document is None and self._records.app(app_id) is None:
                    return None
                response = status.response_from(app_id, app, document, app_def, limits=self.limits_note)
            except (AppUnavailableError, ValueError, LookupError, TypeError, AttributeError) as error:
                # Its program has replaced what the supervisor wrote.
                is_known = isinstance(error, AppUnavailableError)
                text = f"{type(error).__name__}: {str(error)[:200]}"
                damage = str(error) if is_known else self._records.damage(app_id, text)
                kept = Kept(files, DescribeAppResponse(app_id), damage)
            else:
                response.ui_url = Path(self._records.dir(app_id), "run").as_uri()
                kept = Kept(files, response)
            # A state that cannot be read now may be read later in the same version.
            if kept.damage or document is not None:
                self._kept.keep(app_id, kept)
        if kept.damage:
            raise AppUnavailableError(kept.damage)
        return kept

    def _add_error_files(self, app_id: str, kept: Kept) -> bool:
        """Add what the replicas of a failed app wrote; return False if the app no longer exists."""
        state = self._records.state(app_id) or {}
        app_dir, app_attempt = self._records.dir(app_id), state.get("app_attempt", 0)
        is_complete = True

        def read(index: int, replica: ReplicaStatus) -> str | None:
            nonlocal is_complete
            at = app_attempt, (replica.num_restarts or 0) - app_attempt
            try:
                return log_files.read_reply(app_dir, layout.role_dir(index, replica.role), replica.id, at)
            except OSError:
                is_complete = False  # such as too many open files: the next poll reads them again
                return None

        has_all = add_error_files(kept.response, read)
        if not has_all and self._records.app(app_id) is None:
            return False
        kept.has_errors = is_complete
        self._kept.keep(app_id, kept)
        return True

    def describe_native(self, app_id: str) -> AppDryRunInfo[LocalRequest] | None:
        app = self._records.app(app_id)
        if app is None:
            return None
        try:
            request = request_from(copy.deepcopy(app["request"]), self.request_type)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"{layout.APP}: {type(error).__name__}: {one_line(str(error), 200)}"
            raise AppUnavailableError(self._records.damage(app_id, text)) from error
        return AppDryRunInfo(request, self._format_request)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one root
        rows = []
        found, damaged = self._describe_many(self._records.ids(), errors=False)
        for app_id, response in found.items():
            try:
                app = self._records.app(app_id)
                if response is not None and app is not None:
                    request = app["request"]
                    owner = owner_of(request["metadata"])
                    created = app.get("created")
                    rows.append(
                        ListAppResponse(app_id, response.state, name=request["name"], owner=owner, created_at=created)
                    )
            except (AppUnavailableError, SchedulerRejectedError) as error:
                if isinstance(error, SchedulerRejectedError) and not isinstance(error.__cause__, ForeignFileError):
                    raise
                damaged[app_id] = str(error)  # its program has replaced the record meanwhile
        for app_id, text in damaged.items():
            log.warning("app %s is listed as UNKNOWN: %s", app_id, text)
            rows.append(ListAppResponse(app_id, AppState.UNKNOWN))
        return sorted(rows, key=lambda row: row.app_id)

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        app = self._records.app(app_id)
        if app is None:
            raise UnknownAppException(app_id)
        first = self._records.app_def(app_id, app).roles[0]
        with self._records.readable():
            state = self._records.state(app_id) or {"app_attempt": 0, "replicas": []}
        attempts = {one["id"]: one["attempt"] for one in state["replicas"] if one["role"] == first.name}
        role_dir = layout.role_dir(0, first.name)
        for k in range(first.num_replicas):
            at = state["app_attempt"], attempts.get(k, 0)
            with self._records.readable():
                found = read_result(self._records.dir(app_id), role_dir, k, at)
            # Checked after the read, because a deleted file looks like an app without a result.
            if found is None and self._records.app(app_id) is None:
                raise UnknownAppException(app_id)
            yield found

    # ---- end -------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._mark(app_id, layout.CANCEL)

    def delete(self, app_id: str) -> None:
        try:
            super().delete(app_id)
        except AppUnavailableError:
            self._records.delete_damaged(app_id)
        except SchedulerRejectedError as error:
            # Also if other users may write its files, because none of them is read.
            if not isinstance(error.__cause__, ForeignFileError):
                raise
            self._records.delete_damaged(app_id)
        else:
            if self._is_app_id(app_id) and self._records.is_left(app_id):
                self._records.delete_damaged(app_id)

    def _delete_existing(self, app_id: str) -> None:
        with self._records.readable():
            has_ended = self._records.has_ended(app_id)
            if not has_ended:
                # The supervisor cancels the app and removes its directory after the end.
                self._mark(app_id, layout.DELETE)
            # Also if it has just ended, because then the supervisor may not see the mark.
            if has_ended or self._records.has_ended(app_id):
                self._records.remove(app_id)

    def _mark(self, app_id: str, name: str) -> None:
        app = self._records.app(app_id)
        with self._records.readable():
            if app is None or self._records.has_ended(app_id):
                return
        here = socket.gethostname()
        if app["host"] != here:
            raise SchedulerRejectedError(f"cannot end app {app_id!r}: {status.foreign_host(app, here)}")
        if self._records.mark(app_id, name):
            self._ensure(app_id)

    # ---- logs ------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        app_dir = self._records.dir(app_id)
        role_dir = self._role_dir(app_id, role_name, k)
        with self._records.readable():
            over = self._records.has_ended(app_id)
            chunk = log_files.read_chunk(app_dir, role_dir, k, cursor, streams, over=over)
        # Checked after the read, because deleted files look like a log without lines.
        if not os.path.isdir(app_dir) and self._records.app(app_id) is None:
            raise UnknownAppException(app_id)
        return chunk

    def unfinished_line(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogLine | None:
        role_dir = self._role_dir(app_id, role_name, k)
        with self._records.readable():
            return log_files.read_unfinished(self._records.dir(app_id), role_dir, k, cursor, streams)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        role_dir = self._role_dir(app_id, role_name, k)
        with self._records.readable():
            return log_files.read_ending(self._records.dir(app_id), role_dir, k, attempt)

    def _role_dir(self, app_id: str, role_name: str, k: int) -> str:
        """Return the directory name of a role that has this replica."""
        found = self._observed.roles(app_id)
        if found is None:
            app = self._records.app(app_id)
            if app is None:
                raise UnknownAppException(app_id)
            found = self._records.app_def(app_id, app).roles
            self._observed.keep_roles(app_id, found)
        return layout.role_dir(found.index(check_replica(found, role_name, k)), role_name)

    # ---- supervisor ------------------------------------------------------------------------------------------

    def _ensure(self, app_id: str) -> None:
        """Start a supervisor if the app has not ended and has no live one."""
        app_dir = self._records.dir(app_id)
        with self._records.readable():
            if self._records.is_supervised(app_id) or self._records.has_ended(app_id) or not os.path.isdir(app_dir):
                return
        until, text = self._stuck.get(app_id, (0.0, ""))
        if time.monotonic() < until:
            raise AppUnavailableError(text)
        self._stuck.pop(app_id, None)
        # The supervisor forks into the background at once, so this call is short.
        command = [sys.executable, "-I", "-S", "-X", "utf8", bare.__file__, app_dir]
        try:
            with open(f"{app_dir}/{layout.SUPERVISOR_LOG}", "ab", opener=safe_files.regular_fd) as log:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=_own_environment(),
                    start_new_session=True,
                    timeout=_SPAWN_TIMEOUT_S,
                    check=True,
                )
        except FileNotFoundError:
            return  # the app was deleted meanwhile
        except (OSError, subprocess.SubprocessError) as error:
            # Its program can remove permissions of its files, so that its supervisor fails or hangs. A host without
            # space or processes left is a different error.
            is_of_host = isinstance(error, OSError) and not (
                isinstance(error, safe_files.NotRegularError) or self._records.is_of_one_app(error)
            )
            if is_of_host:
                raise SchedulerUnavailableError(f"cannot start the supervisor of {app_dir!r}: {error}") from error
            text = f"cannot start the supervisor of {app_dir!r}, whose files may be damaged: {error}; delete the app"
            if isinstance(error, subprocess.TimeoutExpired):
                # The timeout delayed all followers of this root, so do not try again soon.
                self._stuck[app_id] = time.monotonic() + _STUCK_S, text
            raise AppUnavailableError(text) from error


create_scheduler = LocalScheduler.create


def _root(connection: LocalConnection) -> str:
    if connection.root:
        return os.path.abspath(os.path.expanduser(connection.root))
    home = getenv(ENV_LAUNCH_HOME, ENV_TORCHX_HOME)
    return os.path.abspath(os.path.join(os.path.expanduser(home or "~/.torchx"), "local"))


def _driver_gpus() -> builtins.list[str]:
    """Return the UUIDs of the GPUs that NVIDIA's driver lists, in bus order."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"GPU UUID:\s*(\S+)", path.read_text(encoding="utf-8", errors="replace"))
        if match:
            found.append(match.group(1))
    return found


def _own_environment() -> dict[str, str]:
    # Only the variables that Python needs to start, because others may contain secrets.
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH") if name in os.environ}
