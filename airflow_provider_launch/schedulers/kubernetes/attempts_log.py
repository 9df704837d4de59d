"""The log of a replica: those of the pods of all its attempts, one after the other."""

from __future__ import annotations

from typing import Any

from airflow_provider_launch.schedulers.api import LogChunk
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.log_reader import LogReader
from airflow_provider_launch.schedulers.kubernetes.objects import Pod

__all__ = ["AttemptsLog"]

_SETTLE_S = 2.0
"""How long after the end of a program, which is told in whole seconds, its node may still write lines of it."""


class AttemptsLog:
    """Reads logs of the apps of one namespace. The cursor is that of one pod, with `"at"` and `"uid"`: which it is."""

    def __init__(self, cluster: Cluster) -> None:
        self._reader = LogReader(cluster)

    def close(self) -> None:
        """Close the answers that are kept open."""
        self._reader.close()

    def read(self, pods: list[Pod], state: dict[str, Any], now: float) -> tuple[LogChunk, bool]:
        """Return the next lines of a replica, and whether a newer list of pods could not bring more.

        Args:
            pods: of the replica, in the order of its attempts.
            state: where an earlier read left off.
            now: epoch seconds by the server's clock.
        """
        lines: list[Any] = []
        certain = False
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
            chunk = self._reader.read(
                pod.name, pod.uid, state, complete=ended, settles_in_s=settles_in_s, leads=pod.replica == 0
            )
            state = {"at": at, "uid": pod.uid, **chunk.cursor}
            attempt = pod.app_attempt + pod.attempt
            lines = [line._replace(attempt=attempt) for line in chunk.lines] if attempt else chunk.lines
            certain = chunk.live
            if lines or not ended:
                break
        return LogChunk(lines, state or None), certain
