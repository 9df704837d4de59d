"""The reply file in which a job reports its own failure, parsed and formatted.

A job may be killed while it writes its reply, so the functions here accept any text.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_launch.util.untrusted import clean_text

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
