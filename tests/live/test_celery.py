"""Postgres, Redis and Celery: what most deployments have, and what the LocalExecutor does not show.

A worker is a host of its own there: it can be lost without the scheduler, and the scheduler without it.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.dags import MODES
from tests.live.engines import apps_of
from tests.live.runs import ENDED, POLL_S, Run
from tests.live.test_endings import STARTED_WITHIN_S, begun, lines_of
from tests.support.apps import until

pytestmark = pytest.mark.alone

DEFERRED = 6
# The first replica runs until it is told to stop, and then writes its last line.
SCRIPT = "echo began; test $LAUNCH_REPLICA_ID = 0 || exit 0; while test ! -e {stop}; do sleep 0.5; done; echo ended"


def waiting(live, dag_id: str) -> tuple[Run, str]:
    """Return a run whose app waits for the file, and the app's id."""
    return begun(live, dag_id, "local", SCRIPT.format(stop=live.engines["local"].stop_file))


def assert_one_app(live, run: Run, app_id: str, tries: int) -> None:
    """Let the app end; the task succeeds in this try with this app, and each line is in the log."""
    live.engines["local"].tell_to_stop(app_id)
    task = run.end(2 * STARTED_WITHIN_S)

    assert (task["state"], task["try_number"]) == ("success", tries)
    assert apps_of(live.engines["local"], run.run_id) == {app_id: AppState.SUCCEEDED}
    lines = Counter(lines_of(run))
    # Whoever is killed may have shown lines that its follower shows again.
    assert lines["[main/0] ended"] == 1
    assert lines["[main/0] began"] in range(1, tries + 3)


def test_the_demo_succeeds(on_celery) -> None:
    run = Run(on_celery.airflow, "launch_local_demo")

    until(lambda: run.state() in ENDED, 2 * STARTED_WITHIN_S, POLL_S)

    assert run.state() == "success"


@pytest.mark.parametrize("mode", MODES)
def test_a_task_succeeds_with_one_app(on_celery, mode) -> None:
    assert_one_app(on_celery, *waiting(on_celery, f"plain_{mode}"), tries=1)


def test_a_lost_worker_costs_no_app(on_celery) -> None:
    """SIGKILL of all processes of the worker; a deferred task does not notice."""
    runs = {mode: waiting(on_celery, f"retried_{mode}") for mode in MODES}

    on_celery.airflow.stop("worker", signal.SIGKILL)
    on_celery.airflow.start("worker")

    run, app_id = runs["sync"]
    text = f"continuing with app {app_id} of the last try, which is RUNNING"
    until(lambda: text in lines_of(run), 2 * STARTED_WITHIN_S, POLL_S)
    assert_one_app(on_celery, run, app_id, tries=2)
    assert_one_app(on_celery, *runs["deferrable"], tries=1)


def test_a_lost_worker_is_no_matter_for_an_app_that_ends_meanwhile(on_celery) -> None:
    """The retry takes its result and its lines."""
    run, app_id = waiting(on_celery, "retried_sync")

    on_celery.airflow.stop("worker", signal.SIGKILL)
    on_celery.engines["local"].tell_to_stop(app_id)
    until(lambda: set(apps_of(on_celery.engines["local"], run.run_id).values()) == {AppState.SUCCEEDED}, 30, POLL_S)
    on_celery.airflow.start("worker")

    assert_one_app(on_celery, run, app_id, tries=2)


def test_a_killed_triggerer_costs_no_app(on_celery) -> None:
    run, app_id = waiting(on_celery, "plain_deferrable")

    on_celery.airflow.stop("triggerer", signal.SIGKILL)
    on_celery.airflow.start("triggerer")

    assert_one_app(on_celery, run, app_id, tries=1)


def test_one_of_two_triggerers_takes_over(on_celery) -> None:
    """Each of them has some of the tasks."""
    on_celery.airflow.start_another_triggerer()
    runs = [waiting(on_celery, "plain_deferrable") for _ in range(DEFERRED)]

    on_celery.airflow.stop("triggerer", signal.SIGKILL)
    try:
        for run, app_id in runs:
            assert_one_app(on_celery, run, app_id, tries=1)
    finally:
        on_celery.airflow.start("triggerer")
        on_celery.airflow.stop("triggerer-2")


def test_a_restart_of_the_scheduler_is_not_noticed(on_celery) -> None:
    """Tasks continue in the worker, unlike with the LocalExecutor."""
    runs = [waiting(on_celery, f"retried_{mode}") for mode in MODES]

    on_celery.airflow.stop("scheduler", signal.SIGKILL)
    on_celery.airflow.start("scheduler")

    for run, app_id in runs:
        assert_one_app(on_celery, run, app_id, tries=1)
