"""The error files of failed replicas, and which replica made its app fail: pure.

A job may be killed while it writes its error file, so the functions here accept any text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow_provider_launch.specs.statuses import ReplicaStatus

_NOT_AVAILABLE = "<N/A>"
_WIDTH = 80
_RPC_ERROR = re.compile(r"\b\w+\('On WorkerInfo\([^\n]*\):")


@dataclass(frozen=True)
class ErrorReply:
    """The parsed fields of a reply; the nested and the flat form give the same."""

    message: str
    error_code: object = None
    timestamp: object = None

    @staticmethod
    def parse(text: str) -> ErrorReply | None:
        """Return the reply, or None if the text has neither of the two forms."""
        data = parse_json(text)
        if not isinstance(data, dict):
            return None
        inner = data.get("message")
        if isinstance(inner, dict):
            extra = inner.get("extraInfo")
            timestamp = extra.get("timestamp") if isinstance(extra, dict) else None
            data, inner = {**inner, "timestamp": timestamp}, inner.get("message")
        if not isinstance(inner, str):
            return None
        # An escape may stand for a character that databases reject.
        return ErrorReply(message=clean_text(inner), error_code=data.get("errorCode"), timestamp=data.get("timestamp"))

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None if it is missing, zero or not a number."""
        number = _number(self.error_code)
        return None if number is None else int(number) or None

    @property
    def exit_code_text(self) -> str:
        """Return the exit code as text."""
        return _NOT_AVAILABLE if self.exit_code is None else str(self.exit_code)

    @property
    def seconds(self) -> float | None:
        """Return when it happened, in epoch seconds; None if it is missing or not a number."""
        return _number(self.timestamp)

    @property
    def local_time_text(self) -> str:
        """Return when it happened, in local time."""
        seconds = self.seconds
        if seconds is None:
            return _NOT_AVAILABLE
        try:
            # The time zone of the process that shows it, as in the task log around it.
            return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006 - see above
        except (ValueError, OverflowError, OSError):
            return _NOT_AVAILABLE

    @property
    def error_text(self) -> str:
        """Return the message without the prefix of an RPC layer, and without the trace after it.

        If a line starts with `Exception`, only the line before it is kept.
        """
        lines = self._rpc_text().split("\n")
        for number, line in enumerate(lines):
            if number and line.startswith("Exception"):
                return lines[number - 1]
        return "\n".join(lines)

    def _rpc_text(self) -> str:
        begin = _RPC_ERROR.search(self.message)
        if begin is None:
            return self.message
        # The marker of the end starts a line; the same two characters also occur within lines.
        end = self.message.rfind("\n')", begin.end())
        if end < 0:
            end = self.message.rfind("')", begin.end()) - 1
        if end < begin.end() - 1:
            return self.message
        return self.message[begin.start() : end + len("\n')")]


def parse_json(text: str) -> Any:
    """Return the data of a JSON text, or None if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def wrapped(text: str, indent: int) -> str:
    """Return the text wrapped at the first blank at or after 80 characters; further lines are indented."""
    pieces: list[str] = []
    start = 0
    while True:
        # The leading blank of a line counts as its first character.
        blank = text.find(" ", start + _WIDTH)
        if blank < 0:
            pieces.append(text[start:])
            return ("\n" + " " * indent).join(pieces)
        pieces.append(text[start:blank])
        start = blank


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value) if isinstance(value, str) else value
        return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None


_LOST_PEERS = re.compile(
    r"connection (?:was )?(?:closed|reset|refused) by (?:remote )?peer|Connection reset by peer|ncclRemoteError|"
    r"remote process exit(?:ed|ing)|Rendezvous(?:Connection|Closed|Timeout|StateError)\w*|DistNetworkError|"
    r"DistStoreError|recvValue failed|failed to recv, got 0 bytes|client socket has timed out|"
    r"Timed out waiting \d+ms for (?:recv|send) operation|collective operation timeout|"
    r"got signal: (?:15|(?:Signals\.)?SIGTERM)\b",
    re.IGNORECASE,
)
"""Errors of gloo, NCCL, torchrun and PyTorch's store in a process whose peers have ended."""
_SEARCHED = 2048
"""Characters at the start and at the end of an error that are searched, because a program may write any text."""
_MOST_READ = 64
"""Number of failed replicas whose errors are compared: those that ended first. More of them would take seconds, while
the followers of other apps wait."""
_BY_SIGNAL, _BY_TERM = range(129, 193), 143


def lost_its_peers(text: str) -> bool:
    """Return whether an error only reports that other processes of the training have ended."""
    shown = text if len(text) <= 2 * _SEARCHED else f"{text[:_SEARCHED]}\n{text[-_SEARCHED:]}"
    return _LOST_PEERS.search(shown) is not None


def reply_of(replica: ReplicaStatus) -> ErrorReply | None:
    """Return what the replica wrote to its error file; None if it wrote none, or in another form."""
    text = replica.structured_error_msg
    return None if text in {"", NONE} else ErrorReply.parse(text)


def in_order_of_failure(
    replicas: Iterable[ReplicaStatus], msg: str = "", last_lines: Mapping[str, Sequence[str]] | None = None
) -> list[ReplicaStatus]:
    """Return the failed replicas, the one that made the app fail first.

    A replica whose error only reports lost peers comes after the others. Then the time of the error file decides,
    because a process may need seconds to end, and its peers may exit before it. For a killed process, which writes no
    file, it is the time of its end. Then the replica that the scheduler names in `msg` comes first, then the first
    exit.

    Replicas that the launcher stopped count only if they had written an error file that is not about lost peers or the
    stop itself, as torchrun writes one. Of more than 64 replicas, only the errors of those that ended first are
    compared. `last_lines` are those of `role/replica`, as far as they are known.
    """
    lines = last_lines or {}

    def exit_order(replica: ReplicaStatus) -> tuple[object, ...]:
        end_time = replica.end_time
        return f"{replica.role}/{replica.id} " not in msg, end_time is None, end_time or 0

    def order(replica: ReplicaStatus) -> tuple[object, ...]:
        reply = reply_of(replica)
        last = lines.get(f"{replica.role}/{replica.id}", ())
        return _lost_peers(reply, last), _moment(replica, reply), *exit_order(replica)

    failed = [one for one in replicas if one.state is AppState.FAILED or _failed_before_stop(one)]
    by_exit = sorted(failed, key=exit_order) if len(failed) > _MOST_READ else failed
    return [*sorted(by_exit[:_MOST_READ], key=order), *by_exit[_MOST_READ:]]


def is_consequence(replica: ReplicaStatus, last_lines: Sequence[str] = ()) -> bool:
    """Return whether a replica failed because its peers had ended, by its error file or else by its last lines."""
    return _lost_peers(reply_of(replica), last_lines)


def _lost_peers(reply: ErrorReply | None, last_lines: Sequence[str]) -> bool:
    return lost_its_peers(reply.message) if reply else any(map(lost_its_peers, last_lines))


def _failed_before_stop(replica: ReplicaStatus) -> bool:
    reply = reply_of(replica) if replica.state is AppState.CANCELLED else None
    return reply is not None and not lost_its_peers(reply.message)


def _moment(replica: ReplicaStatus, reply: ErrorReply | None) -> float:
    if reply is not None and (written := reply.seconds) is not None:
        return written
    code = replica.exit_code
    is_killed = code is not None and code in _BY_SIGNAL and code != _BY_TERM
    return float(replica.end_time) if is_killed and replica.end_time is not None else float("inf")
