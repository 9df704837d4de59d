"""Every argument of the operator has the same effect whether a worker or the triggerer waits."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import DeferTask

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, AppState
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import USER_ACTION, FakeExecutionApi, Ran, run_task, run_to_end, run_trigger, sh
from tests.airflow.support import launch as launch_task
from tests.airflow.versions import deserialize
from tests.support.fake_scheduler import FakeEngine

TWO_STREAMS = "echo out; echo err >&2; sleep 0.6"


@dataclass
class Case:
    """One argument with a value that shows."""

    argument: str
    kwargs: dict[str, Any]
    script: str = TWO_STREAMS
    roles: int = 1
    replicas: int = 1
    looks: Callable[[Ran, FakeExecutionApi], Any] = field(default=lambda ran, _api: shown(ran))
    expected: Any = None


def shown(ran: Ran) -> list[str]:
    """The lines of replicas, whatever their order between streams and roles."""
    return sorted(line for line in ran.lines if line.startswith("["))


def state(ran: Ran, _api: FakeExecutionApi) -> str:
    return ran.state


def result(ran: Ran, api: FakeExecutionApi) -> Any:
    value = dict(api.xcoms["t", "return_value"])
    return {**value, "handle": str(value["handle"]).partition("://")[0]}


CASES = [
    Case("app", {"app": AppDef("other", [sh("echo hi; sleep 0.5", name="only")])}, expected=["[only/0] hi"]),
    Case("launch_conn_id", {"launch_conn_id": "launch_local_default"}, looks=result),
    Case("cfg", {"cfg": {"copy_env": ["PARITY_*"]}}, script="echo $PARITY_X; sleep 0.5", expected=["[worker/0] seen"]),
    Case("wait", {"wait": False}, script="sleep 2", looks=lambda _ran, api: api.xcoms["t", "return_value"]["state"]),
    Case("streams", {"streams": "stderr"}, expected=["[worker/0] err"]),
    Case("log_roles", {"log_roles": ["worker-1"]}, roles=2, expected=["[worker-1/0] err", "[worker-1/0] out"]),
    Case("log_roles", {"log_roles": []}, expected=[]),
    Case(
        "log_replicas",
        {"log_replicas": [1]},
        replicas=2,
        script="echo $LAUNCH_REPLICA_ID; sleep 0.6",
        looks=lambda ran, _: [line for line in ran.lines if line.startswith("[")],
        expected=["[worker/1] 1"],
    ),
    Case("stderr_level", {"stderr_level": "info"}, looks=lambda ran, _: levels(ran), expected=["info", "info"]),
    Case(
        "stderr_level",
        {"stderr_level": "line"},
        script="echo 'INFO a' >&2; echo 'ERROR b' >&2; sleep 0.6",
        looks=lambda ran, _: levels(ran),
        expected=["info", "error"],
    ),
    Case(
        "silence_limit_s",
        # Removed, because the second task would adopt the app of the first one, which has ended.
        {"silence_limit_s": 1.5, "on_finish": "delete"},
        script="trap 'echo stacks; exit 1' TERM; while :; do sleep 0.1; done",
        looks=lambda ran, _: (words_of_silence(ran), "[worker/0] stacks" in shown(ran)),
        expected=(
            "hangs: no replica has written a line for 1.5 s (silence_limit_s); still running: worker/0",
            True,
        ),
    ),
    Case(
        "checkpoint_dir",
        {"checkpoint_dir": "/tmp/{{ dag.dag_id }}"},
        script="echo $LAUNCH_CHECKPOINT_DIR $LAUNCH_TRY; sleep 0.6",
    ),
    Case(
        "max_log_bytes",
        {"max_log_bytes": 200},
        script="seq 1 1000; sleep 0.6",
        looks=lambda ran, _: [line for line in ran.lines if line.startswith("[")],
        expected=[
            *(f"[worker/0] {number}" for number in range(1, 37)),
            "[worker/0] --- max_log_bytes=200: the last lines follow when the app has ended ---",
            "[worker/0] --- max_log_bytes=200: 940 lines, 3697 bytes, are not shown here ---",
            *(f"[worker/0] {number}" for number in range(977, 1001)),
        ],
    ),
    Case(
        "time_limit_s", {"time_limit_s": 1}, script="sleep 30", looks=lambda ran, _api: "time limit" in str(ran.error)
    ),
    Case("skip_on_exit_code", {"skip_on_exit_code": [9]}, script="sleep 0.5; exit 9", looks=state, expected="skipped"),
    Case("skip_on_exit_code", {"skip_on_exit_code": 8}, script="sleep 0.5; exit 9", looks=state, expected="failed"),
    Case("result", {}, script="echo '{\"n\": 1}' > $LAUNCH_RESULT_PATH; sleep 0.5", looks=result),
    Case(
        "results",
        {"results": "all"},
        script="echo '{\"n\": 1}' > $LAUNCH_RESULT_PATH; sleep 0.5",
        looks=result,
    ),
    Case(
        "result",
        {},
        script="echo nope > $LAUNCH_RESULT_PATH; sleep 0.5",
        looks=lambda ran, _: "not JSON" in str(ran.error),
    ),
    Case("failure", {}, script="echo last words; sleep 0.5; exit 3", looks=lambda ran, _: words(ran)),
    Case(
        "retry",
        {},
        script="echo $LAUNCH_ATTEMPT; sleep 0.3; [ $LAUNCH_ATTEMPT = 1 ]",
        looks=lambda ran, _: attempts(ran),
        expected=[
            "[worker/0] 0",
            "[worker/0] --- attempt 0 ended: exit code 1 ---",
            "[worker/0] --- attempt 1 ---",
            "[worker/0] 1",
        ],
    ),
]


def words(ran: Ran) -> str:
    return str(ran.error).partition(": role")[2]


def words_of_silence(ran: Ran) -> str:
    return str(ran.error).partition("; role")[0]


def levels(ran: Ran) -> list[str]:
    return [record["level"] for record in ran.log if str(record["event"]).startswith("[worker")]


def attempts(ran: Ran) -> list[str]:
    return [line for line in ran.lines if line.startswith("[")]


def run(case: Case, *, deferrable: bool) -> Any:
    roles = [sh(case.script, num_replicas=case.replicas)]
    if case.roles > 1:
        roles = [sh(case.script, name=f"worker-{number}") for number in range(case.roles)]
    if case.argument == "retry":
        roles = [sh(case.script, max_retries=1)]
    api = FakeExecutionApi()
    ran, events = run_to_end(launch_task(*roles, deferrable=deferrable, **case.kwargs), api)
    assert len(events) == (1 if deferrable and case.argument != "wait" else 0)
    return case.looks(ran, api)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.argument}={list(case.kwargs.values())}"[:60])
def test_an_argument_does_the_same_in_both_modes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_X", "seen")
    synchronous, deferred = run(case, deferrable=False), run(case, deferrable=True)

    assert synchronous == deferred
    assert case.expected is None or deferred == case.expected
    assert deferred is not False


def test_rarely_used_options_reach_the_trigger() -> None:
    wanted = {"poll_interval_s": 7.0, "unavailable_for_s": 8.0, "logs_from": "now", "on_kill": "leave"}
    ran = run_task(launch_task(sh("sleep 2"), deferrable=True, **wanted), FakeExecutionApi())
    assert isinstance(ran.msg, DeferTask)
    kwargs = deserialize(ran.msg.trigger_kwargs)

    assert {name.replace("on_kill", "kill_policy"): value for name, value in wanted.items()}.items() <= kwargs.items()


# ---- what shows only on an engine that the test drives ---------------------------------------------------------------

ON_AN_ENGINE = {"poll_interval_s", "unavailable_for_s", "on_kill", "logs_from", "start_limit_s", "on_finish"}
"""Tested below, the last two in `test_start_limit.py` and `test_on_finish.py`."""
in_modes = pytest.mark.parametrize("how", [{}, {"deferrable": True}], ids=["worker", "triggerer"])


def on_cluster(**kwargs: Any) -> Any:
    return launch_task(sh("true"), launch_conn_id="cluster", **kwargs)


def runs(engine: FakeEngine) -> None:
    """Let each app run as soon as it is launched."""
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)


# A worker asks more often for an app that has just come: after a fortieth of the interval.
@pytest.mark.parametrize(
    ("how", "interval_s", "step_s"), [({}, 8, 0.2), ({"deferrable": True}, 0.3, 0.3)], ids=["worker", "triggerer"]
)
def test_states_are_polled_as_often_as_wanted(engine, api, how, interval_s, step_s) -> None:
    """The scheduler's own interval is shorter. A slow machine polls later, and no machine earlier."""
    wanted = 8
    runs(engine)
    polls: list[float] = []

    def end_at_last(app_ids: list[str]) -> None:
        polls.append(time.monotonic())
        if len(polls) == wanted:
            engine.state(app_ids[0], AppState.SUCCEEDED)

    engine.on_describe = end_at_last
    ran, _ = run_to_end(on_cluster(poll_interval_s=interval_s, **how), api)

    assert ran.state == "success"
    # The task polls a few times more: before it launches, and when it starts to wait.
    assert polls[wanted - 1] - polls[0] > (wanted - 4) * step_s


