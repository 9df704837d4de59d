"""Many deferred tasks at once, followed by two triggerers, and many apps that end within seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.live.engines import apps_of
from tests.live.runs import Run
from tests.live.test_endings import DEAD_WITHIN_S
from tests.support.repeats import often

DEFERRED = often(100, 1000)
SHORT = often(60, 200)
# A worker takes one or two seconds of a core to launch and defer.
PER_TASK_S = 4
# A thousand took 36 s on two cores, which they share with Airflow and with a thousand supervisors.
ALL_DEAD_WITHIN_S = often(DEAD_WITHIN_S, DEAD_WITHIN_S + 15)


def states(run: Run) -> Counter[str | None]:
    return Counter(task["state"] for task in run.tasks())


def wait_for(run: Run, state: str, count: int) -> None:
    deadline = time.monotonic() + 120 + PER_TASK_S * count
    while states(run)[state] < count:
        assert time.monotonic() < deadline, states(run)
        time.sleep(5)


@pytest.fixture
def second_triggerer(live) -> Iterator[None]:
    live.airflow.start_another_triggerer()
    yield
    live.airflow.stop("triggerer-2")


@pytest.mark.alone
@pytest.mark.parametrize("how", ["success", "deleted", "cleared, then failed"])
@pytest.mark.usefixtures("second_triggerer")
def test_a_run_of_deferred_tasks_that_ends_leaves_nothing_running(live, how: str) -> None:
    """Airflow cancels all triggers of the run at once, and again each second."""
    # Longer than all launches take, twice for those that are cleared.
    run = live.run("many_deferrable", "local", "exec sleep 5400", count=DEFERRED)
    wait_for(run, "deferred", DEFERRED)
    before = apps_of(live.engines["local"], run.run_id)
    # A busy scheduler of Airflow may reset a task that runs; its app is cancelled, and its next try has another one.
    old = [app_id for app_id, state in before.items() if not is_terminal(state)]
    assert len(old) == DEFERRED

    if how == "success":
        run.mark_run("success")
        _wait_for_ends(live, old)
    elif how == "deleted":
        run.mark_run("failed")
        run.delete()
        _wait_for_ends(live, old)
    else:
        run.clear()
        # A new try ends the old app, and workers come one after the other.
        _wait_for_ends(live, old, PER_TASK_S * DEFERRED)
        wait_for(run, "deferred", DEFERRED)
        found = apps_of(live.engines["local"], run.run_id)
        new = {app_id: state for app_id, state in found.items() if app_id not in before and not is_terminal(state)}
        assert Counter(new.values()) == {AppState.RUNNING: DEFERRED}
        run.mark_run("failed")
        _wait_for_ends(live, new)


def _wait_for_ends(live, alive: Collection[str], launches_s: float = 0) -> None:
    deadline = time.monotonic() + ALL_DEAD_WITHIN_S + launches_s
    count = len(alive)
    # Only of those that lived when last looked at: the test shares the cores with what it waits for.
    scheduler = live.engines["local"].scheduler
    while alive := [app_id for app_id, app in scheduler.describe_many(alive).items() if _lives(app)]:
        assert time.monotonic() < deadline, f"{len(alive)} of {count} apps live on"
        time.sleep(1)


def _lives(app: DescribeAppResponse | None) -> bool:
    return app is not None and not is_terminal(app.state)


@pytest.mark.alone
def test_short_apps_of_deferrable_tasks_succeed(live) -> None:
    """No try is lost to a trigger that fires before Airflow's scheduler knows that the worker has left."""
    run = live.run("short_deferrable", "local", "sleep $(($1 % 11))", count=SHORT)
    deadline = time.monotonic() + 120 + PER_TASK_S * SHORT
    while sum((found := states(run))[state] for state in ("success", "failed")) < SHORT:
        assert time.monotonic() < deadline, found
        time.sleep(5)

    assert found == {"success": SHORT}
    assert Counter(apps_of(live.engines["local"], run.run_id).values()) == {AppState.SUCCEEDED: SHORT}
