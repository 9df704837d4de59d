"""`max_log_bytes`: shows the start and the end of a long log, and reports how much is left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import LogLine


_LINE_BYTES, _LEAST_LINES = 32, 1000
"""Mean size of the kept lines; of shorter ones fewer bytes are kept, because each line takes memory."""

_FOLLOWING = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 with which no character begins."""


def check_max_log_bytes(value: object) -> None:
    """Refuse a value that is not a valid number of bytes.

    Raises:
        InvalidAppError: it is not a positive whole number.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise InvalidAppError(
            f"max_log_bytes={value!r} must be a whole number of bytes above 0, or None for the whole log; "
            f"log_roles=[] shows no lines"
        )


@dataclass
class Rest:
    """The part of a replica's log after its first lines."""

    lines: deque[LogLine] = field(default_factory=deque)
    """The last ones."""
    bytes: int = 0
    left_out: int = 0
    bytes_left_out: int = 0


def _end_of(text: str, at: int) -> str:
    return text[at:]


class LogLimit:
    """Splits `max_bytes` of each replica: one half for its first lines, one half for its last.

    Args:
        max_bytes: limit for the text of one replica, in bytes of UTF-8. None: no limit.
        shown_bytes: bytes that an earlier part of the task has shown, by `role/replica`; invalid entries are ignored.
    """

    __slots__ = ("_half", "_most_lines", "_rests", "_shown", "max_bytes")

    def __init__(self, max_bytes: int | None, shown_bytes: object = None) -> None:
        self.max_bytes = max_bytes
        self._half = (max_bytes or 0) // 2
        self._most_lines = max(_LEAST_LINES, self._half // _LINE_BYTES)
        self._shown: dict[str, int] = {}
        if isinstance(shown_bytes, Mapping):
            self._shown = {str(key): size for key, size in shown_bytes.items() if isinstance(size, int)}
        self._rests: dict[str, Rest] = {}

    @property
    def shown_bytes(self) -> dict[str, int]:
        """Bytes of the first lines by `role/replica`; half of `max_bytes` if no more are shown."""
        return dict(self._shown)

    def is_full(self, key: str) -> bool:
        """Return whether the first lines of the replica are all shown."""
        return self.max_bytes is not None and self._shown.get(key, 0) >= self._half

    def admit(self, key: str, lines: Sequence[LogLine]) -> int:
        """Return how many of the next lines belong to the first half, which is shown at once."""
        if self.max_bytes is None:
            return len(lines)
        shown = self._shown.get(key, 0)
        for number, line in enumerate(lines):
            size = _size(line)
            if shown + size > self._half:
                # Full from now on, even for a shorter line, so that the first half has no holes.
                self._shown[key] = self._half
                return number
            shown += size
        self._shown[key] = shown
        return len(lines)

    def first_lines(self, key: str, lines: Sequence[LogLine]) -> tuple[int, bool]:
        """Return how many of the next lines are shown at once, and whether to report that the others are not.

        True only once, where the first half ends.
        """
        was_full = self.is_full(key)
        shown = self.admit(key, lines)
        return shown, shown < len(lines) and not was_full

    def keep(self, key: str, lines: Sequence[LogLine], cut: Callable[[str, int], str] = _end_of) -> None:
        """Keep the last of the lines after the first ones, in a few times the memory of the limit.

        Args:
            key: `role/replica`.
            lines: the next ones.
            cut: takes a text and an index, and returns the part to keep, which begins there.
        """
        rest = self._rests.setdefault(key, Rest())
        for line in lines:
            rest.lines.append(line)
            rest.bytes += _size(line)
            while (rest.bytes > self._half and len(rest.lines) > 1) or len(rest.lines) > self._most_lines:
                size = _size(rest.lines.popleft())
                rest.bytes -= size
                rest.bytes_left_out += size
                rest.left_out += 1
            if rest.bytes > self._half:
                whole = rest.lines.pop()
                kept = whole.text.encode("utf-8", "surrogatepass")[rest.bytes - self._half :]
                characters = len(kept.lstrip(_FOLLOWING).decode("utf-8", "surrogatepass"))
                end = whole._replace(text=cut(whole.text, len(whole.text) - characters))
                rest.bytes_left_out += rest.bytes - _size(end)
                rest.bytes = _size(end)
                rest.lines.append(end)

    def rests(self) -> Iterator[tuple[str, Rest]]:
        """Yield the kept lines by replica, once."""
        rests, self._rests = self._rests, {}
        yield from rests.items()


NO_LIMIT = LogLimit(None)
"""The limit of consumers that show everything; it keeps nothing."""


def _size(line: LogLine) -> int:
    text = line.text
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
