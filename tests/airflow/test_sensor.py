"""The sensor through the real task runner."""

from __future__ import annotations

import base64
import signal
import threading
import time
import zlib
from datetime import timedelta

import pytest
from airflow.sdk import task_group

from airflow_provider_launch._airflow import AirflowSensorTimeout, AirflowTaskTimeout
from airflow_provider_launch._task.progress import pack, unpack
from airflow_provider_launch.follow import state_tracker
from airflow_provider_launch.links.launch import SchedulerLink
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors import _run as sensor_run
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import a_dag, launch, run_task, run_to_end, sh
from tests.airflow.versions import serialize
from tests.support.bombs import bomb
from tests.support.fake_scheduler import FakeScheduler, an_app


def sensor(handle, **kwargs) -> AppStatusSensor:
    with a_dag():
        return AppStatusSensor(task_id="s", handle=handle, **kwargs)


@pytest.fixture
def launched(engine, api):
    """An app that was launched without waiting: its id and the XCom."""
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    (app_id,) = engine.apps
    # An app that writes lines is running.
    engine.state(app_id, AppState.RUNNING)
    return app_id, api.xcoms["t", "return_value"]


def test_it_waits_for_success_and_shows_the_log(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "early\n")
    threading.Timer(0.5, lambda: engine.write(app_id, "worker", 0, "late\n")).start()
    threading.Timer(0.8, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    ran = run_task(sensor(xcom), api)

    assert ran.state == "success"
    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] early", "[worker/0] late"]
    assert api.xcoms["s", "return_value"] == {**xcom, "state": "SUCCEEDED"}


def test_logs_from_now_skips_older_lines(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "early\n")
    threading.Timer(0.8, lambda: engine.write(app_id, "worker", 0, "late\n")).start()
    threading.Timer(1.0, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    ran = run_task(sensor(xcom["handle"], logs_from="now"), api)

    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] late"]


@pytest.mark.parametrize("state", [AppState.FAILED, AppState.CANCELLED])
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_app_that_did_not_succeed_fails_it_for_good(engine, make_api, launched, state, mode) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "why\n")
    engine.state(app_id, state, exit_codes={("worker", 0): 7})
    ran = run_task(sensor(xcom, mode=mode), make_api(retries=3))

    assert ran.state == "failed"
    assert str(ran.error).startswith("role 'worker' replica 0")
    assert f" {state}\n" in str(ran.error)
    assert "exited with code 7" in str(ran.error)
    assert "  why" in str(ran.error)


