"""The interface that every backend implements.

A scheduler is synchronous, and stores the state of its apps in the engine, so any process that has an app id can see,
follow and cancel the app. It may be called from several threads at once.
"""

from __future__ import annotations

import abc
import builtins
import inspect
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, Generic, TypeVar

from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.schedulers.log_streams import LogStream, lines_in
from airflow_provider_launch.schedulers.logs import (
    JsonValue,
    LogChunk,
    LogLine,
    Stream,
    filter_regex,
    split_lines,
    split_lines_iterator,
)
from airflow_provider_launch.schedulers.responses import DescribeAppResponse, ListAppResponse, describe_each
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.specs import cases
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidRunConfigException,
    UnknownAppException,
    UnsupportedError,
    is_outage,
)
from airflow_provider_launch.specs.macros import address_macros
from airflow_provider_launch.specs.resources import NULL_RESOURCE
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import RoleStatus
from airflow_provider_launch.specs.torch_env import with_torch_env
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.workspace.api import WorkspaceMixin

# Includes the names of specs that plug-ins need.
__all__ = [
    "DAYS_IN_2_WEEKS",
    "NONE",
    "AppDef",
    "AppDryRunInfo",
    "AppState",
    "Capability",
    "DescribeAppResponse",
    "JsonValue",
    "ListAppResponse",
    "LogChunk",
    "LogLine",
    "Role",
    "RoleStatus",
    "Scheduler",
    "Stream",
    "StructuredOpts",
    "Workspace",
    "WorkspaceMixin",
    "cases",
    "filter_regex",
    "spec_hash",
    "split_lines",
    "split_lines_iterator",
]

log = logging.getLogger(__name__)

DAYS_IN_2_WEEKS = 14
_TAIL_PAUSE_S = 0.2

_NEVER_IGNORED: tuple[tuple[Capability, str, Callable[[Role], object], str], ...] = (
    (
        Capability.ELASTIC,
        "min_replicas below num_replicas",
        lambda role: role.min_replicas not in {None, role.num_replicas},
        "use a fixed number: leave min_replicas out, or write j='2x4' instead of j='1:2x4'",
    ),
    (
        Capability.SERVICE_ROLES,
        "service",
        lambda role: role.service,
        "leave it out and let the program of the role end by itself, or choose another scheduler",
    ),
    (
        Capability.DISRUPTION_RETRY,
        "max_disruptions",
        lambda role: role.max_disruptions,
        "it cannot distinguish a disruption from a failure; use max_retries, which both use up",
    ),
    (
        Capability.ADDRESSES,
        "torch_env, macros.rank0_host or macros.port",
        address_macros,
        "let a shell read the variables of the replica instead, or choose another scheduler",
    ),
    (
        Capability.IMAGE_ENTRYPOINT,
        "entrypoint=None",
        lambda role: role.entrypoint is None,
        "name the program in entrypoint, or choose a scheduler that runs images",
    ),
)

T = TypeVar("T")


