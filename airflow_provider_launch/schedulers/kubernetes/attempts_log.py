"""The log of a replica: the logs of the pods of all its attempts, one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_launch.schedulers._kit.attempt_logs import Attempt, AttemptRead, read_attempts, unread_attempts
from airflow_provider_launch.schedulers.api import LogChunk
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.log_lines import STAMP, LineReader, LineSplitter
from airflow_provider_launch.schedulers.kubernetes.log_reader import CURSOR_KEYS, RESUMED_LINES, LogReader
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER
from airflow_provider_launch.schedulers.kubernetes.objects import Pod
from airflow_provider_launch.schedulers.log_streams import LogStream
from airflow_provider_launch.schedulers.logs import LogLine, Stream

_REFUSED_S = 600.0
"""Seconds without following logs of a node that has no inotify watchers left: all pods of a node share them."""
_LOST = "[launch] the pod that ran before was removed, and its log with it: lines may be missing here\n"
_SETTLE_S = 2.0
"""Seconds after the end of a program for which its node may still write its lines; ends are in whole seconds."""


class AttemptsLog:
    """Reads logs of the apps of one namespace. The cursor belongs to the pod named by its `"at"` and `"uid"`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reader = LogReader(cluster)
        self._refused_until: dict[str, float] = {}
        """Node to a time by `time.monotonic`."""

    def close(self) -> None:
        """Close the answers that are kept open."""
        self._reader.close()

    def read(self, pods: list[Pod], state: Mapping[str, Any], now: float, containers: Sequence[str] = ()) -> LogChunk:
        """Return the next lines of a replica, whose pods have the order of its attempts.

        `containers` are other containers to read; the cursor has their positions as `"others"`.
        """
        attempts = [_attempt(pod, containers) for pod in pods]
        if (entered := _entered(attempts, state)) is not None and _is_lost(pods, state, entered.source):
            return LogChunk([LogLine(_LOST, Stream.COMBINED, None, entered.number)], entered.key)

        def read_one(attempt: Attempt[Pod], state: Mapping[str, Any]) -> AttemptRead:
            pod = attempt.source
            if containers and pod.others:
                return self._read_all(pod, state, now, containers)
            lines, cursor = self._read_one(pod, CONTAINER, state, now)
            return AttemptRead(lines, cursor)

        return read_attempts(attempts, state, read_one)

    def _read_all(self, pod: Pod, state: Mapping[str, Any], now: float, containers: Sequence[str]) -> AttemptRead:
        """Return the next lines of the program and of the chosen containers of a pod."""
        positions = dict(state.get("others") or {})
        lines: list[LogLine] = []
        chosen = [one for one in pod.others if one.name in containers and one.has_started]
        for one in chosen:
            found, positions[one.name] = self._read_one(pod, one.name, positions.get(one.name) or {}, now)
            lines += [line._replace(container=one.name) for line in found]
        is_done = bool((positions.get(CONTAINER) or {}).get("done"))
        position: Mapping[str, Any] = {name: state[name] for name in CURSOR_KEYS if name in state}
        # The last lines of init containers come before the first line of the program.
        if pod.has_started and not is_done and not (lines and pod.exit_code is None):
            found, position = self._read_one(pod, CONTAINER, position, now)
            lines += found
        cursor = dict(position)
        # The program has ended; the attempt ends when the other containers are read, too.
        if cursor.pop("done", False):
            positions[CONTAINER] = {"done": True}
        if pod.over and all((positions.get(name) or {}).get("done") for name in (CONTAINER, *(o.name for o in chosen))):
            cursor["done"] = True
        return AttemptRead(lines, {**cursor, "others": positions}, continues=pod.over)

    def _read_one(
        self, pod: Pod, container: str, position: Mapping[str, Any], now: float
    ) -> tuple[list[LogLine], Mapping[str, Any]]:
        """Return the next lines of one container, and the position after them."""
        if position.get("done"):
            return [], position
        one = next((other for other in pod.others if other.name == container), None)
        exit_code, finished = (one.exit_code, one.finished) if one else (pod.exit_code, pod.finished)
        settles_in_s = max(0.0, min(_SETTLE_S, finished + _SETTLE_S - now)) if finished else 0.0
        is_over = pod.over or exit_code is not None
        chunk = self._reader.read(
            pod.name, pod.uid, position, complete=is_over, settles_in_s=settles_in_s, container=container
        )
        return chunk.lines, chunk.cursor

    def stream(self, pods: list[Pod], state: Mapping[str, Any], containers: Sequence[str] = ()) -> LogStream | None:
        """Return a stream that continues at the cursor, if the cursor's attempt runs."""
        attempts = [_attempt(pod, containers) for pod in pods]
        entered = _entered(attempts, state)
        if entered is not None and _is_lost(pods, state, entered.source):
            return None  # a read reports it first
        for attempt in unread_attempts(attempts, state):
            if attempt.has_log or not attempt.is_over:
                # Earlier attempts must be read to the end first.
                pod = attempt.source
                positions = (state.get("others") or {}) if attempt.has(state) else {}
                # A stream shows one container, so the others would not be read meanwhile.
                unread = [
                    o for o in pod.others if o.name in containers and not (positions.get(o.name) or {}).get("done")
                ]
                is_running = pod.has_started and not attempt.is_over and pod.exit_code is None and not unread
                return self._stream_of(attempt, state if attempt.has(state) else {}) if is_running else None
        return None

    def _stream_of(self, attempt: Attempt[Pod], state: Mapping[str, Any]) -> LogStream | None:
        pod = attempt.source
        if time.monotonic() < self._refused_until.get(pod.node, 0.0):
            return None
        kept = {"others": state["others"]} if "others" in state else {}
        parser = StampedLines({name: state[name] for name in CURSOR_KEYS if name in state})
        tail = RESUMED_LINES if parser.since else None
        answer = self._cluster.follow_log(pod.name, CONTAINER, parser.since, tail=tail)
        if answer is None:
            return None
        return LogStream(
            answer,
            parser,
            host=self._cluster.url,
            cursor_of=lambda after: {**attempt.key, **after, **kept},
            attempt=attempt.number,
            on_refused=lambda: self._refused_until.update({pod.node: time.monotonic() + _REFUSED_S}),
        )


