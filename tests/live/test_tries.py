"""The app of the last try and the next try, as in the table of the docs."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.dags import MODES
from tests.live.engines import apps_of
from tests.live.runs import POLL_S
from tests.live.test_endings import (
    STARTED_WITHIN_S,
    assert_dead,
    begun,
    in_modes,
    lines_of,
    on_engines,
    terminate_worker,
)
from tests.support.apps import until

# LocalExecutor may lose track of a task that is deferred for less than 10 seconds.
PAUSE = "sleep 10"
FAILED, SUCCEEDED = AppState.FAILED, AppState.SUCCEEDED
# A deferred task has no worker that could be lost. When it has one again its app has ended: see `finishing`.
in_sync_mode = pytest.mark.parametrize("mode", MODES[:1])


def states(live, engine: str, run) -> list[AppState]:
    return list(apps_of(live.engines[engine], run.run_id).values())


@on_engines
@in_modes
def test_a_retry_after_a_failure_launches_a_new_app(live, engine: str, mode: str) -> None:
    run = live.run(f"retried_{mode}", engine, f"{PAUSE}; exit 3")

    assert run.end(180, try_number=2)["state"] == "failed"
    assert states(live, engine, run) == [FAILED, FAILED]
    assert any("exited with code 3" in line for line in run.log(2))


@on_engines
@in_modes
def test_a_cleared_failure_launches_a_new_app(live, engine: str, mode: str) -> None:
    run = live.run(f"plain_{mode}", engine, f"{PAUSE}; exit 3")
    assert run.end(180)["state"] == "failed"

    run.clear()

    assert run.end(try_number=2)["state"] == "failed"
    assert states(live, engine, run) == [FAILED, FAILED]


@on_engines
@in_modes
def test_a_cleared_success_launches_a_new_app(live, engine: str, mode: str) -> None:
    run = live.run(f"plain_{mode}", engine, f"{PAUSE}; echo done")
    assert run.end(180)["state"] == "success"
    first = run.xcom("return_value")["handle"]

    run.clear()

    assert run.end(try_number=2)["state"] == "success"
    assert states(live, engine, run) == [SUCCEEDED, SUCCEEDED]
    assert run.xcom("return_value")["handle"] != first


@on_engines
@in_sync_mode
def test_a_retry_after_the_loss_of_a_worker_continues_with_the_app(live, engine: str, mode: str) -> None:
    """The app is at work for hours; a host that goes down for an update must not cost them."""
    place = live.engines[engine]
    script = f"echo began; test $LAUNCH_REPLICA_ID = 0 || exit 0; while test ! -e {place.stop_file}; do sleep 1; done"
    run, app_id = begun(live, f"retried_{mode}", engine, script)

    live.airflow.lose_worker(run.task()["id"])
    going_on = f"continuing with app {app_id} of the last try, which is RUNNING"
    until(lambda: going_on in lines_of(run), STARTED_WITHIN_S, POLL_S)
    place.tell_to_stop(app_id)

    assert run.end(try_number=2)["state"] == "success"
    assert apps_of(place, run.run_id) == {app_id: SUCCEEDED}


@on_engines
@in_sync_mode
def test_a_retry_after_the_loss_of_a_worker_takes_the_result(live, engine: str, mode: str) -> None:
    """The app has ended before Airflow noticed that no worker follows it."""
    run, app_id = begun(
        live, f"retried_{mode}", engine, "echo began; sleep 15; echo '{\"n\": 3}' > ${LAUNCH_RESULT_PATH:-/dev/null}"
    )

    live.airflow.lose_worker(run.task()["id"])
    until(lambda: states(live, engine, run) == [SUCCEEDED], STARTED_WITHIN_S, POLL_S)

    assert run.end(180, try_number=2)["state"] == "success"
    assert run.xcom("return_value")["result"] == {"n": 3}
    assert apps_of(live.engines[engine], run.run_id) == {app_id: SUCCEEDED}


@on_engines
@in_sync_mode
def test_a_retry_after_the_loss_of_a_worker_replaces_a_failed_app(live, engine: str, mode: str) -> None:
    run, _ = begun(live, f"retried_{mode}", engine, "echo began; sleep 15; exit 3")

    live.airflow.lose_worker(run.task()["id"])

    assert run.end(180, try_number=2)["state"] == "failed"
    assert states(live, engine, run) == [FAILED, FAILED]


@on_engines
@in_sync_mode
def test_a_clear_after_the_loss_of_a_worker_replaces_the_app(live, engine: str, mode: str) -> None:
    run, old = begun(live, f"plain_{mode}", engine, "echo began; exec sleep 300")
    live.airflow.lose_worker(run.task()["id"])
    assert run.end(180)["state"] == "failed"
    assert live.engines[engine].alive(old)

    run.clear()
    run.wait({"running", "deferred"}, try_number=2)

    assert_dead(live, engine, old)
    until(lambda: len(states(live, engine, run)) == 2, STARTED_WITHIN_S, POLL_S)
    run.mark("failed")
    for app_id in apps_of(live.engines[engine], run.run_id):
        assert_dead(live, engine, app_id)


@on_engines
@in_modes
def test_an_app_that_vanished_is_a_failure_of_unknown_outcome(live, engine: str, mode: str) -> None:
    run, app_id = begun(live, f"plain_{mode}", engine, "echo began; exec sleep 300")
    # As with PAUSE.
    began = time.monotonic()
    until(lambda: mode == "sync" or time.monotonic() > began + 10, pause_s=POLL_S)

    live.engines[engine].vanish(app_id)

    assert run.end(180)["state"] == "failed"
    assert any("how it ended is unknown" in line for line in run.log(1)), run.log(1)


def finishing(live, engine: str):
    """Return a run and its app, which has succeeded while it was deferred, when a worker is at the rest of its log."""
    # More lines in a burst than a triggerer can show, and the worker is at them for a second.
    script = f"test $LAUNCH_REPLICA_ID = 0 || exit 0; {PAUSE}; seq 20000; echo '{{\"n\": 3}}' > $LAUNCH_RESULT_PATH"
    run = live.run("retried_deferrable", engine, script)
    run.wait({"deferred"}, STARTED_WITHIN_S)
    before = written_by_worker(run)
    until(lambda: states(live, engine, run) == [SUCCEEDED], STARTED_WITHIN_S, POLL_S)
    (app_id,) = apps_of(live.engines[engine], run.run_id)
    until(lambda: written_by_worker(run) > before + 20_000, STARTED_WITHIN_S)
    return run, app_id


def written_by_worker(run) -> int:
    return sum(
        path.stat().st_size for path in run.airflow.log_files(run.dag_id, run.run_id) if ".trigger." not in path.name
    )


@on_engines
@pytest.mark.parametrize("ending", ["lost", "terminated"])
def test_a_retry_after_the_end_of_a_worker_that_was_finishing_takes_the_result(live, engine: str, ending: str) -> None:
    run, app_id = finishing(live, engine)

    if ending == "terminated":
        terminate_worker(run)
    else:
        live.airflow.lose_worker(run.task()["id"])

    assert run.end(300, try_number=2)["state"] == "success"
    assert run.states_of_tries()[0] != "success"
    assert run.xcom("return_value")["result"] == {"n": 3}
    assert apps_of(live.engines[engine], run.run_id) == {app_id: SUCCEEDED}
