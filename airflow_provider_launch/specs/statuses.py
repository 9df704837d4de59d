"""The status of an app: state, roles and replicas, also as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_launch.specs.errors import AppFailedError, AppStatusError
from airflow_provider_launch.specs.failures import ErrorReply, in_order_of_failure, parse_json, wrapped
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal

_ALL_STATES = 0xFF
_EXTRAS = ("exit_code", "error_msg", "start_time", "end_time", "num_restarts", "reason", "image_id")
_MAX_LINE = 500
_ERROR_INDENT = " " * 8
_ERROR_LABEL = _ERROR_INDENT + "error_msg: "
# Column of the further lines of an error: tools that parse these texts rely on it.
_ERROR_NEXT_LINE = len("    error_msg: ")


@dataclass(slots=True)
class ReplicaStatus:
    """One replica of the latest attempt. Times are epoch seconds; unknown values are None."""

    id: int
    """Number within the role, from 0."""
    state: AppState
    role: str
    hostname: str
    structured_error_msg: str = NONE
    """The job's own report of its failure, usually JSON."""
    hostaddr: str | None = None
    """Address of the host; replaced by the host name if nothing else is known."""
    exit_code: int | None = None
    """As in a shell: 128 + n for signal n."""
    error_msg: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    num_restarts: int | None = None
    reason: str | None = None
    image_id: str | None = None
    """The image at the start of the replica: its id, or a reference with a digest."""

    def __post_init__(self) -> None:
        if self.hostaddr is None:
            self.hostaddr = self.hostname

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; the state is its number, and optional fields appear only when known."""
        plain: dict[str, Any] = {
            "id": self.id,
            "state": self.state.value,
            "role": self.role,
            "hostname": self.hostname,
            "structured_error_msg": self.structured_error_msg,
            "hostaddr": self.hostaddr,
        }
        plain.update((name, value) for name in _EXTRAS if (value := getattr(self, name)) is not None)
        return plain

    def get_formatted_str(self, state_mask_filter: int = _ALL_STATES) -> str:
        """Return the replica in the older layout; empty if the filter excludes its state."""
        if not self.state.mask & state_mask_filter:
            return ""
        return (
            f"\n- [{self.role}:{self.id}]\n"
            f"  Timestamp: {self.end_time}; Exit Code: {self.exit_code}\n"
            f"  State: {self.state}\n"
            f"  Error Message: {self.error_msg}\n"
        )

    def first_error_line(self) -> str | None:
        """Return the line of text that explains most about the failure, if there is one."""
        reply = ErrorReply.parse(self.structured_error_msg)
        texts = [self.error_msg, reply.error_text if reply else self.structured_error_msg]
        for text in texts:
            if text and text != NONE:
                for line in text.splitlines():
                    if line.strip():
                        return line.strip()[:_MAX_LINE]
        return None

    def _summary(self) -> str:
        """Return role, number, exit code, reason and host in one line."""
        reply = ErrorReply.parse(self.structured_error_msg)
        exit_code = self.exit_code if self.exit_code is not None else (reply.exit_code if reply else None)
        facts = [
            f"exit code {exit_code}" if exit_code is not None else "no exit code",
            f"reason {self.reason}" if self.reason else "",
            f"host {self.hostname}" if self.hostname else "",
        ]
        return f"{self.role}[{self.id}] {self.state} ({', '.join(fact for fact in facts if fact)})"

    def _format(self) -> str:
        mark = "*" if self.id == 0 else " "
        return f"\n {mark}{self.role}[{self.id}]:{self.state}{self._format_error()}"

    def _format_error(self) -> str:
        if self.structured_error_msg == NONE or not self.structured_error_msg:
            if self.state not in {AppState.FAILED, AppState.CANCELLED}:
                return ""
            return " (no reply file)" if self.exit_code is None else f" (exitcode: {self.exit_code})"
        reply = ErrorReply.parse(self.structured_error_msg)
        if reply is None:
            return f"\n{self.structured_error_msg}"
        return (
            f" (exitcode: {reply.exit_code_text})\n"
            f"{_ERROR_INDENT}timestamp: {reply.local_time_text}\n"
            f"{_ERROR_INDENT}hostname: {self.hostname}\n"
            f"{_ERROR_LABEL}{wrapped(reply.error_text, _ERROR_NEXT_LINE)}"
        )


@dataclass(slots=True)
class RoleStatus:
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"role": self.role, "replicas": [replica.to_json() for replica in self.replicas]}


@dataclass(repr=False)
class AppStatus:
    """The status of an app; `roles` describes the latest attempt only."""

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: list[RoleStatus] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def is_terminal(self) -> bool:
        """Return whether the state is final."""
        return is_terminal(self.state)

    def first_failed_replica(self) -> ReplicaStatus | None:
        """Return the replica that made the app fail: by error files, else by end times; see `in_order_of_failure`."""
        replicas = [replica for role in self.roles for replica in _by_id(role.replicas)]
        return next(iter(in_order_of_failure(replicas, self.msg)), None)

    def raise_for_status(self) -> None:
        """Return if the app succeeded.

        Raises:
            AppFailedError: it failed or was cancelled; the text names the first failed replica.
            AppStatusError: it has not ended.
        """
        if self.state is AppState.SUCCEEDED:
            return
        raise (AppFailedError if self.is_terminal() else AppStatusError)(self, self._failure_text())

    def to_json(self, filter_roles: list[str] | None = None) -> dict[str, Any]:
        """Return plain JSON; `filter_roles` keeps the named roles; None or an empty list keeps all."""
        plain: dict[str, Any] = {
            "state": self.state.name,
            "num_restarts": self.num_restarts,
            "roles": [role.to_json() for role in self.roles if not filter_roles or role.role in filter_roles],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }
        if self.metadata:
            plain["metadata"] = self.metadata
        return plain

    def format(self, filter_roles: list[str] | None = None, *, state_mask_filter: int = _ALL_STATES) -> str:
        """Return the status as text, with the reports of the failed replicas. Never fails.

        `state_mask_filter` takes bits of `AppState.mask`.
        """
        replicas = "".join(
            replica._format()  # noqa: SLF001 - of this module
            for role, kept in self._select_roles(state_mask_filter)
            if not filter_roles or role in filter_roles
            for replica in kept
        )
        return (
            "AppStatus:\n"
            f"    State: {self.state}\n"
            f"    Num Restarts: {self.num_restarts}\n"
            f"    Roles: {replicas}\n"
            f"    Msg: {self.msg}\n"
            f"    Structured Error Msg: {self.structured_error_msg}\n"
            f"    UI URL: {self.ui_url}\n"
            "    "
        )

    def get_formatted_str(self, state_mask_filter: int = _ALL_STATES) -> str:
        """Return the status in the older layout; the filter takes bits of `AppState.mask`."""
        roles = "".join(
            f"- Role: [{role}]:\n{''.join(replica.get_formatted_str() for replica in kept)}\n"
            for role, kept in self._select_roles(state_mask_filter)
        )
        return f"\nState: {self.state} ; Num Restarts: {self.num_restarts}\nMsg: {self.msg}\nReplicas: \n{roles}\n"

    def __repr__(self) -> str:
        import yaml

        plain: dict[str, Any] = {
            "msg": self.msg,
            "num_restarts": self.num_restarts,
            "roles": [_embedded(role.to_json(), role.replicas) for role in self.roles],
            "state": repr(self.state),
            "structured_error_msg": _embedded_reply(self.structured_error_msg),
            "ui_url": self.ui_url,
        }
        if self.metadata:
            plain["metadata"] = self.metadata
        try:
            return _to_yaml(_plain(plain))
        except (RecursionError, yaml.YAMLError):
            # A reply with too many levels: its text is still worth showing.
            plain = {**self.to_json(), "state": repr(self.state), "metadata": repr(self.metadata)[:_MAX_LINE]}
            return _to_yaml(_plain(plain))

    def _select_roles(self, state_mask_filter: int) -> Iterator[tuple[str, list[ReplicaStatus]]]:
        for role in self.roles:
            if kept := [replica for replica in _by_id(role.replicas) if replica.state.mask & state_mask_filter]:
                yield role.role, kept

    def _failure_text(self) -> str:
        lines = [f"job did not succeed: {self.state}"]
        if self.msg and self.msg != NONE:
            lines[0] += f": {self.msg.strip().splitlines()[0][:_MAX_LINE] if self.msg.strip() else ''}"
        if first := self.first_failed_replica():
            lines.append(f"first failed replica: {first._summary()}")  # noqa: SLF001 - of this module
            if error := first.first_error_line():
                lines.append(error)
        elif self.structured_error_msg not in {"", NONE}:
            reply = ErrorReply.parse(self.structured_error_msg)
            text = reply.error_text if reply else self.structured_error_msg
            lines.extend(line[:_MAX_LINE] for line in text.strip().splitlines()[:1])
        return "\n".join(lines)


def _by_id(replicas: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    return sorted(replicas, key=lambda replica: replica.id)


def _embedded(role: dict[str, Any], replicas: list[ReplicaStatus]) -> dict[str, Any]:
    for shown, replica in zip(role["replicas"], replicas, strict=True):
        shown["state"] = repr(replica.state)
        shown["structured_error_msg"] = _embedded_reply(replica.structured_error_msg)
    return role


def _embedded_reply(text: str) -> Any:
    data = parse_json(text)
    return text if data is None else data


def _plain(value: Any) -> Any:
    """Return a value that a safe YAML loader can read back; other values become text."""
    if isinstance(value, AppState):
        return repr(value)
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _to_yaml(status: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump({"AppStatus": status}, default_flow_style=False, sort_keys=True, allow_unicode=True)
