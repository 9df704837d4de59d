"""Where a command writes: data to stdout, all other texts to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from airflow_provider_launch.util.log_groups import END, START

__all__ = ["Output"]

_PACKAGE = "airflow_provider_launch"
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
"""ANSI codes of the replicas, in turn."""
_CONTROL = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")
_STATES = {"SUCCEEDED": "32", "FAILED": "31", "CANCELLED": "33", "UNKNOWN": "33"}


class Output:
    """Writes data and messages.

    Args:
        as_json: whether data is JSON: one document, or one per line of a log.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._colours: dict[str, str] = {}

    # ---- data ------------------------------------------------------------------------------------------------

    def data(self, text: str) -> None:
        """Write data of any kind, with a line feed."""
        sys.stdout.write(f"{text}\n")

    def document(self, value: object) -> None:
        """Write one JSON document."""
        self.data(json.dumps(value, indent=2, ensure_ascii=False, default=str))

    def row(self, value: Mapping[str, Any]) -> None:
        """Write one JSON document on one line."""
        self.data(json.dumps(value, ensure_ascii=False, default=str))

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows with equal keys: as a JSON list, or as columns with the keys as heads."""
        if self.as_json:
            self.document(list(rows))
        elif rows:
            cells = [[key.replace("_", " ").upper() for key in rows[0]]]
            cells += [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for row in cells:
                self.data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def line(self, key: str, label: str, text: str, *, to: TextIO | None = None) -> None:
        """Write a line of a replica, with a prefix in the colour of the replica.

        Args:
            key: the replica, as `role/k`.
            label: who wrote the line: the replica, or a container of it.
            text: the line, without its line feed.
            to: stdout or stderr. None: stdout.
        """
        stream = to or sys.stdout
        prefix = f"[{label}]"
        if stream.isatty():
            # A program must not move the cursor, or type for the user; colours and tabs are harmless.
            text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        if _is_coloured(stream):
            colour = self._colours.setdefault(key, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        stream.write(f"{prefix} {text}\n")

    def flush(self) -> None:
        """Write what is buffered.

        Raises:
            BrokenPipeError: the reader has ended.
        """
        sys.stdout.flush()

    def discard(self) -> None:
        """Discard all data from now on, because its reader has ended: Python would report that at its exit."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)

    # ---- messages --------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Write a message."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def state(self, state: str) -> str:
        """Return the name of a state, in its colour on a terminal."""
        colour = _STATES.get(state)
        return f"\x1b[{colour}m{state}\x1b[0m" if colour and _is_coloured(sys.stderr) else state

    def error(self, text: str) -> None:
        """Write the reason why the command ends."""
        self.note(f"launch: {text}")

    @contextlib.contextmanager
    def messages(self, *, verbose: bool) -> Iterator[None]:
        """Show warnings, and what this package logs, such as the progress of a build.

        Restores the settings at the end, because Airflow has its own.
        """
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a log has any characters, a terminal may not
        logger, handler = logging.getLogger(_PACKAGE), logging.StreamHandler(sys.stderr)
        handler.setFormatter(_OneLine())
        handler.addFilter(lambda record: record.getMessage() != END)
        before = logger.level, logger.propagate, logger.handlers
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)
        logger.propagate, logger.handlers = False, [handler]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            warnings.simplefilter("default", FutureWarning)
            warnings.filterwarnings("default", "option ", DeprecationWarning)
            warnings.showwarning = lambda text, *_rest, **_more: self.note(f"warning: {text}")
            try:
                yield
            finally:
                logger.setLevel(before[0])
                logger.propagate, logger.handlers = before[1:]


class _OneLine(logging.Formatter):
    """The message only; warnings and errors with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace(START, "")
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def _is_coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