@in_modes
@pytest.mark.parametrize(("limit_s", "state"), [(0.3, "failed"), (60, "success")])
def test_an_outage_lasts_as_long_as_it_may(engine, api, how, limit_s, state) -> None:
    runs(engine)
    polled: list[str] = []

    def go_away(app_ids: list[str]) -> None:
        if polled == app_ids and engine.apps[app_ids[0]].state is AppState.RUNNING:
            engine.cut()
            threading.Timer(1.5, engine.heal).start()
            threading.Timer(1.5, engine.state, (app_ids[0], AppState.SUCCEEDED)).start()
        polled[:] = app_ids

    engine.on_describe = go_away
    ran, _ = run_to_end(on_cluster(unavailable_for_s=limit_s, poll_interval_s=0.05, **how), api)

    assert ran.state == state
    assert ("and was not cancelled" in str(ran.error)) is (state == "failed")
    assert engine.cancelled == []


@pytest.mark.parametrize("policy", ["cancel", "leave"])
def test_a_task_that_is_killed_leaves_its_app_where_it_should(engine, api, monkeypatch, policy) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    runs(engine)
    killed: list[str] = []

    def kill(app_ids: list[str]) -> None:
        if not killed and engine.apps[app_ids[0]].state is AppState.RUNNING:
            killed.append(app_ids[0])
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    engine.on_describe = kill
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran, _ = run_to_end(on_cluster(on_kill=policy, poll_interval_s=0.05), api)
    finally:
        signal.signal(signal.SIGTERM, before)
    by_worker = [*engine.cancelled]
    engine.apps.clear()  # the other task launches the same id
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {"r": {"t": "failed"}}))
    asked = run_task(on_cluster(on_kill=policy, deferrable=True), FakeExecutionApi()).msg
    assert isinstance(asked, DeferTask)
    events = run_trigger(AppStatusTrigger(**deserialize(asked.trigger_kwargs)), 2.0, USER_ACTION)
    by_triggerer = engine.cancelled[len(by_worker) :]

    assert ran.state == "failed"
    assert [bool(by_worker), bool(by_triggerer)] == [policy == "cancel"] * 2
    # A busy machine may show the cancelled app's end before the trigger has left; Airflow drops that event.
    assert events == [] or policy == "cancel"


