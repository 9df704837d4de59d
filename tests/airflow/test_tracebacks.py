"""The reason of a failure in the error of a task: the last traceback, whatever is written after it."""

from __future__ import annotations

import json
import logging

import pytest

from airflow_provider_launch._task import tracebacks
from airflow_provider_launch._task.outcome import as_xcom, error_line, failure
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch._task.tracebacks import LastTraceback, divided, error_in, joined
from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.schedulers.api import DescribeAppResponse, LogLine, Stream
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus

TRACE = [
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    train()",
    "    ~~~~~^^",
    "ValueError: loss is NaN",
]
TORCHRUN = [
    "Traceback (most recent call last):",
    '  File "/usr/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "============================================================",
    "train.py FAILED",
    *(f"  row {n}: <N/A>" for n in range(12)),
]
PEERS = [TRACE[0], "  File x", "RuntimeError: Connection closed by peer"]


def log_of(*lines: str, attempt: int = 0, progress: FollowProgress | None = None) -> TaskLog:
    log = TaskLog(logging.getLogger("app"), "x", progress or FollowProgress())
    add(log, *lines, attempt=attempt)
    return log


def add(log: TaskLog, *lines: str, attempt: int = 0) -> None:
    log.write_event(LogLines("t", 0, [LogLine(f"{line}\n", Stream.STDERR, attempt=attempt) for line in lines]))


@pytest.mark.parametrize(
    "lines",
    [
        [*TRACE, *TORCHRUN],
        [f"[rank1]: {line}" for line in TRACE] + TORCHRUN,
        [f"[default0]:{line}" for line in TRACE] + [f"wandb: {n}" for n in range(15)],
        [*PEERS, *TRACE, *TORCHRUN],
        [*TRACE, *PEERS, *(f"line {n}" for n in range(15))],
        # Two ranks write at the same time.
        [text for line in TRACE for text in (f"[rank0]: {line}", "[rank1]:   File y")] + TORCHRUN,
    ],
    ids=["torchrun", "ranks", "wandb", "peers before", "peers after", "mixed"],
)
def test_the_traceback_comes_before_the_last_lines(lines: list[str]) -> None:
    tail = log_of(*lines).tails["t/0"]

    assert tail[: len(TRACE) + 1] == [*TRACE, "..."]
    assert tail[len(TRACE) + 1 :] == lines[-10:]
    assert error_in(tail) == "ValueError: loss is NaN"


@pytest.mark.parametrize("before", [["step 1"], []], ids=["after a line", "alone"])
def test_a_traceback_at_the_end_is_not_shown_twice(before: list[str]) -> None:
    assert log_of(*before, *TRACE).tails["t/0"] == [*before, *TRACE]


def test_a_traceback_is_shown_although_the_last_lines_have_its_head_and_its_error() -> None:
    """A library logs the error once more, without its frames."""
    again = [TRACE[0], "  (frames are in the log file)", TRACE[-1]]
    tail = ["wandb: 1", "wandb: 2", "wandb: 3", *again]

    assert joined(TRACE, tail) == [*TRACE, "...", *tail]


def test_lines_without_a_traceback_stay_the_last_ten() -> None:
    assert log_of(*map(str, range(20))).tails["t/0"] == [*map(str, range(10, 20))]


def test_a_long_traceback_keeps_the_frames_next_to_the_error() -> None:
    frames = [f"  File f{n}" for n in range(100)]
    tail = log_of(TRACE[0], *frames, "ValueError: x", *(f"wandb: {n}" for n in range(10))).tails["t/0"]

    assert tail[0] == TRACE[0]
    assert tail[tail.index("...") - 3 : tail.index("...")] == ["  File f98", "  File f99", "ValueError: x"]
    assert tail.index("...") <= 26


def test_last_lines_and_traceback_are_those_of_the_last_attempt() -> None:
    log = log_of("old", *TRACE)
    add(log, "new", attempt=1)

    assert log.tails["t/0"] == ["new"]


def test_another_part_of_the_task_keeps_the_traceback() -> None:
    """A trigger sends its last lines to the worker."""
    first = log_of(*TRACE, *(f"wandb: {n}" for n in range(15)))
    other = log_of("one more", progress=FollowProgress.from_json(FollowProgress(tails=first.tails).to_json()))

    assert other.tails["t/0"] == [*TRACE, "...", *(f"wandb: {n}" for n in range(6, 15)), "one more"]
    assert divided(joined(TRACE, ["a"])) == (TRACE, ["a"])
    assert divided(["a", "...", "b"]) == ([], ["a", "...", "b"])


def test_only_chosen_replicas_are_shown_but_all_have_last_lines(caplog) -> None:
    caplog.set_level(logging.INFO)
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress(), replicas=[1])
    for k in range(2):
        log.write_event(LogLines("t", k, [LogLine(f"line of {k}\n", Stream.STDOUT)]))

    assert [text for text in caplog.messages if "line of" in text] == ["[t/1] line of 1"]
    assert log.tails == {"t/0": ["line of 0"], "t/1": ["line of 1"]}


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-01-01 00:00:00 INFO trainer: started", "INFO"),
        ("WARNING:root:slow", "WARNING"),
        ("[rank0]: Traceback (most recent call last):", "ERROR"),
        ("E0101 12:00:00.000000 1 torch/x.py:1] failed", "ERROR"),
        ("W0101 12:00:00.000000 1 torch/x.py:1] slow", "WARNING"),
        ("100%|#####| 10/10", "INFO"),
        ("an ERRORS file", "INFO"),
    ],
)
def test_the_level_may_come_from_the_line(line: str, level: str, caplog) -> None:
    caplog.set_level(logging.INFO)
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress(), stderr_level="line")
    log.write_event(LogLines("t", 0, [LogLine(f"{line}\n", Stream.STDERR)]))

    assert [record.levelname for record in caplog.records if line in record.getMessage()] == [level]


