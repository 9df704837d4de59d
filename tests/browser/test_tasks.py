"""Tasks in a browser: triggered, read while they run and while they are deferred, marked as failed, and cleared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.live.runs import Run
from tests.support.apps import until

SCRIPT = 'for i in $(seq 600); do echo "line $i"; sleep 0.5; done'


def confirm(page) -> None:
    """Confirm a dialog; by default Airflow does not clear a task that runs."""
    dialog = page.get_by_role("dialog")
    guard = dialog.get_by_text("Prevent rerun if task is running")
    dialog.get_by_role("button", name="Confirm").wait_for()
    if guard.count():
        guard.click()
    dialog.get_by_role("button", name="Confirm").click()
    dialog.wait_for(state="detached")


def open_log(page, run: Run) -> None:
    page.goto(f"/dags/{run.dag_id}/runs/{run.run_id}/tasks/app")


def is_shown(page, text: str) -> None:
    page.get_by_text(text).last.wait_for()


def numbers(text: str, replica: str) -> list[int]:
    """Return the numbers of the lines of a replica."""
    return [int(found) for found in re.findall(rf"\[{re.escape(replica)}\] line (\d+)", text)]


def shows(page, replica: str, after: int = 0) -> None:
    """Wait for a later line of a replica: a page has only the lines that fit on the screen."""
    # On a busy host a page is painted too seldom for a wait within the page.
    until(lambda: any(n > after for n in numbers(page.locator("body").inner_text(), replica)), 120, 0.25)


@pytest.fixture
def start(airflow):
    """Start a run whose app writes lines for minutes."""
    started: list[Run] = []

    def start(mode: str) -> Run:
        started.append(Run(airflow, f"plain_{mode}", engine="local", image="", script=SCRIPT))
        return started[-1]

    yield start
    for run in started:
        airflow.ask("PATCH", f"/dags/{run.dag_id}/dagRuns/{run.run_id}", {"state": "failed"})
        until(lambda run=run: not running_apps(airflow, run), 60)


def running_apps(airflow, run: Run) -> list[str]:
    """Return the processes of the apps of a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"airflow://{run.dag_id}/{run.run_id}/".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.parametrize(("mode", "state"), [("sync", "running"), ("deferrable", "deferred")])
def test_a_log_is_read_while_the_app_runs_and_a_mark_as_failed_ends_it(airflow, page, picture, start, mode, state):
    run = start(mode)
    run.wait({state}, 120)
    open_log(page, run)
    shows(page, "main/1")
    # The page gets what is written after it was loaded.
    shows(page, "main/1", after=max(numbers("\n".join(run.log(1)), "main/1")))
    picture(f"log-{state}")
    assert run.task()["state"] == state
    assert running_apps(airflow, run)
    page.get_by_role("button", name="Mark Task Instance as...").click()
    page.get_by_role("menuitem", name="Failed").click()
    confirm(page)
    run.wait({"failed"}, 60)

    until(lambda: not running_apps(airflow, run), 60)


@pytest.mark.parametrize(("mode", "state"), [("sync", "running"), ("deferrable", "deferred")])
def test_a_task_that_is_cleared_runs_again(airflow, page, start, mode, state) -> None:
    run = start(mode)
    run.wait({state}, 120)
    before = {*running_apps(airflow, run)}
    open_log(page, run)
    shows(page, "main/0")
    page.get_by_role("button", name="Press shift+c to clear").click()
    confirm(page)
    run.wait({state}, 180, try_number=2)

    until(lambda: running_apps(airflow, run) and not before & {*running_apps(airflow, run)}, 90)
    open_log(page, run)
    shows(page, "main/0")


def test_the_demo_is_triggered_and_shows_its_lines(airflow, page, picture) -> None:
    airflow.ask("PATCH", "/dags/launch_local_demo", {"is_paused": False}).raise_for_status()
    page.goto("/dags/launch_local_demo")
    page.get_by_role("button", name="Trigger Dag").click()
    dialog = page.get_by_role("dialog")
    with page.expect_response("**/dagRuns") as answered:
        dialog.get_by_role("button", name="Trigger", exact=True).click()
    run_id = answered.value.json()["dag_run_id"]
    path = f"/dags/launch_local_demo/dagRuns/{run_id}"
    until(lambda: airflow.ask("GET", path).json()["state"] in ("success", "failed"), 240)
    page.goto(f"/dags/launch_local_demo/runs/{run_id}/tasks/count_words")
    is_shown(page, "[reducer/0]")
    is_shown(page, "[mapper/2]")
    picture("log-demo")

    assert airflow.ask("GET", path).json()["state"] == "success"
    assert page.get_by_text("SUCCEEDED").count() >= 1
