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

from airflow_provider_launch.util.strings import END, START
from airflow_provider_launch.util.untrusted import clean_json

_PACKAGE = "airflow_provider_launch"
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
"""ANSI codes of the replicas, in turn."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Characters that move the cursor, answer for the user, or change the order of others; not tab, line feed, colours."""
_NOT_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Those of them that `json.dumps` does not escape."""
_NOT_IN_CELL = re.compile(r"[\t\n]|\x1b")
_STATES = {"SUCCEEDED": "32", "FAILED": "31", "CANCELLED": "33", "UNKNOWN": "33"}


class Output:
    """Writes data and messages; with `as_json` data is JSON: one document, or one per line of a log."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._colours: dict[str, str] = {}

    # ---- data ------------------------------------------------------------------------------------------------

    def data(self, text: str) -> None:
        """Write data of any kind, with a line feed."""
        sys.stdout.write(f"{_safe(text, sys.stdout)}\n")

    def document(self, value: object) -> None:
        """Write one JSON document."""
        sys.stdout.write(f"{_json(value, indent=2)}\n")

    def row(self, value: Mapping[str, Any]) -> None:
        """Write one JSON document on one line."""
        sys.stdout.write(f"{_json(value)}\n")

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows with equal keys: as a JSON list, or as columns with the keys as heads."""
        if self.as_json:
            self.document(list(rows))
        elif rows:
            cells = [[key.replace("_", " ").upper() for key in rows[0]]]
            cells += [["" if cell is None else _cell(str(cell)) for cell in row.values()] for row in rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for row in cells:
                self.data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def line(self, key: str, label: str, text: str, *, to: TextIO | None = None) -> None:
        """Write a line of a replica, with a prefix in the colour of the replica.

        `key` is the replica, as `role/k`; `label` is the writer of the line: the replica, or one of its containers.
        """
        stream = to or sys.stdout
        prefix = f"[{label}]"
        if stream.isatty():
            prefix, text = _safe(prefix, stream), _safe(text, stream).replace("\n", "\\x0a")
        if _is_coloured(stream):
            colour = self._colours.setdefault(key, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        stream.write(f"{prefix} {text}\n")

    def flush(self) -> None:
        """Write what is buffered; a BrokenPipeError means that the reader has ended."""
        sys.stdout.flush()

    def discard(self) -> None:
        """Discard all data from now on, because its reader has ended: Python would report that at its exit."""
        _discard(sys.stdout)

    # ---- messages --------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Write a message; it is lost if its reader has ended, because only data matters to a script."""
        try:
            sys.stderr.write(f"{_safe(text, sys.stderr)}\n")
            sys.stderr.flush()
        except BrokenPipeError:
            _discard(sys.stderr)

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
        logger, handler = logging.getLogger(_PACKAGE), _Notes(self)
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


class _Notes(logging.Handler):
    """Shows what is logged as messages of the command."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._output.note(self.format(record))
        except Exception:  # noqa: BLE001 - as each handler of `logging` does
            self.handleError(record)


class _OneLine(logging.Formatter):
    """The message only; warnings and errors with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace(START, "")
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def _is_coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _safe(text: str, stream: TextIO) -> str:
    """Return the text for a terminal: a program that wrote a part of it must not move the cursor, or type for the user.

    A colour ends with the text, because what follows would be invisible, too. Pipes and files get the text unchanged.
    """
    if not stream.isatty():
        return text
    shown = _CONTROL.sub(_escaped, text)
    return shown if _COLOUR.findall(shown)[-1:] in ([], ["\x1b[0m"], ["\x1b[m"]) else f"{shown}\x1b[0m"


def _cell(text: str) -> str:
    """Return the text as a cell of a table, which it cannot leave, also where the table is read by a program."""
    return _NOT_IN_CELL.sub(_escaped, _CONTROL.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("ascii", "backslashreplace").decode() if found[0] > "\x7f" else f"\\x{ord(found[0]):02x}"


def _json(value: object, indent: int | None = None) -> str:
    """Return JSON that each parser accepts: without NaN, halves of surrogate pairs and raw control characters."""
    plain = clean_json(value)
    text = json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(plain, indent=indent, allow_nan=False, default=str)
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
