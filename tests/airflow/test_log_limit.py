"""`max_log_bytes`: the first and the last lines of a long log are shown, and how much is left out."""

from __future__ import annotations

import random

import pytest

from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, sh

FIRST = [f"[worker/0] {number}" for number in range(1, 37)]
LAST = [f"[worker/0] {number}" for number in range(977, 1001)]
CUT = "[worker/0] --- max_log_bytes=200: the last lines follow when the app has ended ---"
MISSING = "[worker/0] --- max_log_bytes=200: 940 lines, 3697 bytes, are not shown here ---"


def line(text: str) -> LogLine:
    return LogLine(text, Stream.STDOUT)


def shown(limit: LogLimit, texts: list[str], dice: random.Random) -> tuple[list[str], list[str], int, int]:
    """First lines, last lines, and lines and bytes left out, of a log that comes in chunks."""
    first: list[str] = []
    lines = [line(text) for text in texts]
    while lines:
        size = dice.randint(1, 7)
        chunk, lines = lines[:size], lines[size:]
        count = limit.admit("r/0", chunk)
        first += [each.text for each in chunk[:count]]
        limit.keep("r/0", chunk[count:])
    ((_, rest),) = limit.rests()
    return first, [each.text for each in rest.lines], rest.left_out, rest.bytes_left_out


@pytest.mark.parametrize("seed", range(20))
def test_the_first_and_the_last_half_are_kept_and_the_rest_is_counted(seed: int) -> None:
    dice = random.Random(seed)
    texts = ["x" * dice.randint(0, 30) + "é" * dice.randint(0, 3) + "\n" for _ in range(200)]
    first, last, left_out, bytes_left_out = shown(LogLimit(1000), texts, dice)

    assert texts[: len(first)] == first
    assert texts[len(texts) - len(last) :] == last
    assert 400 < sum(len(text.encode()) for text in first) <= 500
    assert 400 < sum(len(text.encode()) for text in last) <= 500
    assert left_out == len(texts) - len(first) - len(last)
    assert bytes_left_out == sum(len(text.encode()) for text in texts[len(first) : len(texts) - len(last)])


def test_of_one_endless_line_the_end_is_kept() -> None:
    limit = LogLimit(20)
    giant = line("a" * 1000 + "é" * 5)

    assert limit.admit("r/0", [giant]) == 0
    limit.keep("r/0", [giant])
    ((_, rest),) = limit.rests()
    assert [each.text for each in rest.lines] == ["é" * 5]
    assert (rest.left_out, rest.bytes_left_out) == (0, 1000)


def test_without_a_limit_all_is_shown() -> None:
    assert LogLimit(None).admit("r/0", [line("x" * 100)] * 100) == 100


def test_the_next_part_of_a_task_continues_counting() -> None:
    first = LogLimit(20)
    assert first.admit("r/0", [line("123456789\n")]) == 1
    assert LogLimit(20, first.shown_bytes).admit("r/0", [line("1\n")]) == 0
    assert LogLimit(20, {"r/0": "nonsense"}).admit("r/0", [line("1\n")]) == 1


@pytest.mark.parametrize("value", [0, -1, 1.5, "1000", True])
def test_an_invalid_number_of_bytes_is_refused(value: object) -> None:
    with pytest.raises(Exception, match="max_log_bytes") as operator, a_dag():
        LaunchAppOperator(task_id="t", app=None, max_log_bytes=value)  # type: ignore[arg-type]
    with pytest.raises(InvalidAppError, match="max_log_bytes"), a_dag():
        AppStatusSensor(task_id="s", handle="local://c/x", max_log_bytes=value)  # type: ignore[arg-type]
    assert "log_roles=[]" in str(operator.value)


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_short_log_is_shown_whole(deferrable: bool) -> None:
    ran, _ = run_to_end(launch(sh("seq 1 20; sleep 0.5"), max_log_bytes=200, deferrable=deferrable), FakeExecutionApi())

    assert ran.state == "success"
    assert [text for text in ran.lines if text.startswith("[")] == FIRST[:20]


def test_a_failure_still_has_its_last_lines() -> None:
    ran, _ = run_to_end(
        launch(sh("seq 1 1000; echo no luck; exit 3"), max_log_bytes=200, deferrable=True), FakeExecutionApi()
    )

    assert ran.state == "failed"
    assert "no luck" in str(ran.error)


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_sensor_keeps_the_limit_over_all_its_polls(engine, api, mode: str) -> None:
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    app_id, xcom = next(iter(engine.apps)), api.xcoms["t", "return_value"]
    with a_dag():
        task = AppStatusSensor(task_id="s", handle=xcom, mode=mode, max_log_bytes=200)
    lines: list[str] = []
    texts = [f"{number}\n" for number in range(1, 1001)]
    if mode == "reschedule":
        for part in (texts[:30], texts[30:500], texts[500:700]):
            for text in part:
                engine.write(app_id, "worker", 0, text)
            lines += run_task(task, api).lines
        texts = texts[700:]
    for text in texts:
        engine.write(app_id, "worker", 0, text)
    engine.state(app_id, AppState.SUCCEEDED)
    ran = run_task(task, api)

    assert ran.state == "success"
    assert [text for text in [*lines, *ran.lines] if text.startswith("[")] == [*FIRST, CUT, MISSING, *LAST]


def test_where_the_first_lines_end_is_reported_once():
    """Each part of a task asks here, and none counts by itself."""
    limit = LogLimit(20)

    assert limit.first_lines("r/0", [line("123456\n")]) == (1, False)
    assert limit.first_lines("r/0", [line("123456\n"), line("1\n")]) == (0, True)
    assert limit.first_lines("r/0", [line("1\n")]) == (0, False)
    assert limit.first_lines("r/1", [line("1\n")]) == (1, False)
    assert LogLimit(20, limit.shown_bytes).first_lines("r/0", [line("1\n")]) == (0, False)


def test_empty_lines_take_little_memory() -> None:
    """Each takes a hundred times the memory of its text."""
    limit = LogLimit(1_000_000)
    limit.keep("r/0", [line("\n")] * 400_000)
    ((_, rest),) = limit.rests()

    assert len(rest.lines) <= 500_000 // 32
    assert (rest.left_out + len(rest.lines), rest.bytes_left_out + rest.bytes) == (400_000, 400_000)


@pytest.mark.parametrize("over", [1, 2, 3, 4, 5, 600])
@pytest.mark.parametrize("sign", ["ä", "中", "😀", "\ud800"])
def test_the_end_of_a_line_is_kept_from_a_whole_character_on(sign: str, over: int) -> None:
    limit = LogLimit(1000)
    size = 500 + over
    signs = max(1, over // 4)
    text = sign * signs + "y" * (size - signs * len(sign.encode("utf-8", "surrogatepass")))
    limit.keep("r/0", [line(text)])
    ((_, rest),) = limit.rests()

    (kept,) = rest.lines
    assert text.endswith(kept.text)
    assert 496 < len(kept.text.encode("utf-8", "surrogatepass")) <= 500
    assert rest.bytes + rest.bytes_left_out == size
