"""The last traceback of a replica, found in its lines: pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_launch.specs.failures import lost_its_peers

HEAD = "Traceback (most recent call last)"
REST = "..."
"""Separates a traceback from the last lines."""
_MOST_LINES = 24
_LONGEST_PREFIX = 200
"""Maximum characters before a traceback: a line may have 16 MB, and its start is kept until the app ends."""
_MOST_KEPT = 4
"""Tracebacks from which the most useful one is chosen: the first two and the last two. Their errors are searched when
it is asked for, not for each traceback, because a program can write thousands per second."""
_OF_TORCHRUN = "ChildFailedError"
"""The error of torchrun itself, whose text is a table of exit codes."""


class LastTraceback:
    """Takes the lines of a replica, and keeps its last useful traceback.

    The traceback of torchrun, and one that only reports lost peers, do not replace a better one.
    torchrun and PyTorch put the rank before each line, so the lines of one process have the same prefix.
    """

    __slots__ = ("_found", "_open", "_prefix")

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._found = [[*lines]] if lines else []
        self._open: list[str] | None = None
        self._prefix = ""

    @property
    def lines(self) -> list[str]:
        """Its lines without the prefix; the last one is the error."""
        if len(self._found) > 1:
            self._found = [min(reversed(self._found), key=_rank)]
        return self._found[0] if self._found else []

    def add(self, text: str, cut: Callable[[str], str]) -> None:
        """Take the next line; `cut` limits the length of a line that is kept."""
        at = text.find(HEAD, 0, _LONGEST_PREFIX + len(HEAD))
        if at >= 0:
            self._prefix, self._open = text[:at], [cut(text[at:].rstrip())]
        elif self._open is not None and text.startswith(self._prefix):
            rest = text[len(self._prefix) :].rstrip()
            if rest:
                self._open.append(cut(rest))
                # The first line, and the frames next to the error.
                del self._open[1 : len(self._open) - _MOST_LINES]
            if rest and not rest[0].isspace():
                self._found.append(self._open)
                del self._found[_MOST_KEPT // 2 : len(self._found) - _MOST_KEPT // 2]
                self._open = None


def _rank(lines: Sequence[str]) -> int:
    """Return 0 for a traceback that shows the cause, a higher number for a less useful one."""
    return 2 if _OF_TORCHRUN in lines[-1] else int(lost_its_peers(lines[-1]))


def joined(traceback: Sequence[str], tail: Sequence[str]) -> list[str]:
    """Return the traceback and the last lines as one list; only the last lines if they have the whole traceback."""
    if not traceback:
        return [*tail]
    is_shown = all(any(line in text for text in tail) for line in traceback)
    return [*tail] if is_shown else [*traceback, REST, *tail]


def divided(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the traceback and the last lines that `joined` has put together."""
    if lines and lines[0].startswith(HEAD) and REST in lines:
        at = [*lines].index(REST)
        return [*lines[:at]], [*lines[at + 1 :]]
    return [], [*lines]


def error_in(lines: Sequence[str]) -> str:
    """Return the error of the traceback in the last lines of a replica; empty if they have none."""
    found = LastTraceback()
    for line in lines:
        found.add(line, str)
    return found.lines[-1] if found.lines else ""