@in_modes
@pytest.mark.parametrize(
    ("logs_from", "expected"),
    [("now", ["[worker/0] new"]), ("start", ["[worker/0] old", "[worker/0] new"])],
)
def test_an_app_that_was_adopted_is_shown_from_there_on(engine, make_api, how, logs_from, expected) -> None:
    api = make_api(retries=1)
    runs(engine)
    assert isinstance(run_task(on_cluster(deferrable=True), api).msg, DeferTask)
    (app_id,) = engine.apps
    engine.write(app_id, "worker", 0, "old\n", time=time.time() - 60)
    reads: list[str] = []

    def go_on(*_: object) -> None:
        if not reads:
            threading.Timer(0.5, lambda: engine.write(app_id, "worker", 0, "new\n", time=time.time())).start()
            threading.Timer(0.6, engine.state, (app_id, AppState.SUCCEEDED)).start()
        reads.append("")

    engine.on_read = go_on
    ran, _ = run_to_end(on_cluster(logs_from=logs_from, **how), api, try_number=2)

    assert ran.state == "success"
    assert [line for line in ran.lines if line.startswith("[worker/0]")] == expected


def test_every_argument_has_a_case() -> None:
    arguments = set(inspect.signature(LaunchAppOperator.__init__).parameters) - {
        "self", "kwargs", "deferrable", "defer_after_s",  # the last two are about the other mode alone
        "component", "component_args", "workspace",  # both modes launch in the same way
        "on_start", "on_event", "on_end",  # tests/airflow/test_callbacks.py
    }  # fmt: skip

    assert arguments == ({case.argument for case in CASES} | ON_AN_ENGINE) & arguments
