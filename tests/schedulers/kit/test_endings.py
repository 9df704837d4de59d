"""The messages about ends, the same on every backend."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_reason, ending_text, failure_message

ENDS = [
    (ReplicaEnd(3), "exit code 3", None),
    (ReplicaEnd(137), "ended by SIGKILL", "SIGKILL"),
    (ReplicaEnd(255), "exit code 255", None),
    (ReplicaEnd(163), "ended by signal 35", "signal 35"),
    (ReplicaEnd(1, signal="SIGTERM"), "ended by SIGTERM", "SIGTERM"),
    (ReplicaEnd(137, out_of_memory=True), "out of memory (exit code 137)", "out of memory"),
    (ReplicaEnd(127, start_error="no such file"), "it could not be started: no such file", "no such file"),
    (ReplicaEnd(137, preempted="spot"), "preempted (spot)", "preempted (spot)"),
    (ReplicaEnd(143, note="evicted"), "ended by SIGTERM; evicted", "SIGTERM; evicted"),
    (ReplicaEnd(note="node lost"), "node lost", "node lost"),
    (ReplicaEnd(), "no reason is known", None),
]


@pytest.mark.parametrize(("end", "text", "reason"), ENDS)
def test_text_and_reason_of_an_end(end: ReplicaEnd, text: str, reason: str | None) -> None:
    assert (ending_text(end), ending_reason(end)) == (text, reason)


def test_a_reason_of_the_backend_stands_where_no_signal_does() -> None:
    assert ending_reason(ReplicaEnd(1), "stopped") == "stopped"
    assert ending_reason(ReplicaEnd(143), "stopped") == "SIGTERM"


def test_attempts_before_are_named() -> None:
    assert failure_message("main", 2, "exit code 3", 0) == "main/2 failed: exit code 3"
    assert failure_message("main", 2, "exit code 3", 1) == "main/2 failed: exit code 3 (attempt 1)"
