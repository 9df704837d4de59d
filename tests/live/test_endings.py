"""However a task is ended, nothing of its app lives on, and nothing looks like a success."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.airflow.versions import HAS_TERMINATION
from tests.live.dags import EXECUTION_TIMEOUT_S, GRACE_S, MODES, RUN_TIMEOUT_S
from tests.live.engines import apps_of
from tests.live.runs import POLL_S, Run, texts_of
from tests.support.apps import until

DEAD_WITHIN_S = GRACE_S + 30
STATE_WITHIN_S = 5
STARTED_WITHIN_S = 240
# The second replica does not end by itself when it is told to.
SCRIPT = 'echo began; test $LAUNCH_REPLICA_ID = 0 && exec sleep 600; trap "" TERM; while :; do sleep 1; done'

on_engines = pytest.mark.parametrize("engine", ["local", pytest.param("docker", marks=pytest.mark.engine("docker"))])
in_modes = pytest.mark.parametrize("mode", MODES)


def begun(live, dag_id: str, engine: str, script: str = SCRIPT) -> tuple[Run, str]:
    """Return a run whose task follows a running app that has printed "began", and the app's id."""
    run = live.run(dag_id, engine, script)
    run.wait({"deferred" if dag_id.endswith("deferrable") else "running"}, STARTED_WITHIN_S)
    until(lambda: run.xcom("handle"), STARTED_WITHIN_S, POLL_S)
    (app_id,) = apps_of(live.engines[engine], run.run_id)
    until_followed(run)
    return run, app_id


def until_followed(run: Run, tries: int = 1) -> None:
    """Wait until the log has the first lines of both replicas of the newest try.

    If a deferred task is ended before its trigger has started, no process could cancel its app.
    """
    wanted = {f"[main/{k}] began": tries for k in (0, 1)}
    until(lambda: wanted.items() <= Counter(lines_of(run)).items(), STARTED_WITHIN_S, POLL_S)


def lines_of(run: Run) -> Iterator[str]:
    """Return the texts in the log files of the run, in which a live line is at once."""
    for path in run.airflow.log_files(run.dag_id, run.run_id):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                yield from texts_of(json.loads(line))


def terminate_worker(run: Run) -> None:
    supervisor, _ = run.airflow.worker_of(run.task()["id"])
    # As a host that shuts down does; the supervisor hands it on to the task.
    os.kill(supervisor, signal.SIGTERM)


ENDINGS: dict[str, Callable[[Run], object]] = {
    "marked failed": lambda run: run.mark("failed"),
    "run marked failed": lambda run: run.mark_run("failed"),
    # Before Airflow 3.3 the supervisor ends alone, which is the loss of a worker.
    **({"worker terminated": terminate_worker} if HAS_TERMINATION else {}),
}


@on_engines
@pytest.mark.parametrize(
    ("mode", "ending"),
    # A deferred task has no worker; test_tries.py terminates the one that finishes it.
    [(mode, ending) for mode in MODES for ending in ENDINGS if (mode, ending) != ("deferrable", "worker terminated")],
)
def test_an_ended_task_leaves_nothing_running(live, engine: str, mode: str, ending: str) -> None:
    run, app_id = begun(live, f"plain_{mode}", engine)

    ENDINGS[ending](run)

    assert_dead(live, engine, app_id)
    assert run.end()["state"] == "failed"
    assert_cancelled(live, engine, run, app_id)


@on_engines
@in_modes
def test_a_task_that_is_marked_successful_leaves_nothing_running(live, engine: str, mode: str) -> None:
    run, app_id = begun(live, f"plain_{mode}", engine)

    run.mark("success")

    assert_dead(live, engine, app_id)
    # As the user says; nothing of an app's success is handed on.
    assert run.end()["state"] == "success"
    assert run.xcom("return_value") is None


@on_engines
@in_modes
def test_a_run_that_is_failed_and_deleted_leaves_nothing_running(live, engine: str, mode: str) -> None:
    run, app_id = begun(live, f"plain_{mode}", engine)

    run.mark("failed")
    run.delete()

    assert_dead(live, engine, app_id)


@on_engines
@in_modes
def test_a_run_that_times_out_leaves_nothing_running(live, engine: str, mode: str) -> None:
    run, app_id = begun(live, f"brief_{mode}", engine)

    task = run.end(RUN_TIMEOUT_S + 60)

    assert task["state"] != "success"
    assert_dead(live, engine, app_id)


@on_engines
@in_modes
def test_a_task_that_times_out_leaves_nothing_running(live, engine: str, mode: str) -> None:
    run, app_id = begun(live, f"limited_{mode}", engine)

    until(lambda: live.engines[engine].alive(app_id) == 0, EXECUTION_TIMEOUT_S + DEAD_WITHIN_S, POLL_S)

    assert run.end()["state"] == "failed"
    assert_cancelled(live, engine, run, app_id)


@on_engines
@in_modes
def test_a_cleared_task_starts_again_and_ends_the_app_of_the_old_try(live, engine: str, mode: str) -> None:
    run, old = begun(live, f"plain_{mode}", engine)

    run.clear()
    run.wait({"running", "deferred"}, try_number=2)

    assert_dead(live, engine, old)
    until(lambda: len(apps_of(live.engines[engine], run.run_id)) == 2, STARTED_WITHIN_S, POLL_S)
    (new,) = apps_of(live.engines[engine], run.run_id).keys() - {old}
    until_followed(run, tries=2)
    assert live.engines[engine].alive(new) >= 2
    run.mark("failed")
    assert_dead(live, engine, new)
    assert "success" not in run.states_of_tries()


def assert_cancelled(live, engine: str, run: Run, app_id: str) -> None:
    """Docker reports the cause of a kill up to two seconds later, and until then counts the container as running."""
    until(lambda: apps_of(live.engines[engine], run.run_id) == {app_id: AppState.CANCELLED}, STATE_WITHIN_S, POLL_S)


def assert_dead(live, engine: str, app_id: str) -> None:
    until(lambda: live.engines[engine].alive(app_id) == 0, DEAD_WITHIN_S, POLL_S)
