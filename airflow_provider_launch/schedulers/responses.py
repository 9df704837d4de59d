"""The responses of a scheduler about its apps, and functions to build them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs.errors import AppUnavailableError, is_outage
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import AppStatus, ReplicaStatus, RoleStatus
from airflow_provider_launch.util.untrusted import clean_text, one_line

NOT_SET = "<NOT_SET>"
_ERROR_CHARS = 64 * 1024
"""Maximum characters of the error that one replica wrote."""
_ERRORS_CHARS = 2 * 1024 * 1024
"""Maximum characters of the errors of all replicas of an app: a task shows the one of a single replica."""

_MOST_STOPPED = 32
"""Maximum stopped replicas whose errors are read: each takes a request on some engines."""

PHASE_STATES: Mapping[Phase, AppState] = {
    Phase.WAITING: AppState.PENDING,  # accepted, not started yet
    Phase.RUNNING: AppState.RUNNING,
    Phase.SUCCEEDED: AppState.SUCCEEDED,
    Phase.FAILED: AppState.FAILED,
    Phase.STOPPED: AppState.CANCELLED,  # stopped by the launcher, so its exit code does not matter
}
"""The state of a replica by the phase of its latest attempt."""


@dataclass(slots=True)
class DescribeAppResponse:
    """The full status of one app, with the latest attempt of each replica."""

    app_id: str = NOT_SET
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    is_stuck: bool = False
    """Whether the app waits for something that needs action, such as an image that does not exist; `msg` names it."""
    act_in_s: float | None = None
    """Seconds until an observer must act, such as to end the app at its time limit; None if nothing is due."""
    early_logs: frozenset[tuple[str, int]] = frozenset()
    """Role and number of waiting replicas that already have a log."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Further web pages, name to URL, such as the queue or the log; the task log shows them in addition to `ui_url`."""

    def to_status(self) -> AppStatus:
        """Return the part that callers of the launcher see."""
        return AppStatus(
            state=self.state,
            num_restarts=self.num_restarts,
            msg=self.msg,
            structured_error_msg=self.structured_error_msg,
            ui_url=self.ui_url,
            roles=self.roles_statuses,
            metadata=dict(self.metadata),
        )

    def running_of(self) -> tuple[int, int]:
        """Return how many replicas run, and how many the app has."""
        states = [replica.state for role in self.roles_statuses for replica in role.replicas]
        total = max(len(states), sum(role.num_replicas for role in self.roles))
        return sum(state == AppState.RUNNING for state in states), total


@dataclass
class ListAppResponse:
    """One row of a list of apps."""

    app_id: str
    state: AppState
    app_handle: str = NOT_SET
    name: str = ""
    owner: Mapping[str, str] = field(default_factory=dict)
    """`dag_id`, `run_id`, `task_id` and `map_index` of the task that launched it; empty if no task did."""
    created_at: float | None = None
    """Epoch seconds by the clock of the engine, None if unknown."""

    def __hash__(self) -> int:
        return hash((self.app_id, self.app_handle, self.state))


Answer = DescribeAppResponse | None | Exception
"""The result of polling an app: its description, None if it does not exist, or the error of the request."""


def describe_each(
    describe_many: Callable[[list[str]], Mapping[str, DescribeAppResponse | None]],
    app_ids: Iterable[str],
    caught: type[Exception] = Exception,
) -> dict[str, Answer]:
    """Describe all apps with one call, so that one unreadable app does not hide the others.

    After an error that is not an outage, describe again without the apps that the error names; if it names none,
    describe each half separately.

    Args:
        describe_many: the call; its error may have any cause, and may not name its app.
        app_ids: the apps.
        caught: errors that are the answers of their apps; others are raised.
    """
    ids = list(app_ids)
    answers: dict[str, Answer] = {}
    waiting = [ids]
    # Without recursion, because a plug-in may name each of a thousand damaged apps with an error of its own.
    while waiting:
        part = waiting.pop()
        if not part:
            continue
        try:
            found = describe_many(part)
            answers |= {app_id: found.get(app_id) for app_id in part}
        except caught as error:
            if is_outage(error) or len(part) == 1:
                answers |= dict.fromkeys(part, error)
                continue
            texts = error.texts if isinstance(error, AppUnavailableError) else {}
            named = {app_id: AppUnavailableError(texts[app_id]) for app_id in part if app_id in texts}
            answers |= named
            rest = [app_id for app_id in part if app_id not in named]
            half = 0 if named else len(rest) // 2
            waiting += [rest[half:], rest[:half]]
    return {app_id: answers[app_id] for app_id in ids}


def app_response(
    app_id: str,
    state: AppState,
    *,
    msg: str,
    restarts: int,
    replicas: Mapping[str, Iterable[ReplicaStatus]],
    app: AppDef | None,
) -> DescribeAppResponse:
    """Return the response for one app; messages, host names and reasons become single lines of limited length.

    `restarts` are earlier attempts of the app, plus restarts of its replicas in the current attempt. Without `app`
    roles and metadata stay empty.
    """
    roles_statuses = [RoleStatus(role, list(statuses)) for role, statuses in replicas.items()]
    for role_status in roles_statuses:
        for replica in role_status.replicas:
            replica.hostname = one_line(replica.hostname)
            replica.reason = None if replica.reason is None else one_line(replica.reason)
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=restarts,
        msg=one_line(msg),
        metadata=dict(app.metadata) if app else {},
        roles_statuses=roles_statuses,
        roles=[*app.roles] if app else [],
    )


def add_error_files(response: DescribeAppResponse, read: Callable[[int, ReplicaStatus], str | None]) -> bool:
    """Add the exceptions that replicas wrote to `TORCHELASTIC_ERROR_FILE`; return whether each failed one has a text.

    Replicas that the launcher stopped are read as well: one of them may have failed first, but needed longer to end.
    `read` gets the index of a role and the status of a replica. Texts are cut, and after 2 million characters no more
    are read. The text of the replica that failed first is also used for the app.
    """
    has_all, left, stopped_left = True, _ERRORS_CHARS, _MOST_STOPPED
    replicas = [(index, replica) for index, role in enumerate(response.roles_statuses) for replica in role.replicas]
    for index, replica in replicas:
        is_failed = replica.state is AppState.FAILED
        if not is_failed:
            if replica.state is not AppState.CANCELLED or replica.start_time is None or stopped_left <= 0:
                continue
            stopped_left -= 1
        text = clean_text((read(index, replica) or "")[:_ERROR_CHARS]) if left > 0 else ""
        left -= len(text)
        if text:
            replica.structured_error_msg = text
        elif is_failed:
            has_all = False
    first = response.to_status().first_failed_replica()
    if first is not None and response.structured_error_msg == NONE:
        response.structured_error_msg = first.structured_error_msg
    return has_all