def _attempt(pod: Pod, containers: Sequence[str]) -> Attempt[Pod]:
    key = {"at": [pod.app_attempt, pod.attempt, pod.disruptions], "uid": pod.uid}
    others = [one for one in pod.others if one.name in containers]
    is_over = pod.over or (pod.exit_code is not None and not others)
    has_log = pod.has_started or any(one.has_started for one in others)
    return Attempt(pod, key, pod.number, has_log=has_log, is_over=is_over)


def _entered(attempts: Sequence[Attempt[Pod]], state: Mapping[str, Any]) -> Attempt[Pod] | None:
    """Return the new attempt with which a read starts; None if it continues the cursor's attempt, or has none."""
    for attempt in unread_attempts(attempts, state):
        if attempt.has(state):
            return None
        if attempt.has_log or not attempt.is_over:
            return attempt if attempt.has_log else None
    return None


def _is_lost(pods: Sequence[Pod], state: Mapping[str, Any], pod: Pod) -> bool:
    """Return whether the pod before this one was removed before all its lines were read."""
    if state.get("uid"):
        return not state.get("done") and state["uid"] not in {one.uid for one in pods}
    earlier = [one for one in pods if one.app_attempt == pod.app_attempt and one.order < pod.order]
    return bool(pod.attempt + pod.disruptions) and not earlier


_NO_WATCHERS = "too many open files"
_CURE = "raise fs.inotify.max_user_instances on the node"


class StampedLines:
    """Lines of a followed log from `cursor` on, see `LineParser`."""

    def __init__(self, cursor: Mapping[str, Any]) -> None:
        self._reader = LineReader(cursor)
        self._splitter = LineSplitter()

    @property
    def since(self) -> str | None:
        """The time to request lines from, in whole seconds; None for all lines."""
        return self._reader.since

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete."""
        lines: list[LogLine] = []
        self._reader.take(iter(self._splitter.feed(data)), lines, sys.maxsize)
        return lines

    def is_positioned(self) -> bool:
        """Whether the position to continue from was found."""
        return not self._reader.seeking

    def cursor(self) -> dict[str, Any]:
        """Return the position after the last line returned."""
        return self._reader.cursor()

    def refusal(self) -> str:
        """Return the node's error message at the end of the log: text without a time and a line feed."""
        text = self._splitter.rest
        if not text or self._reader.within or STAMP.match(text) or not self.is_positioned():
            return ""
        message = " ".join(text[:300].decode("utf-8", "replace").split())
        if not message.startswith("failed to "):
            return ""  # the rest of a line that was cut off
        return f"{message}; {_CURE}" if _NO_WATCHERS in message else message
