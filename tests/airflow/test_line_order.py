"""Lines of several replicas in the order in which they were written, without loss and without waiting."""

from __future__ import annotations

import pytest

from airflow_provider_launch.follow.events import LogLines, Tick
from airflow_provider_launch.follow.line_order import LineOrder
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.api import LogLine, Stream
from airflow_provider_launch.sensors.launch import AppStatusSensor
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, sh


def lines(replica: int, *written: tuple[str, float | None]) -> LogLines:
    return LogLines("w", replica, [LogLine(text, Stream.STDOUT, time) for text, time in written])


def texts(events) -> list[str]:
    return [line.text for event in events if isinstance(event, LogLines) for line in event.lines]


def test_lines_of_a_short_app_are_in_order_of_time() -> None:
    order = LineOrder()
    events = [lines(0, ("a1", 1.0), ("a4", 4.0)), lines(1, ("b2", 2.0), ("b3", 3.0)), lines(0, ("a5", 5.0)), Tick()]
    found = [due for event in events for due in order.add(event)]

    assert texts(found) == ["a1", "b2", "b3", "a4", "a5"]
    assert found[-1] == Tick()
    assert [event.replica for event in found[:-1]] == [0, 1, 0, 0]


def test_each_log_keeps_its_own_order() -> None:
    """A clock that is set back does not mix the lines of one replica."""
    order = LineOrder()
    list(order.add(lines(0, ("a1", 5.0), ("a2", 1.0))))
    list(order.add(lines(1, ("b1", 2.0))))

    assert texts(order.rest()) == ["b1", "a1", "a2"]


def test_without_times_lines_stay_as_they_came() -> None:
    order = LineOrder()
    list(order.add(lines(1, ("b", None))))
    list(order.add(lines(0, ("a", 1.0))))

    assert texts(order.rest()) == ["b", "a"]
    assert order.rest() == []


def test_a_flood_is_not_held() -> None:
    order = LineOrder()
    flood = lines(0, *((str(number), float(number)) for number in range(30_000)))

    assert len(texts(order.add(flood))) == 30_000
    long = lines(0, *((("x" * 1_000_000), 1.0) for _ in range(20)))
    assert len(texts(order.add(long))) == 20


def test_what_is_switched_off_holds_nothing() -> None:
    assert texts(LineOrder(is_on=False).add(lines(0, ("a", 1.0)))) == ["a"]


@pytest.mark.engine("local")
@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "deferrable"])
def test_the_log_of_an_app_that_has_ended_is_in_order_of_time(tmp_path, deferrable: bool) -> None:
    """All lines were written before the first of them is read, replica by replica."""
    # The replicas take turns, so that a busy machine changes no order.
    (tmp_path / "turns").write_text("")
    wait = f"until [ $(wc -l <{tmp_path}/turns) = $((3 * n - 3 + ${{replica_id}})) ]; do sleep 0.05; done"
    turn = f"echo $n of ${{replica_id}}; sleep 0.3; echo >>{tmp_path}/turns"
    script = f"for n in 1 2 3; do {wait}; {turn}; done"
    api = FakeExecutionApi()
    run_task(launch(sh(script, num_replicas=3), wait=False), api)
    handle = api.xcoms["t", "return_value"]["handle"]
    hook = LaunchHook.for_connection("launch_local_default")
    hook.runner.wait(handle)
    hook.close()
    with a_dag():
        late = AppStatusSensor(task_id="late", handle=handle, deferrable=deferrable)
    ran, _ = run_to_end(late, api)

    shown = [line for line in ran.lines if line.startswith("[worker/")]
    assert shown == [f"[worker/{k}] {n} of {k}" for n in (1, 2, 3) for k in (0, 1, 2)]