# ---- the error -------------------------------------------------------------------------------------------------------


def replica(k: int, message: str = "", at: float = 0, **fields) -> ReplicaStatus:
    reply = {"structured_error_msg": json.dumps({"message": message, "timestamp": at})} if message else {}
    return ReplicaStatus(k, fields.pop("state", AppState.FAILED), "t", "", **{"exit_code": 1, **reply, **fields})


def response(*replicas: ReplicaStatus, msg: str = "", state: AppState = AppState.FAILED) -> DescribeAppResponse:
    return DescribeAppResponse("x", state, msg=msg, roles_statuses=[RoleStatus("t", [*replicas])])


def test_the_cause_comes_first_and_consequences_are_marked() -> None:
    failed = response(replica(0), replica(1), msg="t/0 failed: exit code 1")
    text = str(failure("local://s/x", failed, {"t/0": [*PEERS], "t/1": [*TRACE]}))

    assert text.startswith(
        "role 't' replica 1 exited with code 1; after it: t/0 exited with code 1 (a consequence: it "
    )
    assert text.endswith("ValueError: loss is NaN")


@pytest.mark.parametrize(
    ("found", "tails", "line"),
    [
        (response(replica(0), replica(1)), {"t/0": PEERS, "t/1": TRACE}, "t/1: ValueError: loss is NaN"),
        (
            response(replica(0), replica(1), msg="t/0 failed: exit code 1"),
            {"t/0": PEERS, "t/1": TRACE},
            "t/1: ValueError: loss is NaN",
        ),
        # The scheduler has stopped the replica that failed first.
        (
            response(replica(0), replica(1, TRACE[-1], state=AppState.CANCELLED), msg="t/0 failed: exit code 1"),
            {"t/0": PEERS},
            "t/1: ValueError: loss is NaN",
        ),
        (response(replica(0, "out of memory\nmore")), {"t/0": TRACE}, "t/0: out of memory"),
        (
            response(replica(0, exit_code=137)),
            {},
            "t/0 exited with code 137 (SIGKILL; its memory may have run out)",
        ),
        (response(replica(0), msg="t/0 failed: exit code 1"), {"t/0": ["bye"]}, "t/0 exited with code 1"),
        (response(replica(0), msg="time limit of 3 s reached"), {"t/0": TRACE}, "time limit of 3 s reached"),
        (
            response(replica(0, state=AppState.CANCELLED), msg="hangs: t/0", state=AppState.CANCELLED),
            {"t/0": TRACE},
            "hangs: t/0",
        ),
        (response(msg="gone"), {}, "gone"),
        (response(), {}, "FAILED"),
    ],
)
def test_the_outcome_has_the_reason_in_one_line(found, tails, line) -> None:
    """A task that compares trials must tell out-of-memory from NaN."""
    assert error_line(found, tails) == line
    assert as_xcom("h", found, error=line)["error"] == line


def test_the_outcome_of_a_success_has_no_error() -> None:
    assert "error" not in as_xcom("h", response(state=AppState.SUCCEEDED))


def test_what_comes_before_a_traceback_is_kept_only_if_it_is_short() -> None:
    """A line of 16 MB before each traceback stayed in memory until the app ended."""
    found = LastTraceback()
    for line in ("x" * 1_000_000 + tracebacks.HEAD, "x" * 1_000_000 + "ValueError: a"):
        found.add(line, str)
    assert found.lines == []

    for line in (f"[rank0]: {tracebacks.HEAD}", "[rank0]: ValueError: a"):
        found.add(line, str)
    assert found.lines == [tracebacks.HEAD, "ValueError: a"]


def test_errors_are_searched_only_when_a_traceback_is_asked_for(monkeypatch) -> None:
    """Thousands of tracebacks per second would delay the logs of all other apps."""
    searched: list[str] = []
    search = tracebacks.lost_its_peers
    monkeypatch.setattr(tracebacks, "lost_its_peers", lambda text: searched.append(text) or search(text))
    found = LastTraceback()
    for error in ("ValueError: the cause", *["RuntimeError: Connection closed by peer"] * 1000):
        found.add(tracebacks.HEAD, str)
        found.add(error, str)

    assert searched == []
    assert found.lines[-1] == found.lines[-1] == "ValueError: the cause"
    assert len(searched) <= 4


def test_a_program_that_writes_tracebacks_without_end_takes_little_memory() -> None:
    found = LastTraceback()
    for number in range(100):
        for line in [*TRACE[:-1], f"ValueError: {number}"]:
            found.add(line, str)
    assert len(found._found) <= 4
    for line in [TRACE[0], *["  File x"] * 1000]:
        found.add(line, str)

    assert len(found._open or []) <= 25
