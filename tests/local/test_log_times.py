"""Times of lines: exact enough to order the lines of a short app, without costs for lines or for silent programs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.log_times import LogTimes
from airflow_provider_launch.schedulers.logs import LogLine
from airflow_provider_launch.specs import AppState
from tests.support.apps import until
from tests.support.local import Apps, sh

NOW = f"{sys.executable} -c 'import time; print(time.time())'"


def lines_of(apps: Apps, app_id: str, k: int = 0) -> list[LogLine]:
    lines, cursor = [], None
    while (chunk := apps.another().read_logs(app_id, "main", k, cursor)).lines:
        lines += chunk.lines
        cursor = chunk.cursor
    return lines


def index_of(apps: Apps, app_id: str) -> list[str]:
    return (apps.dir(app_id) / "run/0/0-main/0/0/times").read_text().splitlines()


def switches(pid: int) -> int:
    """Return how often a process has started to wait."""
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def test_a_line_has_the_time_when_it_was_written(apps: Apps) -> None:
    app_id = apps.start(sh(f"for n in 1 2 3; do {NOW}; sleep 0.3; done; {NOW} >&2"))
    assert apps.end(app_id).state is AppState.SUCCEEDED

    lines = lines_of(apps, app_id)
    assert [line.stream.value for line in lines] == ["stdout"] * 3 + ["stderr"]
    for line in lines:
        assert line.time is not None
        assert -0.05 < line.time - float(line.text) < 0.5


def test_lines_of_both_streams_are_in_the_order_in_which_they_were_written(apps: Apps) -> None:
    app_id = apps.start(sh("echo 1 >&2; sleep 0.3; echo 2; sleep 0.3; echo 3 >&2"))
    apps.end(app_id)

    assert [line.text for line in lines_of(apps, app_id)] == ["1\n", "2\n", "3\n"]


def test_each_attempt_has_its_own_times(apps: Apps) -> None:
    app_id = apps.start(sh(f"{NOW}; exit $((LAUNCH_ATTEMPT == 0))", max_retries=1))
    assert apps.end(app_id).state is AppState.SUCCEEDED

    first, second = lines_of(apps, app_id)
    assert (first.attempt, second.attempt) == (0, 1)
    assert first.time is not None
    assert second.time is not None
    assert first.time < second.time < time.time()


def test_the_index_grows_with_time_and_not_with_lines(apps: Apps) -> None:
    app_id = apps.start(sh("seq 1 200000; for n in 1 2 3 4 5 6 7 8 9 10; do echo $n; sleep 0.2; done"))
    assert apps.end(app_id).state is AppState.SUCCEEDED

    assert 10 <= len(index_of(apps, app_id)) <= 60
    assert len(lines_of(apps, app_id)) == 200_010


def test_a_silent_program_costs_nothing(apps: Apps) -> None:
    """The kernel reports a write; nothing asks."""
    app_id = apps.start(sh("echo up; sleep 60"))
    until(lambda: apps.lines(app_id))
    pid = layout.read_json(str(next(apps.dir(app_id).rglob("pid"))))["shim"]
    time.sleep(1)
    before = switches(pid)
    time.sleep(3)

    assert switches(pid) == before
    assert len(index_of(apps, app_id)) == 1


@pytest.mark.parametrize("damage", ["rm times", "cd ..; mkdir 1; mkfifo 1/times", "cd ..; mkdir -p 1/times"])
def test_an_index_that_its_program_damages_loses_no_line(apps: Apps, damage: str) -> None:
    script = f"echo $LAUNCH_ATTEMPT; cd $LAUNCH_LOCAL_ATTEMPT; {damage}; echo done; exit $((LAUNCH_ATTEMPT == 0))"
    app_id = apps.start(sh(script, max_retries=1))
    assert apps.end(app_id).state is AppState.SUCCEEDED

    texts = [line.text for line in lines_of(apps, app_id) if line.stream.value == "stdout"]
    assert texts == ["0\n", "done\n", "1\n", "done\n"]


def test_without_reports_of_the_kernel_the_logs_are_checked_at_intervals(tmp_path: Path, monkeypatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(sys, "platform", "darwin")
    times = LogTimes(str(tmp_path))
    for text in ("x\n", "y\n"):
        with (tmp_path / "stdout").open("a") as file:
            file.write(text)
        for _ in range(2):
            pause_s = times.pause_s()
            assert pause_s is not None
            time.sleep(pause_s)
            times.check()

    assert [line.split()[1] for line in (tmp_path / "times").read_text().splitlines()] == ["2", "4"]


def test_an_index_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    times = LogTimes(str(tmp_path / "missing"))
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing/stdout").write_text("x\n")
    times.on_report()
    times.check()

    assert times.pause_s() is None
    assert times.write() is False
    assert [path.name for path in (tmp_path / "missing").iterdir()] == ["stdout"]
