"""The log of a replica: those of the pods of all its attempts, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

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
        lines: list[Any] = []
        for pod in pods:
            at = [pod.app_attempt, pod.attempt, pod.disruptions]
            if state.get("at") and at < list(state["at"]):
                continue
            if state.get("at") != at or state.get("uid") != pod.uid:
                if not pod.began:
                    if pod.over:
                        continue  # refused by its node, or an init container failed: it has no log, and the next may
                    break
                state = {"at": at, "uid": pod.uid}
            if state.get("done"):
                continue
            ended = pod.over or pod.exit_code is not None
            settles_in_s = max(0.0, min(_SETTLE_S, pod.finished + _SETTLE_S - now)) if pod.finished else 0.0
            chunk = self._reader.read(pod.name, pod.uid, state, complete=ended, settles_in_s=settles_in_s)
            state = {"at": at, "uid": pod.uid, **chunk.cursor}
            attempt = pod.app_attempt + pod.attempt
            lines = [line._replace(attempt=attempt) for line in chunk.lines] if attempt else chunk.lines
            if lines or not ended:
                break
        return LogChunk(lines, state or None)

    def stream(self, pods: list[Pod], state: Mapping[str, Any]) -> LogStream | None:
        """Return the log of the attempt in which the cursor stands, if it runs and goes on from there."""
        for pod in pods:
            at = [pod.app_attempt, pod.attempt, pod.disruptions]
            if state.get("at") and at < list(state["at"]):
                continue
            is_here = state.get("at") == at and state.get("uid") == pod.uid
            if is_here and state.get("done"):
                continue
            if not pod.began and pod.over:
                continue
            # What is left of an earlier attempt is read first.
            is_running = pod.began and not pod.over and pod.exit_code is None
            return self._stream_of(pod, at, state if is_here else {}) if is_running else None
        return None

    def _stream_of(self, pod: Pod, at: list[int], state: Mapping[str, Any]) -> LogStream | None:
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
            cursor_of=lambda after: {"at": at, "uid": pod.uid, **after},
            attempt=pod.app_attempt + pod.attempt,
            on_refused=lambda: self._refused_until.update({pod.node: time.monotonic() + _REFUSED_S}),
        )