class Scheduler(abc.ABC, Generic[T]):
    """A backend: the interface to one scheduler, such as a Docker engine, a cluster or a queue.

    `T` is the type of its resolved cfg. A backend implements `schedule`, `_submit_dryrun`, `list`, `_cancel_existing`,
    one of `describe` and `describe_many`, and one of `read_logs` and `log_iter`: each of a pair has a default that
    calls the other.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """Optional features of this scheduler. `_submit_dryrun` must refuse all others, with `UnsupportedError`; no other
    method checks this."""

    poll_interval_s: ClassVar[float] = 10.0
    """Default seconds between two polls of an app."""

    needs_resource: ClassVar[bool] = True
    """Whether a role without `resource` is refused, because the engine must know what to allocate."""

    max_time_limit_s: float | None = None
    """Maximum and default `time_limit_s` of a launch. None: launches need no limit."""

    def __init__(self, backend: str, session_name: str, **kwargs: Any) -> None:
        self.backend = backend
        self.session_name = session_name
        # A `WorkspaceMixin` may come before or after this class.
        super().__init__(**kwargs)

    # ---- submit ----------------------------------------------------------------------------------------------

    def submit(self, app: AppDef, cfg: T | Mapping[str, Any], workspace: str | Workspace | None = None) -> str:
        """Launch `app` and return its id.

        Changes the caller's app: sets `workspace` and the built `image` in its first role. No other method changes it.

        Args:
            app: the app to launch.
            cfg: option name to value.
            workspace: directories to mirror into the first role; text is parsed by `Workspace.from_str`.

        Raises:
            ValueError: this scheduler does not support workspaces.
            Exception: the same as `submit_dryrun` and `schedule`.
        """
        if workspace:
            if not isinstance(self, WorkspaceMixin):
                raise ValueError(f"`{self.backend}` does not support workspaces; leave `workspace` out")
            app.roles[0].workspace = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
            given: Any = cfg
            self.prepare_workspaces(app.roles, self.run_opts().resolve(given))
        return self.schedule(self.submit_dryrun(app, cfg))

    def submit_dryrun(
        self, app: AppDef, cfg: T | Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[Any]:
        """Return the request that `schedule` would send, without any I/O.

        Args:
            app: the app to launch; not changed.
            cfg: option name to value; resolved against `run_opts()`.
            app_id: the id of the app. None: a new unique id.

        Raises:
            InvalidAppError: app or cfg is wrong, or needs a feature that the scheduler lacks (`UnsupportedError`).
        """
        # A runner has already resolved the options and decided whether to refuse unknown ones; a direct caller has
        # not. Resolving twice changes nothing and takes 0.1 ms.
        resolved: Any = self._within_limit(cfg)
        given, app = app, with_torch_env(app)
        self._refuse_missing(app)
        if "app_id" in inspect.signature(self._submit_dryrun).parameters:
            info = self._submit_dryrun(app, resolved, app_id=app_id)
        else:
            # Older plug-ins have no `app_id` parameter and choose their own id.
            info = self._submit_dryrun(app, resolved)
        for role in given.roles:
            info = role.pre_proc(self.backend, info)
        info._app = given  # noqa: SLF001 - names of the plug-in interface
        info._cfg = resolved  # noqa: SLF001 - the same
        return info

    def _refuse_missing(self, app: AppDef) -> None:
        """Refuse features that plug-ins could ignore without an error: the training would be another one.

        Raises:
            UnsupportedError: names role, field and fix.
        """
        for role in app.roles:
            for capability, what, is_used, cure in _NEVER_IGNORED:
                if capability not in self.capabilities and is_used(role):
                    raise UnsupportedError(f"role {role.name!r}: {what} is not offered by {self.backend!r}; {cure}")

    def _within_limit(self, cfg: T | Mapping[str, Any]) -> Any:
        """Return the options of a launch, with the time limit of the connection if they have none."""
        options = self.run_opts()
        given: Any = cfg  # T is a mapping by contract
        resolved = options.resolve(given)
        limit_s = self.max_time_limit_s
        if limit_s is None:
            return resolved
        wanted: Any = resolved["time_limit_s"]
        if wanted is None:
            return options.resolve({**given, "time_limit_s": limit_s})
        # NaN is above no number, and 0 means no limit to many queues.
        if not 0 < wanted <= limit_s:
            text = "is above" if wanted > limit_s else "is not a limit of up to"
            raise InvalidRunConfigException(
                f"time_limit_s={wanted:g} {text} {limit_s:g}, the max_time_limit_s of connection "
                f"{self.session_name!r}; change it, or leave it out to get the maximum",
                "time_limit_s",
                given,
            )
        return resolved

    @abc.abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send the request and return the app id.

        With `Capability.ADOPT` a repeated call with the same id and spec hash adopts the running app.

        Raises:
            AppConflictError: the id belongs to another app.
            SchedulerUnavailableError: not reached; the same call may succeed later.
            SchedulerRejectedError: reached, and refused.
        """

    @abc.abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: T, *, app_id: str | None = None) -> AppDryRunInfo[Any]: ...

    # ---- options and checks ----------------------------------------------------------------------------------

    def run_opts(self) -> runopts:
        """Return the schema of this scheduler's options."""
        options = self._run_opts()
        if not isinstance(self, WorkspaceMixin):
            return options
        own = {name for name, _ in options}
        for name, option in self.workspace_opts():
            if name not in own:
                options._opts[name] = option  # noqa: SLF001 - a name of the plug-in interface
        return options

    def _run_opts(self) -> runopts:
        return runopts()

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: T) -> None:
        """Check before workspaces are built."""

    def _validate(self, app: AppDef, scheduler: str, cfg: T) -> None:  # noqa: ARG002 - a hook
        """Check before the request is built."""
        for role in app.roles:
            if self.needs_resource and role.resource == NULL_RESOURCE:
                raise UnsupportedError(
                    f"role {role.name!r} has no resource, and {scheduler!r} must know what to allocate; "
                    f"give it `resource=Resource(cpu=..., gpu=..., memMB=...)`"
                )

    # ---- state -----------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the status of the app; None if the app does not exist.

        Raises:
            SchedulerUnavailableError: not reached.
        """
        return self.describe_many([app_id])[app_id]

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Return `describe` of each id; built-in schedulers use one request for all of them."""
        if type(self).describe is Scheduler.describe:
            raise TypeError(f"{type(self).__name__} must override `describe_many` or `describe`")
        return {app_id: self.describe(app_id) for app_id in app_ids}

    def describe_native(self, app_id: str) -> AppDryRunInfo[Any] | None:  # noqa: ARG002 - a hook
        """Return the request as the engine stores it; None if it stores none."""
        return None

    @abc.abstractmethod
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return the apps of this launcher, each once."""

    def exists(self, app_id: str) -> bool:
        """Return whether the app exists."""
        return self.describe(app_id) is not None

    def result(self, app_id: str) -> JsonValue:
        """Return the JSON document that the app wrote to `LAUNCH_RESULT_PATH`; None if it wrote none.

        An app that has failed may have a result, too.
        Only the first role can return a result. Of its replicas, the lowest-numbered one whose last attempt wrote a
        document counts, because torchrun may put its rank 0 on any replica.

        Raises:
            LaunchError: the document is larger than 4 KB, or the limit of an option, or is not valid JSON.
            UnknownAppException: the app does not exist.
        """
        if not has_own(self, "iter_results"):
            return None
        return next((found for found in self.iter_results(app_id) if found is not None), None)

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:  # noqa: ARG002 - a hook
        """Yield the document of each replica of the first role, in order; None for a replica that wrote none.

        Read lazily, because `result` needs only the first one.

        Raises:
            UnsupportedError: this scheduler returns only one document per app.
            Exception: the same as `result`.
        """
        raise UnsupportedError(
            f"{self.backend!r} returns only one result per app; use results='first', or call `result`"
        )

    # ---- end -------------------------------------------------------------------------------------------------

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        """Return True as soon as a replica has ended, False at the timeout.

        Optional: lets a follower poll at once instead of waiting for the next interval. It may return False before the
        timeout, then the follower calls it again. It may block for some seconds after `close`.

        Raises:
            NotImplementedError: this scheduler cannot report an end; poll its state.
            UnknownAppException: the app does not exist.
            SchedulerUnavailableError: not reached.
        """
        raise NotImplementedError(f"{self.backend!r} does not report when an app ends; poll its state")

    def cancel(self, app_id: str) -> None:
        """Ask the app to end and return at once; its record stays. No-op for an unknown or ended app."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def delete(self, app_id: str) -> None:
        """Remove the app and its record; a live app is cancelled first. No-op for an unknown app."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def sweep(
        self, older_than_s: float, *, live: bool = False, owner: Mapping[str, str] | None = None
    ) -> builtins.list[str]:
        """Delete the apps that ended more than `older_than_s` seconds ago, and return their ids.

        For apps that no task deletes: those of plain Python programs, of killed tasks, and of a removed Airflow.

        Args:
            older_than_s: minimum seconds since the end of the app.
            live: also cancel and delete apps that were launched before that time and still run.
            owner: only apps whose `owner` has these fields; see `ListAppResponse`.

        Raises:
            ValueError: the time is negative.
            SchedulerUnavailableError: the scheduler cannot be reached.
            LaunchError: no app could be deleted, and this is the reason for one of them.
        """
        if not older_than_s >= 0:
            raise ValueError(f"older_than_s={older_than_s} must be 0 or more seconds")
        limit = time.time() - older_than_s
        wanted = (owner or {}).items()
        created = {
            row.app_id: row.created_at
            for row in self.list()
            if wanted <= row.owner.items() and row.created_at is not None and row.created_at <= limit
        }
        deleted: builtins.list[str] = []
        failures: builtins.list[Exception] = []
        for app_id, response in describe_each(self.describe_many, created).items():
            if is_outage(response):
                raise response
            if isinstance(response, Exception):
                log.warning(
                    "sweep skips app %s, because it cannot be read: %s; delete it with `Runner.delete`",
                    app_id,
                    response,
                )
                failures.append(response)
            if response is None or isinstance(response, Exception):
                continue
            try:
                has_ended = is_terminal(response.state)
                ended_at = self._ended_at(response, created[app_id]) if has_ended else None
                if (ended_at is not None and ended_at <= limit) or (live and not has_ended):
                    self.delete(app_id)
                    deleted.append(app_id)
            except Exception as error:
                if is_outage(error):
                    raise
                log.warning("sweep skips app %s, because it cannot be deleted now: %s", app_id, error)
                failures.append(error)
        # If no app can be deleted, the reason is not one of them.
        if not deleted and (refused := [each for each in failures if not isinstance(each, AppUnavailableError)]):
            raise refused[0]
        return deleted

    def _ended_at(self, response: DescribeAppResponse, created_at: float) -> float | None:
        """Return when the last replica of an app ended, in epoch seconds.

        For an app that never started this is its creation time. None if a replica has ended at an unknown time.
        """
        replicas = [replica for role in response.roles_statuses for replica in role.replicas]
        if any(one.end_time is None and one.state in {AppState.SUCCEEDED, AppState.FAILED} for one in replicas):
            return None
        return max((one.end_time for one in replicas if one.end_time is not None), default=created_at)

    @abc.abstractmethod
    def _cancel_existing(self, app_id: str) -> None: ...

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)

    def close(self) -> None:
        """Release the resources of this object; may be repeated, never raises."""

    # ---- logs ------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        """Return the lines of one replica after `cursor`, and the cursor which follows them.

        Does not wait: no lines means "nothing new yet". Bounded in size. Lines keep their newline; text after the
        last newline is returned once the replica has ended. `k` counts from 0 in its role. The cursor is opaque
        JSON; None starts at the first line of the first attempt. To know that a log is complete, first see a terminal
        state of the replica, then read until no lines are returned.

        Raises:
            UnknownAppException: the app does not exist, or the scheduler has forgotten it.
            ValueError: the app has no such role or replica, or the stream is not kept.
            SchedulerUnavailableError: not reached; the same call may succeed later.
        """
        if type(self).log_iter is Scheduler.log_iter:
            raise NotImplementedError(_no_logs(self.backend))
        # A plug-in with only `log_iter`: each call starts from the first line, so the cursor can only count lines.
        seen = cursor if isinstance(cursor, int) else 0
        response = self.describe(app_id)
        if response is None:
            raise UnknownAppException(app_id)
        lines: list[LogLine] = []
        kept = streams or Stream.COMBINED
        for number, text in enumerate(self.log_iter(app_id, role_name, k, should_tail=False, streams=streams)):
            if number < seen:
                continue
            # The last line may still grow; it is returned only after the end.
            if not text.endswith("\n") and not is_terminal(response.state):
                break
            lines.append(LogLine(text, kept))
            if len(lines) >= _PLUGIN_CHUNK_LINES:
                break
        return LogChunk(lines, seen + len(lines))

    def stream_log(
        self,
        app_id: str,  # noqa: ARG002 - a hook
        role_name: str,  # noqa: ARG002 - the same
        k: int,  # noqa: ARG002 - the same
        cursor: JsonValue = None,  # noqa: ARG002 - the same
        *,
        streams: Stream | None = None,  # noqa: ARG002 - the same
    ) -> LogStream | None:
        """Return a stream that continues the log of a running replica from a cursor of `read_logs`.

        Optional. A follower then needs no `read_logs` while the replica runs, and the end of the stream reports the
        end of the replica. None if there is no stream for this replica now; then use `read_logs`.

        Raises:
            Exception: the same as `read_logs`.
        """
        return None

    def unfinished_line(
        self,
        app_id: str,  # noqa: ARG002 - a hook
        role_name: str,  # noqa: ARG002 - the same
        k: int,  # noqa: ARG002 - the same
        cursor: JsonValue = None,  # noqa: ARG002 - the same
        *,
        streams: Stream | None = None,  # noqa: ARG002 - the same
    ) -> LogLine | None:
        """Return the incomplete last line of a running replica. `cursor` must be behind the last complete line.

        Optional. None if the log ends with a newline, or if complete lines follow the cursor: read them first. Only the
        end of a long line is returned. `read_logs` returns the whole line once it is complete.

        Raises:
            Exception: the same as `read_logs`.
        """
        return None

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:  # noqa: ARG002 - a hook
        """Return a short reason why an earlier attempt of a replica ended, such as `exit code 3`; empty if unknown.

        Optional. Called only for attempts that were retried. `attempt` is the number in their log lines.

        Raises:
            Exception: the same as `read_logs`.
        """
        return ""

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of one replica, all attempts in order.

        Args:
            app_id: the app.
            role_name: its role.
            k: the replica, from 0 in its role.
            regex: keep only the lines that contain a match.
            since: keep only lines from this time on; naive means UTC.
            until: keep only lines before this time; naive means UTC.
            should_tail: follow until the app has ended; otherwise stop at the current end.
            streams: STDOUT, STDERR or COMBINED; None: all that the backend has.
        """
        if type(self).read_logs is Scheduler.read_logs:
            raise NotImplementedError(_no_logs(self.backend))
        pattern = re.compile(regex) if regex else None
        bounds = (_epoch(since), _epoch(until))
        if (since or until) and Capability.TIME_FILTER not in self.capabilities:
            warnings.warn(
                f"scheduler {self.backend!r} does not store times of log lines, so `since` and `until` are ignored; "
                f"filter the lines yourself",
                stacklevel=2,
            )
            bounds = (None, None)
        # The first read happens during the call, so that an unknown app is reported here and not at the first line.
        first = self.read_logs(app_id, role_name, k, None, streams=streams)
        lines = self._lines(app_id, role_name, k, first, should_tail=should_tail, streams=streams)
        texts = (line.text for line in lines if _within(line, *bounds))
        return texts if pattern is None else filter_regex(pattern, texts)

    def _lines(
        self, app_id: str, role_name: str, k: int, chunk: LogChunk, *, should_tail: bool, streams: Stream | None
    ) -> Iterator[LogLine]:
        ended = False
        cursor = chunk.cursor
        pause_s = 0.0
        while True:
            yield from chunk.lines
            if chunk.lines:
                pause_s = 0.0
            else:
                if ended or not should_tail:
                    return
                # Status first, then the log: the log is complete if a read that starts after the end is empty.
                response = self.describe(app_id)
                ended = response is None or is_terminal(response.state)
                if not ended:
                    # No polls while a stream is open; it ends with its program.
                    for lines, after in self._streamed(app_id, role_name, k, cursor, streams):
                        yield from lines
                        cursor, pause_s = after, 0.0
                    pause_s = min(max(_TAIL_PAUSE_S, 1.5 * pause_s), self.poll_interval_s)
                    time.sleep(pause_s)
            chunk = self.read_logs(app_id, role_name, k, cursor, streams=streams)
            cursor = chunk.cursor

    def _streamed(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue, streams: Stream | None
    ) -> Iterator[tuple[Sequence[LogLine], JsonValue]]:
        """Yield the lines of a stream and the cursor after them until it ends; nothing if there is no stream now."""
        try:
            stream = self.stream_log(app_id, role_name, k, cursor, streams=streams)
        except Exception:  # noqa: BLE001 - the read that follows raises the error
            return
        if stream is not None:
            for lines in lines_in(stream):
                yield lines, stream.cursor


_PLUGIN_CHUNK_LINES = 1000


def _no_logs(backend: str) -> str:
    return f"scheduler {backend!r} keeps no logs; implement `read_logs` in its plug-in"


def check_replica(roles: Sequence[Role], role_name: str, k: int) -> Role:
    """Return the role, or raise a `ValueError` that lists the valid roles and replicas."""
    for role in roles:
        if role.name == role_name:
            if 0 <= k < role.num_replicas:
                return role
            raise ValueError(f"role {role_name!r} has no replica {k}; it has 0 to {role.num_replicas - 1}")
    names = ", ".join(role.name for role in roles) or "none"
    raise ValueError(f"the app has no role {role_name!r}; its roles are {names}")


def has_own(scheduler: Scheduler[Any], method: str) -> bool:
    """Return whether the scheduler overrides this method of `Scheduler`."""
    default = getattr(Scheduler, method)
    return getattr(type(scheduler), method, default) is not default


def _epoch(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _within(line: LogLine, since: float | None, until: float | None) -> bool:
    if line.time is None:
        return True
    return (since is None or line.time >= since) and (until is None or line.time < until)
