"""Log lines and streams, with functions to split and filter them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from re import Pattern

JsonValue = Union[None, bool, int, float, str, Sequence["JsonValue"], Mapping[str, "JsonValue"]]  # noqa: UP007 - evaluated
"""A value that `json.dumps` and `json.loads` preserve."""


MOST_LINES = 8192
"""A read returns few more lines than this, because short lines take far more memory than their text."""
LINE_BYTES = 100
"""Memory of a line in addition to its text."""
LONGEST_LINE = 16 * 1024 * 1024
"""Bytes after which an unfinished line is delivered in pieces, to limit memory."""
_MOST_LETTERS = LONGEST_LINE + 1024 * 1024
"""Longest line that is not split again; a backend may notice only at its next block that a line is too long."""


class Stream(str, Enum):
    """The output of a replica that a log line comes from, or that a reader asks for."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


class LogLine(NamedTuple):
    """One line of one replica."""

    # Not a dataclass: a named tuple is created in half the time, and a log may have millions of lines.
    text: str
    """With its line feed, unless the replica ended without one."""
    stream: Stream
    """STDOUT or STDERR; COMBINED where the backend cannot distinguish them.

    Each read from a cursor returns the lines of one stream in the same order; it may merge the two in another order.
    """
    time: float | None = None
    """Epoch seconds by the clock of the node; None if the backend has no times."""
    attempt: int = 0
    """The attempt of the replica that wrote it, from 0."""
    container: str = ""
    """The container that wrote it, if it is not the main container."""


@dataclass(frozen=True)
class LogChunk:
    """Some lines, and the cursor for the next read."""

    lines: list[LogLine]
    cursor: JsonValue
    """Opaque plain JSON; it may be stored and used by another process."""


def filter_regex(regex: str | Pattern[str], data: Iterable[str]) -> Iterator[str]:
    """Keep the items that contain a match of `regex`; compiled at the call, read lazily."""
    pattern = re.compile(regex)
    return (line for line in data if pattern.search(line))


def last_refresh(text: str) -> str:
    r"""Return the last version of a line that was overwritten by carriage returns: `"50%\r100%\n"` -> `"100%"`."""
    return text.rstrip().rpartition("\r")[2] if "\r" in text else text


def split_lines(text: str) -> list[str]:
    r"""Split after each `\n` only, so that carriage returns stay: `"foo\nbar"` -> `["foo\n", "bar"]`."""
    lines = text.split("\n")
    last = lines.pop()
    result = [line + "\n" for line in lines]
    if last:
        result.append(last)
    return result


def cut_lines(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines, with too long ones split into pieces; the same lines give the same pieces."""
    if all(len(line.text) <= _MOST_LETTERS for line in lines):
        return lines
    cut: list[LogLine] = []
    for line in lines:
        step = LONGEST_LINE if len(line.text) > _MOST_LETTERS else _MOST_LETTERS
        cut += [line._replace(text=line.text[at : at + step]) for at in range(0, max(len(line.text), 1), step)]
    return cut


def split_lines_iterator(chunks: Iterable[str]) -> Iterator[str]:
    """Split each chunk as `split_lines` does; chunks are not joined."""
    for chunk in chunks:
        yield from split_lines(chunk)
