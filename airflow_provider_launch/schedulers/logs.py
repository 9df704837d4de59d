"""Log lines, streams and the small functions around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from re import Pattern

JsonValue = Union[None, bool, int, float, str, Sequence["JsonValue"], Mapping[str, "JsonValue"]]  # noqa: UP007 - evaluated
"""What survives `json.dumps` and `json.loads`."""


LONGEST_LINE = 16 * 1024 * 1024
"""Bytes after which a line without an end is delivered in pieces: memory must not grow with the line."""
_MOST_LETTERS = LONGEST_LINE + 1024 * 1024
"""Of a line that is not cut again: a backend may see only at its next block that a line is that long."""


class Stream(str, Enum):
    """Which output of a replica a log line comes from, or is asked for."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


class LogLine(NamedTuple):
    """One line of one replica."""

    # Not a dataclass: a million lines are made one by one, and a named tuple is made in half the time.
    text: str
    """With its line feed, unless the replica ended without one."""
    stream: Stream
    """STDOUT or STDERR; COMBINED where the backend cannot distinguish them."""
    time: float | None = None
    """Epoch seconds by the clock of the node, None where the backend has none."""
    attempt: int = 0
    """Which attempt of the replica wrote it, from 0."""
    container: str = ""
    """The container that wrote it, where that is not the one of the program."""


@dataclass(frozen=True)
class LogChunk:
    """Some lines, and the cursor from which the next read goes on."""

    lines: list[LogLine]
    cursor: JsonValue
    """Opaque plain JSON; it may be stored and used by another process."""


def filter_regex(regex: str | Pattern[str], data: Iterable[str]) -> Iterator[str]:
    """Keep the items in which `regex` is found; compiled at the call, read lazily."""
    pattern = re.compile(regex)
    return (line for line in data if pattern.search(line))


def last_refresh(text: str) -> str:
    r"""Return what a terminal shows of a line that was written over and over: `"50%\r100%\n"` -> `"100%"`."""
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
    """Return the lines, and pieces of those that a scheduler has not cut; the same lines give the same pieces."""
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
