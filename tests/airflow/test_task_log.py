"""The task log around the lines of the app: request, states, progress, summary, error."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from airflow_provider_launch._task import task_log
from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.silence import SilenceLimit
from airflow_provider_launch._task.task_log import TaskLog, duration
from airflow_provider_launch.follow.events import Ended, LogLines, Progress, StateChanged
from airflow_provider_launch.follow.state_tracker import StateTracker
from airflow_provider_launch.schedulers.api import DescribeAppResponse, LogLine, Stream
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus
from airflow_provider_launch.triggers.pump import LogPump
from tests.airflow.guarantees import deferred
from tests.airflow.support import FakeExecutionApi, launch, logged, rendered, run_task, run_to_end, run_trigger, sh

FOLD = "::group::all is well"
in_modes = pytest.mark.parametrize("deferrable", [False, True])


def about_the_app(ran: Any) -> list[str]:
    """The lines of the app and about it, in order, without its name."""
    begun = [line.startswith("launched ") for line in ran.lines].index(True)
    lines = [line for line in ran.lines[begun:] if line.startswith(("[worker/", "app "))]
    return [line if line.startswith("[") else line.partition(": ")[2] for line in lines]


@in_modes
def test_text_of_the_app_folds_nothing(deferrable: bool) -> None:
    """In an argument it folded the whole log, in a last line the error."""
    script = f"echo '{FOLD}'; exit 3"
    ran, _ = run_to_end(launch(sh(script), deferrable=deferrable), FakeExecutionApi())
    texts = [*ran.lines, str(ran.error)]

    assert not [text for text in texts if FOLD in text]
    assert "::group::Request to scheduler local" in ran.lines
    # One is Airflow's.
    assert not {line for line in ran.lines if "::group::" in line} - {
        "::group::Request to scheduler local",
        "::group::Post Execute",
    }
    assert "exited with code 3" in str(ran.error)


@in_modes
def test_the_states_of_a_short_app_stand_around_its_lines(deferrable: bool) -> None:
    """It has ended before anybody asks; its lines must not seem to come after its end."""
    ran, _ = run_to_end(launch(sh("echo one; echo two"), deferrable=deferrable), FakeExecutionApi())
    found = about_the_app(ran)
    # It may have been polled before it ran.
    while "RUNNING" not in found[0] and found[0].startswith(("PENDING", "SUBMITTED")):
        del found[0]

    assert found[0].endswith("RUNNING")
    assert found[1:3] == ["[worker/0] one", "[worker/0] two"]
    assert found[3] == "RUNNING -> SUCCEEDED"
    assert found[4].startswith("ended as SUCCEEDED after ")
    assert found[4].endswith("exit codes: worker: 0; attempts: 1")


def test_no_line_is_logged_before_its_state(engine, api, monkeypatch) -> None:
    """One thread learns the state and another writes the lines, which may be faster."""
    plain = LogPump.wake

    def wake(pump: LogPump, feed: Any) -> None:
        plain(pump, feed)
        if threading.current_thread().name.startswith("launch-status"):
            time.sleep(0.3)

    monkeypatch.setattr(LogPump, "wake", wake)
    trigger, _ = deferred(launch(sh("true"), launch_conn_id="cluster", deferrable=True), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING, "worker/1 is paused")
    engine.write(app_id, "worker", 0, "one\n")
    engine.on_read = lambda app_id, _role, _k: engine.state(app_id, AppState.SUCCEEDED)
    with logged() as entries:
        run_trigger(trigger)

    lines = [line for line in map(rendered, entries) if line.startswith(("app ", "[worker/"))]
    assert lines[0].endswith("RUNNING (worker/1 is paused)")
    assert lines[1] == "[worker/0] one"


@in_modes
def test_a_failure_is_an_error_that_starts_with_its_cause(deferrable: bool) -> None:
    ran, _ = run_to_end(launch(sh("exit 3", num_replicas=2), deferrable=deferrable), FakeExecutionApi())
    failed = [entry["level"] for entry in ran.log if "-> FAILED" in rendered(entry)]

    assert failed == ["error"]
    assert str(ran.error).startswith("role 'worker' replica ")
    assert "exited with code 3" in str(ran.error).partition(";")[0]


def test_a_killed_replica_names_its_signal_once() -> None:
    ran = run_task(launch(sh("kill -9 $$$$")), FakeExecutionApi())

    assert str(ran.error).count("SIGKILL") == 1
    assert "memory may have run out" in str(ran.error)


def test_attempts_are_counted_as_the_variable_counts_them() -> None:
    ran = run_task(launch(sh("echo try $LAUNCH_ATTEMPT; exit 1", max_retries=1)), FakeExecutionApi())

    assert [line for line in ran.lines if line.startswith("[worker/0]")] == [
        "[worker/0] try 0",
        "[worker/0] --- attempt 0 ended: exit code 1 ---",
        "[worker/0] --- attempt 1 ---",
        "[worker/0] try 1",
    ]
    assert "(attempt 1" in str(ran.error)
    assert ran.logged("attempts: 2")


@in_modes
def test_a_progress_bar_is_shown_before_its_line_ends(deferrable) -> None:
    """The newest text within two seconds, and the last one when the line is whole: in both modes."""
    script = r"printf '10%%\r20%%\r'; sleep 5; printf '100%%\r\n'; sleep 0.3"
    ran, _ = run_to_end(launch(sh(script), deferrable=deferrable), FakeExecutionApi())

    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0 ...] 20%", "[worker/0] 100%"]


@in_modes
def test_a_long_bar_is_its_last_text(deferrable) -> None:
    """A progress bar of hours is a line of megabytes, of which only the end matters."""
    program = "import sys; sys.stdout.write(''.join(f'\\r{n} of 40000' for n in range(40001)) + '\\n')"
    ran, _ = run_to_end(launch(sh(f'python3 -c "{program}"; sleep 0.6'), deferrable=deferrable), FakeExecutionApi())

    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] 40000 of 40000"]


# ---- without an app --------------------------------------------------------------------------------------------------


def response(state: AppState, *states: AppState, codes: tuple[int | None, ...] = ()) -> DescribeAppResponse:
    replicas = [ReplicaStatus(k, each, "worker", "host") for k, each in enumerate(states)]
    for replica, code in zip(replicas, codes, strict=False):
        replica.exit_code = code
    return DescribeAppResponse("x", state, num_restarts=0, roles_statuses=[RoleStatus("worker", replicas)])


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "app")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "app"]


@pytest.fixture
def log() -> TaskLog:
    return TaskLog(logging.getLogger("app"), "x", FollowProgress())


RUNNING = response(AppState.RUNNING, AppState.RUNNING, AppState.RUNNING, AppState.PENDING)


def test_progress_is_written_only_where_nothing_else_is(log: TaskLog, written: Any, monkeypatch: Any) -> None:
    log.write_event(StateChanged(None, AppState.RUNNING, RUNNING))
    log.write_event(Progress(RUNNING))
    assert written() == ["app x: RUNNING (2 of 3 running)"]

    monkeypatch.setattr(task_log, "PROGRESS_S", 0)
    log.write_event(Progress(RUNNING))

    assert written()[1:] == ["app x: RUNNING, 2 of 3 replicas running, 0 s"]


def test_events_of_a_running_app_are_written_once(log: TaskLog, written: Any) -> None:
    paused = response(AppState.RUNNING, AppState.RUNNING)
    paused.msg = "worker/0 is paused"
    tracker = StateTracker("x", unavailable_for_s=60, known=True)
    answers = (RUNNING, paused, paused, RUNNING, RUNNING)
    events = [event for answer in answers for event in tracker.learn(answer).events]
    for event in events:
        log.write_event(event)
        log.write_event(event)

    # Not only the log drops what repeats: the tracker reports it once.
    assert len(events) == 3
    some = "app x: RUNNING (2 of 3 running)"
    assert written() == [some, "app x: RUNNING (worker/0 is paused)", some]


@pytest.mark.parametrize("state", [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED])
def test_the_end_stands_behind_the_last_line(log: TaskLog, written: Any, state: AppState) -> None:
    ended = response(state, state, codes=(1,))
    log.write_event(StateChanged(None, state, ended))
    log.write_event(LogLines("worker", 0, [LogLine("bye\n", Stream.STDOUT)]))
    log.write_event(Ended(ended, {}))

    assert written()[0] == "app x: RUNNING"
    assert written()[-2] == f"app x: RUNNING -> {state}"
    assert written()[-1].startswith(f"app x: ended as {state} after 0 s; exit codes: worker: 1; attempts: 1")


def test_a_state_line_shows_how_many_replicas_run(log: TaskLog, written: Any) -> None:
    some = response(AppState.RUNNING, AppState.RUNNING, AppState.RUNNING, AppState.PENDING)
    log.write_event(StateChanged(None, AppState.RUNNING, some))
    some.msg = "worker/1 is paused"
    log.write_event(StateChanged(AppState.RUNNING, AppState.RUNNING, some))

    assert written() == ["app x: RUNNING (2 of 3 running)", "app x: RUNNING (2 of 3 running, worker/1 is paused)"]


def test_the_duration_is_that_of_the_app(log: TaskLog, written: Any) -> None:
    """A sensor may come hours after the end."""
    ended = response(AppState.SUCCEEDED, AppState.SUCCEEDED, AppState.SUCCEEDED, codes=(0, 0))
    for replica, (start, end) in zip(ended.roles_statuses[0].replicas, [(1000, 1100), (1020, 1125)], strict=True):
        replica.start_time, replica.end_time = start, end
    log.write_event(Ended(ended, {}))

    assert "ended as SUCCEEDED after 2 min 5 s; " in written()[-1]


def test_earlier_attempts_belong_to_the_duration(log: TaskLog, written: Any) -> None:
    """The times of the engine are those of the last attempt only."""
    log.began = time.time() - 300
    ended = response(AppState.SUCCEEDED, AppState.SUCCEEDED, codes=(0,))
    ended.num_restarts = 1
    ended.roles_statuses[0].replicas[0].start_time, ended.roles_statuses[0].replicas[0].end_time = 1000, 1010
    log.write_event(Ended(ended, {}))

    assert "after 5 min 0 s; " in written()[-1]


@in_modes
def test_the_cause_is_the_last_line_before_the_exception(deferrable: bool) -> None:
    """The page cuts long errors, and shows them below a traceback."""
    ran, _ = run_to_end(launch(sh("exit 3"), deferrable=deferrable), FakeExecutionApi())
    errors = [rendered(entry) for entry in ran.log if entry["level"] == "error"]

    assert str(ran.error).partition("\n")[0] in errors
    assert "\n" not in next(text for text in errors if "exited with code 3" in text)


def test_the_cause_of_a_refusal_is_a_line_too() -> None:
    ran = run_task(launch(sh("true"), cfg={"rot": 1}), FakeExecutionApi())

    assert any("unknown option 'rot'" in rendered(entry) for entry in ran.log if entry["level"] == "error")


def test_an_app_that_never_ran_is_not_shown_as_running(log: TaskLog, written: Any) -> None:
    never = response(AppState.FAILED, AppState.FAILED)
    log.write_event(StateChanged(None, AppState.FAILED, never))
    log.write_event(Ended(never, {}))

    assert written()[0] == "app x: FAILED"


def test_written_lines_are_not_repeated_by_the_next_part(written: Any) -> None:
    ended = response(AppState.SUCCEEDED, AppState.SUCCEEDED, codes=(0,))
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress(state="SUCCEEDED"))
    log.write_event(StateChanged(None, AppState.SUCCEEDED, ended))
    log.write_event(Ended(ended, {}))

    assert written() == []


@pytest.mark.parametrize("max_bytes", [None, 1], ids=["all", "within a limit"])
def test_an_app_whose_lines_come_is_not_silent(max_bytes: int | None) -> None:
    """Also if its lines are not shown, because its log is longer than the limit."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress(), limit=LogLimit(max_bytes))
    silence = SilenceLimit(60.0, log)
    silence._since = log.last_line_at = time.monotonic() - 100
    assert "no replica has written a line for 60 s" in silence.exceeded(None, RUNNING)
    log.write_event(LogLines("worker", 0, [LogLine("step 1\n", Stream.STDOUT)] * 3))
    assert silence.exceeded(None, RUNNING) == ""


def test_exit_codes_of_many_replicas_are_counted(log: TaskLog, written: Any) -> None:
    ended = response(AppState.FAILED, *[AppState.FAILED] * 64, codes=(0,) * 62 + (1, 1))
    log.write_event(Ended(ended, {}))

    assert "worker: 62 x 0, 2 x 1;" in written()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (125, "2 min 5 s"), (3600, "1 h 0 min"), (90_061, "25 h 1 min")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