def test_soft_fail_skips(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.state(app_id, AppState.FAILED)

    assert run_task(sensor(xcom, soft_fail=True), api).state == "skipped"


def test_reschedule_continues_the_log_where_it_stopped(engine, api, launched) -> None:
    app_id, xcom = launched
    task = sensor(xcom, mode="reschedule", poke_interval=5)
    shown = []
    for number in range(3):
        engine.write(app_id, "worker", 0, f"line {number}\n")
        ran = run_task(task, api)
        assert ran.state == "up_for_reschedule"
        shown += ran.lines
    engine.write(app_id, "worker", 0, "last\n")
    engine.state(app_id, AppState.SUCCEEDED)
    ran = run_task(task, api)
    shown += ran.lines

    assert ran.state == "success"
    assert [line for line in shown if line.startswith("[")] == [
        *(f"[worker/0] line {number}" for number in range(3)),
        "[worker/0] last",
    ]
    assert sum("RUNNING" in line and "->" not in line for line in shown if line.startswith("app ")) == 1


def test_reschedule_survives_an_outage_over_polls(engine, api, launched) -> None:
    _, xcom = launched
    engine.cut()
    task = sensor(xcom, mode="reschedule", unavailable_for_s=2)
    first = run_task(task, api)
    time.sleep(2)
    second = run_task(task, api)

    assert (first.state, second.state) == ("up_for_reschedule", "failed")


def test_reschedule_refuses_short_intervals() -> None:
    """Airflow 3.3 loses track of tasks that are rescheduled faster."""
    with pytest.raises(InvalidAppError, match="at least 5"):
        sensor("fake://c/x", mode="reschedule", poke_interval=4)


def test_timeout_ends_the_wait(api, launched) -> None:
    ran = run_task(sensor(launched[1], timeout=1), api)

    assert ran.state == "failed"
    assert "timed out" in str(ran.error)


@pytest.mark.parametrize(("policy", "cancelled"), [("leave", 0), ("cancel", 1)])
def test_its_kill_leaves_the_app_unless_asked(engine, api, launched, policy, cancelled) -> None:
    main = threading.main_thread().ident
    threading.Timer(1, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran = run_task(sensor(launched[1], on_kill=policy), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert len(set(engine.cancelled)) == cancelled


@pytest.mark.parametrize("handle", ["nonsense", "local://cluster/x", None, {"state": "x"}])
def test_a_wrong_handle_is_not_tried_again(engine, make_api, handle) -> None:
    assert run_task(sensor(handle), make_api(retries=3)).state == "failed"


def test_an_unknown_app_fails(engine, api) -> None:
    assert "unknown app" in str(run_task(sensor("fake://cluster/none"), api).error)


def test_packed_cursors_of_a_large_app_fit_the_store() -> None:
    cursors = {f"worker/{k}": {"attempt": 0, "stdout": 1000 + k * 37, "stderr": k} for k in range(3000)}

    assert len(pack(cursors)) < 60_000
    assert unpack(pack(cursors)) == cursors


@pytest.mark.parametrize("packed", [None, 3, "", "x", "eJw=", "aGVsbG8gd29ybGQ=", "eJyrrgUAAXUA+Q==x"])
def test_broken_cursors_mean_the_start(packed) -> None:
    assert unpack(packed) == {}


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 900 + "1" + "}" * 900, '{"a": 1e999}', '{"a": NaN}'])
def test_unknown_cursors_mean_the_start(text: str) -> None:
    """Users can edit the store; a parser that recurses ended the task."""
    assert unpack(base64.b64encode(zlib.compress(text.encode(), 9)).decode()) == {}


def test_text_that_unpacks_to_far_more_is_not_ours() -> None:
    """A user who may edit XComs must not be able to fill the memory of a triggerer."""
    packed = base64.b64encode(bomb(40, byte=b" ")).decode()

    assert len(packed) < 60_000
    assert unpack(packed) == {}


def test_reschedule_ends_though_its_log_is_slow(engine, api, launched) -> None:
    """Each poll would repeat the last read."""
    app_id, xcom = launched
    engine.on_read = lambda *_: time.sleep(1.0)
    engine.state(app_id, AppState.SUCCEEDED)

    assert run_task(sensor(xcom, mode="reschedule"), api).state == "success"


def test_reschedule_skips_a_long_log_to_its_end(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.chunk_lines = 50
    engine.write(app_id, "worker", 0, "".join(f"early {n}\n" for n in range(500)))
    engine.on_read = lambda *_: time.sleep(0.2)
    task = sensor(xcom, mode="reschedule", logs_from="now")
    first = run_task(task, api)
    engine.write(app_id, "worker", 0, "late\n")
    engine.state(app_id, AppState.SUCCEEDED)
    second = run_task(task, api)

    shown = [line for ran in (first, second) for line in ran.lines if line.startswith("[")]
    assert shown == ["[worker/0] late"]


def test_a_clear_of_another_task_repeats_no_line(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "once\n")
    task = sensor(xcom, mode="reschedule")
    shown = run_task(task, api).lines
    api.clear(another=True)
    shown += run_task(task, api).lines

    assert sum("once" in line for line in shown) == 1


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_app_whose_state_stays_unknown_fails(engine, api, launched, monkeypatch, mode) -> None:
    app_id, xcom = launched
    for module in (state_tracker, sensor_run):
        monkeypatch.setattr(module, "UNKNOWN_S", 1.0)
    engine.state(app_id, AppState.UNKNOWN, "lost")
    task = sensor(xcom, mode=mode)
    states = [run_task(task, api).state]
    while states[-1] == "up_for_reschedule" and len(states) < 10:
        time.sleep(0.5)
        states.append(run_task(task, api).state)

    assert states[-1] == "failed"


def test_reschedule_survives_access_that_expires(engine, api, launched) -> None:
    app_id, xcom = launched
    task = sensor(xcom, mode="reschedule", unavailable_for_s=60)
    states = [run_task(task, api).state]

    def refuse(_ids) -> None:
        raise SchedulerRejectedError("token has expired")

    engine.on_describe = refuse
    states.append(run_task(task, api).state)
    engine.heal()
    engine.state(app_id, AppState.SUCCEEDED)
    states.append(run_task(task, api).state)

    assert states == ["up_for_reschedule", "up_for_reschedule", "success"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize(("policy", "cancelled"), [("leave", 0), ("cancel", 1)])
@pytest.mark.parametrize("soft_fail", [False, True])
def test_timeout_cancels_the_app_if_asked(engine, api, launched, policy, cancelled, deferrable, soft_fail) -> None:
    _, xcom = launched
    task = sensor(xcom, timeout=1, poke_interval=0.1, on_kill=policy, deferrable=deferrable, soft_fail=soft_fail)
    ran, _ = run_to_end(task, api)

    assert ran.state == ("skipped" if soft_fail else "failed")
    # Airflow itself says no more than "Skipping task.".
    assert ran.logged("the sensor is skipped: ") == soft_fail
    assert len(engine.cancelled) == cancelled


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_execution_timeout_is_tried_again(engine, make_api, launched, deferrable) -> None:
    _, xcom = launched
    task = sensor(xcom["handle"], execution_timeout=timedelta(seconds=1), deferrable=deferrable, retries=3)
    ran, _ = run_to_end(task, make_api(retries=3))

    assert isinstance(ran.error, AirflowTaskTimeout)
    assert ran.state == "up_for_retry"


def test_of_two_equal_limits_the_execution_timeout_counts(make_api, launched) -> None:
    """Airflow retries after an execution timeout, but not after the timeout of a sensor."""
    _, xcom = launched
    task = sensor(xcom["handle"], timeout=1, execution_timeout=timedelta(seconds=1), deferrable=True, retries=3)
    ran, _ = run_to_end(task, make_api(retries=3))

    assert isinstance(ran.error, AirflowTaskTimeout)
    assert ran.state == "up_for_retry"


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize("how", ["soft_fail", "never_fail"])
def test_execution_timeout_skips_if_asked(engine, api, launched, deferrable, how) -> None:
    _, xcom = launched
    task = sensor(xcom["handle"], execution_timeout=timedelta(seconds=1), deferrable=deferrable, **{how: True})

    ran, _ = run_to_end(task, api)

    assert ran.state == "skipped"
    # Airflow itself says no more than "Skipping task.".
    assert sum("the sensor is skipped: " in line for line in ran.lines) == 1


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize("trouble", ["vanished", "unreachable"])
@pytest.mark.parametrize(("how", "state"), [("soft_fail", "failed"), ("never_fail", "skipped")])
def test_errors_skip_as_airflow_shows(engine, api, launched, deferrable, trouble, how, state) -> None:
    app_id, xcom = launched
    action = engine.cut if trouble == "unreachable" else lambda: engine.apps.pop(app_id)
    threading.Timer(0.7, action).start()
    task = sensor(xcom["handle"], unavailable_for_s=1, deferrable=deferrable, poke_interval=0.1, **{how: True})

    ran, _ = run_to_end(task, api)

    assert ran.state == state
    assert ran.logged("the sensor is skipped: ") == (state == "skipped")


def test_reschedule_repeats_last_lines_in_the_error(engine, api, launched) -> None:
    app_id, xcom = launched
    task = sensor(xcom, mode="reschedule", poke_interval=5)
    engine.write(app_id, "worker", 0, "Traceback\nof this\n")
    first = run_task(task, api)
    engine.state(app_id, AppState.FAILED, exit_codes={("worker", 0): 1})
    second = run_task(task, api)

    assert (first.state, second.state) == ("up_for_reschedule", "failed")
    assert "  Traceback\n  of this" in str(second.error)
    assert not [line for line in second.lines if line.startswith("[")]


def test_reschedule_from_now_still_does_so_after_an_outage(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "early\n")
    task = sensor(xcom, mode="reschedule", poke_interval=5, logs_from="now")
    engine.cut()
    ran = [run_task(task, api)]
    engine.heal()
    ran.append(run_task(task, api))
    engine.write(app_id, "worker", 0, "late\n")
    ran.append(run_task(task, api))

    assert [line for one in ran for line in one.lines if line.startswith("[")] == ["[worker/0] late"]


def test_a_log_that_hangs_is_given_up_after_the_time_of_the_configuration(engine, api, launched, monkeypatch) -> None:
    app_id, xcom = launched
    monkeypatch.setenv("AIRFLOW__LAUNCH__LOG_DRAIN_S", "1")
    is_over = threading.Event()
    engine.on_read = lambda *_: is_over.wait(12)
    engine.state(app_id, AppState.SUCCEEDED)
    started = time.monotonic()
    ran = run_task(sensor(xcom), api)
    took = time.monotonic() - started
    is_over.set()

    assert ran.state == "success"
    assert took < 8


@pytest.mark.parametrize("how", [{}, {"silent_fail": True}, {"never_fail": True}], ids=str)
def test_a_killed_sensor_ends_whatever_it_makes_of_errors(engine, api, launched, how) -> None:
    _, xcom = launched
    before = signal.getsignal(signal.SIGTERM)
    killing = threading.Timer(1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM))
    killing.start()
    started = time.monotonic()
    try:
        ran = run_task(sensor(xcom, timeout=20, **how), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert time.monotonic() - started < 10


def test_it_starts_in_the_triggerer_only_if_nothing_has_to_be_rendered_there() -> None:
    """The triggerer renders too, but a look-up of an XCom in a template is never answered there."""

    @task_group
    def each(number):
        launched = LaunchAppOperator(task_id="launch", app=an_app(), cfg={"queue": number})
        AppStatusSensor(task_id="of_group", handle=launched.output, deferrable=True)

    with a_dag() as dag:
        launched = LaunchAppOperator(task_id="one", app=an_app())
        each.expand(number=["1", "2"])
        for task_id, how in {
            "text": {"handle": "fake://c/x"},
            "xcom": {"handle": launched.output},
            "template": {"handle": "{{ ti.xcom_pull(task_ids='one', key='handle') }}"},
            "conn": {"handle": "fake://c/x", "launch_conn_id": "{{ params.conn }}"},
        }.items():
            AppStatusSensor(task_id=task_id, deferrable=True, **how)

    starts = {name: dag.task_dict[name].start_from_trigger for name in ("text", "xcom", "template", "conn")}
    assert starts == {"text": True, "xcom": True, "template": False, "conn": False}
    assert dag.task_dict["each.of_group"].start_from_trigger is False


@pytest.mark.parametrize("how", [{"mode": "reschedule"}, {"deferrable": True}], ids=["reschedule", "deferrable"])
def test_attempt_and_page_are_named_once(engine, api, launched, how) -> None:
    """A run in another process continues in the same log."""
    app_id, xcom = launched
    engine.apps[app_id].ui_url = "https://ui/app"
    engine.write(app_id, "worker", 0, "again\n", attempt=1)
    task = sensor(xcom, **how)
    threading.Timer(1.5, lambda: engine.write(app_id, "worker", 0, "more\n", attempt=1)).start()
    threading.Timer(1.7, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    shown: list[str] = []
    for _ in range(10):
        ran, _ = run_to_end(task, api)
        shown += ran.lines
        if ran.state != "up_for_reschedule":
            break

    assert ran.state == "success"
    assert [line for line in shown if line.startswith("[")] == [
        "[worker/0] --- attempt 0 ended: cause unknown ---",
        "[worker/0] --- attempt 1 ---",
        "[worker/0] again",
        "[worker/0] more",
    ]
    assert sum("see https://ui/app" in line for line in shown) == 1
    assert api.xcoms["s", SchedulerLink().xcom_key] == "https://ui/app"


@pytest.mark.parametrize("how", [{}, {"deferrable": True}, {"mode": "reschedule", "poke_interval": 5}], ids=str)
def test_a_sensor_that_comes_later_shows_the_duration_of_the_app(api, how) -> None:
    """Not its own: the app may have ended hours before."""
    run_task(launch(sh("sleep 2.2"), wait=False), api)
    xcom = api.xcoms["t", "return_value"]
    (during,) = [line for line in run_task(sensor(xcom), api).lines if "ended as" in line]
    ran, _ = run_to_end(sensor(xcom, **how), api)
    (later,) = [line for line in ran.lines if "ended as" in line]

    assert later == during
    assert "SUCCEEDED after 0 s" not in later


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize("fails", ["once", "always"])
def test_a_cancel_at_the_timeout_that_fails_is_repeated_or_reported(
    engine, api, launched, monkeypatch, deferrable, fails
) -> None:
    """After the trigger the worker asks once more; then the log has to name the app that runs on."""
    cancel, asked = FakeScheduler._cancel_existing, []

    def refuse(self: FakeScheduler, app_id: str) -> None:
        asked.append(app_id)
        if fails == "always" or (deferrable and len(asked) == 1):
            raise SchedulerRejectedError("no right to cancel")
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    task = sensor(launched[1], timeout=1, poke_interval=0.1, on_kill="cancel", deferrable=deferrable)
    ran, _ = run_to_end(task, api)

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowSensorTimeout)
    assert engine.cancelled == ([] if fails == "always" else [launched[0]])
    assert ran.logged("could not be cancelled: no right to cancel; cancel it") == (fails == "always")


def test_a_kill_cancels_again_what_its_thread_could_not(engine, api, launched, monkeypatch) -> None:
    cancel, asked = FakeScheduler._cancel_existing, []

    def refuse(self: FakeScheduler, app_id: str) -> None:
        asked.append(app_id)
        if len(asked) == 1:
            raise SchedulerUnavailableError("for a moment")
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    main = threading.main_thread().ident
    threading.Timer(1, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    try:
        run_task(sensor(launched[1], on_kill="cancel"), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert engine.cancelled == [launched[0]]


@pytest.mark.parametrize("how", [{}, {"never_fail": True}], ids=str)
def test_a_kill_of_a_resumed_sensor_is_not_a_skip(engine, api, launched, how) -> None:
    """The task was marked failed, or cleared."""
    task = sensor(launched[1], deferrable=True, **how)
    event = {"reason": "ended", "text": "", "handle": launched[1]["handle"]}
    api.resume = {"next_method": "resume", "next_kwargs": serialize({"event": event})}
    before = signal.getsignal(signal.SIGTERM)
    main = threading.main_thread().ident
    threading.Timer(1, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    try:
        ran = run_task(task, api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert not ran.logged("the sensor is skipped")


def test_a_connection_that_the_dag_names_is_the_error_if_it_is_missing(api, launched) -> None:
    error = str(run_task(sensor(launched[1], launch_conn_id="no_such"), api).error)

    assert "no_such" in error
    assert "names the connection" not in error


def test_cursors_that_do_not_fit_the_store_are_left_out(engine, api, launched, monkeypatch) -> None:
    monkeypatch.setattr(sensor_run, "MAX_PACKED", 4)
    engine.write(launched[0], "worker", 0, "once\n")
    ran = run_task(sensor(launched[1], mode="reschedule"), api)

    assert ran.state == "up_for_reschedule"
    assert ran.logged("too many replicas for the state store")
    assert "cursors" not in api.store[sensor_run.KEY]


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_request_that_may_not_be_read_hides_no_state(engine, api, launched, monkeypatch, deferrable) -> None:
    """It needs its own permission, and only secrets of the app are read from it."""

    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise SchedulerRejectedError("no right to read it")

    monkeypatch.setattr(FakeScheduler, "describe_native", refuse)
    engine.state(launched[0], AppState.SUCCEEDED)

    assert run_to_end(sensor(launched[1], deferrable=deferrable), api)[0].state == "success"
