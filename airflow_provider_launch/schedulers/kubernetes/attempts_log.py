"""The log of a replica: those of the pods of all its attempts, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.attempt_logs import Attempt, AttemptRead, read_attempts, unread_attempts
from airflow_provider_launch.schedulers.api import LogChunk
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.log_reader import CURSOR_KEYS, RESUMED_LINES, LogReader
from airflow_provider_launch.schedulers.kubernetes.log_stream import StampedLines
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER
from airflow_provider_launch.schedulers.kubernetes.objects import Pod
from airflow_provider_launch.schedulers.log_streams import LogStream

__all__ = ["AttemptsLog"]

_REFUSED_S = 600.0
"""For how long no log of a node is followed that has no watchers left: all pods of a node share them."""
_SETTLE_S = 2.0
"""How long after the end of a program, which is reported in whole seconds, its node may still write lines of it."""


class AttemptsLog:
    """Reads logs of the apps of one namespace. The cursor is that of one pod, with `"at"` and `"uid"`: which it is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reader = LogReader(cluster)
        self._refused_until: dict[str, float] = {}
        """Node to a time of `time.monotonic`."""

    def close(self) -> None:
        """Close the answers that are kept open."""
        self._reader.close()

    def read(self, pods: list[Pod], state: dict[str, Any], now: float) -> LogChunk:
        """Return the next lines of a replica.

        Args:
            pods: of the replica, in the order of its attempts.
            state: where an earlier read left off.
            now: epoch seconds by the server's clock.
        """

        def read_one(attempt: Attempt[Pod], state: Mapping[str, Any]) -> AttemptRead:
            pod = attempt.source
            settles_in_s = max(0.0, min(_SETTLE_S, pod.finished + _SETTLE_S - now)) if pod.finished else 0.0
            chunk = self._reader.read(pod.name, pod.uid, state, complete=attempt.is_over, settles_in_s=settles_in_s)
            return AttemptRead(chunk.lines, chunk.cursor)

        return read_attempts(map(_attempt, pods), state, read_one)

    def stream(self, pods: list[Pod], state: Mapping[str, Any]) -> LogStream | None:
        """Return the log of the attempt in which the cursor stands, if it runs and goes on from there."""
        for attempt in unread_attempts(map(_attempt, pods), state):
            if attempt.has_log or not attempt.is_over:
                # What is left of an earlier attempt is read first.
                is_running = attempt.has_log and not attempt.is_over
                return self._stream_of(attempt, state if attempt.has(state) else {}) if is_running else None
        return None

    def _stream_of(self, attempt: Attempt[Pod], state: Mapping[str, Any]) -> LogStream | None:
        pod = attempt.source
        if time.monotonic() < self._refused_until.get(pod.node, 0.0):
            return None
        parser = StampedLines({name: state[name] for name in CURSOR_KEYS if name in state})
        tail = RESUMED_LINES if parser.since else None
        answer = self._cluster.follow_log(pod.name, CONTAINER, parser.since, tail=tail)
        if answer is None:
            return None
        return LogStream(
            answer,
            parser,
            host=self._cluster.url,
            cursor_of=lambda after: {**attempt.key, **after},
            attempt=attempt.number,
            on_refused=lambda: self._refused_until.update({pod.node: time.monotonic() + _REFUSED_S}),
        )


def _attempt(pod: Pod) -> Attempt[Pod]:
    key = {"at": [pod.app_attempt, pod.attempt, pod.disruptions], "uid": pod.uid}
    is_over = pod.over or pod.exit_code is not None
    return Attempt(pod, key, pod.app_attempt + pod.attempt, has_log=pod.began, is_over=is_over)
