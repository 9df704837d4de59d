"""`launch log`: the lines of the replicas of an app."""

from __future__ import annotations

import argparse
import heapq
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_launch.cli.follow import follow, show_line
from airflow_provider_launch.cli.targets import for_handle
from airflow_provider_launch.schedulers.api import Stream
from airflow_provider_launch.specs.errors import InvalidAppError, MalformedAppHandleException, UnknownAppException

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, LogLine, Scheduler

_HANDLE = re.compile(
    r"(?P<handle>[^/]+?://[^/]*/[^/]+)(?:/(?P<role>[^/]+)(?:/(?P<replicas>[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*))?)?/?"
)
_MOST_REPLICAS = 1_000_000


@dataclass(frozen=True)
class Wanted:
    """An app, and which of its replicas."""

    handle: str
    role: str | None
    replicas: frozenset[int] | None

    def has(self, role: str, k: int) -> bool:
        """Return whether the lines of a replica are wanted."""
        return self.role in (None, role) and (self.replicas is None or k in self.replicas)


class _Item(NamedTuple):
    role: str
    k: int
    line: LogLine


def log(options: argparse.Namespace, output: Output) -> int:
    """Print the lines that exist, or follow the log until the app has ended."""
    wanted = parse_wanted(options.handle)
    if options.tail is not None and options.tail < 0:
        raise InvalidAppError(f"--tail={options.tail} must be 0 or more lines")
    try:
        pattern = re.compile(options.regex) if options.regex else None
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidAppError(f"--regex={options.regex!r} is not a regular expression: {error}") from error
    streams = Stream(options.streams) if options.streams else None

    def show(role: str, k: int, line: LogLine) -> None:
        if wanted.has(role, k) and (pattern is None or pattern.search(line.text)):
            _write(output, role, k, line)

    with for_handle(wanted.handle, options.scheduler, options.connection) as target:
        app_id = wanted.handle.rpartition("/")[2]
        response = target.scheduler.describe(app_id)
        if response is None:
            raise UnknownAppException(wanted.handle)
        keys = _replicas(response, wanted)
        cursors: dict[str, JsonValue] = {}
        if not options.follow or options.tail is not None:
            reader = _Reader(target.scheduler, app_id, streams, cursors)
            for item in reader.lines(keys, options.tail, pattern):
                show(*item)
            output.flush()
        if options.follow:
            follow(
                target.scheduler,
                wanted.handle,
                output,
                logs=True,
                show=show,
                streams=streams,
                roles=None if wanted.role is None else (wanted.role,),
                cursors=cursors,
            )
    return 0


def parse_wanted(text: str) -> Wanted:
    """Return the app and the replicas that a text such as `local://c/app-1/trainer/0,2-4` names."""
    found = _HANDLE.fullmatch(text)
    if found is None:
        raise MalformedAppHandleException(text)
    numbers = found["replicas"]
    return Wanted(found["handle"], found["role"], None if numbers is None else frozenset(_numbers(numbers)))


def _numbers(text: str) -> Iterator[int]:
    left = _MOST_REPLICAS
    for part in text.split(","):
        low, _, high = part.partition("-")
        if max(len(low), len(high)) > len(str(_MOST_REPLICAS)):
            raise InvalidAppError(f"no app has replica {part[:40]}")
        numbers = range(int(low), int(high or low) + 1)
        left -= len(numbers)
        if left < 0:
            raise InvalidAppError(f"no app has {_MOST_REPLICAS} replicas; name fewer")
        yield from numbers


def _replicas(response: DescribeAppResponse, wanted: Wanted) -> list[tuple[str, int]]:
    """Return the wanted replicas of an app; refuse those that it does not have."""
    numbers = {role.name: {*range(min(role.num_replicas, _MOST_REPLICAS))} for role in response.roles}
    for status in response.roles_statuses:
        numbers.setdefault(status.role, set()).update(replica.id for replica in status.replicas)
    found = [(role, k) for role, each in numbers.items() for k in sorted(each) if wanted.has(role, k)]
    if numbers and not found:
        roles = ", ".join(f"{role} (0 to {max(each, default=0)})" for role, each in numbers.items())
        raise InvalidAppError(f"the app has no such replica; its roles are {roles}")
    return found


class _Reader:
    """Reads the lines that exist."""

    def __init__(
        self, scheduler: Scheduler[Any], app_id: str, streams: Stream | None, cursors: dict[str, JsonValue]
    ) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._streams = streams
        self._cursors = cursors

    def lines(
        self, keys: Sequence[tuple[str, int]], tail: int | None, pattern: re.Pattern[str] | None
    ) -> Iterable[_Item]:
        """Yield the lines of replicas: in order of time if the scheduler stores times, else replica by replica."""
        logs = [self._tail(role, k, tail, pattern) if tail is not None else self._all(role, k) for role, k in keys]
        started = [(first, rest) for rest in logs if (first := next(rest, None)) is not None]
        if any(first.line.time is None for first, _ in started):
            for first, rest in started:
                yield first
                yield from rest
            return
        yield from heapq.merge(*(_with_first(first, rest) for first, rest in started), key=_time())

    def _all(self, role: str, k: int) -> Iterator[_Item]:
        cursor: JsonValue = None
        while True:
            chunk = self._scheduler.read_logs(self._app_id, role, k, cursor, streams=self._streams)
            self._cursors[f"{role}/{k}"] = cursor = chunk.cursor
            for line in chunk.lines:
                yield _Item(role, k, line)
            if not chunk.lines:
                return

    def _tail(self, role: str, k: int, count: int, pattern: re.Pattern[str] | None) -> Iterator[_Item]:
        items = (item for item in self._all(role, k) if pattern is None or pattern.search(item.line.text))
        return iter(deque(items, maxlen=min(count, sys.maxsize)))


def _with_first(first: _Item, rest: Iterator[_Item]) -> Iterator[_Item]:
    yield first
    yield from rest


def _time() -> Callable[[_Item], float]:
    """Return the key of an item: its time, or that of the line before it in the same log."""
    last: dict[tuple[str, int], float] = {}

    def time_of(item: _Item) -> float:
        key = item.role, item.k
        last[key] = max(last.get(key, 0.0), item.line.time or 0.0)
        return last[key]

    return time_of


def _write(output: Output, role: str, k: int, line: LogLine) -> None:
    if not output.as_json:
        show_line(output, role, k, line)
        return
    text = line.text.removesuffix("\n")
    output.row(
        {
            "role": role,
            "replica": k,
            "attempt": line.attempt,
            "stream": line.stream.value,
            "time": line.time,
            "container": line.container,
            "text": text,
        }
    )
