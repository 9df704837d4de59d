"""No app without an owner: runs and tasks that end between two processes, on Postgres; see docs/production.md."""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.owner import DEPLOYMENT, OWNER
from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.live.airflow import Airflow
from tests.live.conftest import WATCHED, Live
from tests.live.dags import MODES, ROOMY_SLOTS
from tests.live.engines import apps_of
from tests.live.runs import POLL_S, Run
from tests.live.test_endings import STARTED_WITHIN_S, begun, lines_of
from tests.support.apps import until
from tests.support.repeats import SOAK, often

pytestmark = pytest.mark.alone
log = logging.getLogger(__name__)

TASKS = often(9, 30)
TIMES = often(1, 10)
FAULTY_S = often(45, 300)
# On two cores that nothing else uses 45 s are enough.
GONE_WITHIN_S = 120
FOREVER = "echo began; exec sleep 5400"


def living(live, run: Run) -> list[str]:
    return [app_id for app_id, state in apps_of(live.engines["local"], run.run_id).items() if not is_terminal(state)]


def lives(live, app_id: str) -> bool:
    return live.engines["local"].alive(app_id) > 0


def until_none_is_alive(live, run: Run, what: str) -> None:
    """Wait until no app of the run is running, and stays so, because a starting worker may still launch one."""
    began, quiet, last = time.monotonic(), 0, 0.0
    while quiet < 4:
        alive = living(live, run)
        quiet = 0 if alive else quiet + 1
        last = time.monotonic() - began if alive else last
        assert time.monotonic() < began + GONE_WITHIN_S, f"{what}: {len(alive)} apps live on: {alive}"
        time.sleep(2)
    log.info(
        "%s: %d apps, the last one ended after %.0f s", what, len(apps_of(live.engines["local"], run.run_id)), last
    )


def launched(live, **owner: str) -> str:
    """Return an app that no task of this Airflow has launched; the owner is what its metadata name."""
    scheduler = live.engines["local"].scheduler
    app = AppDef("by-hand", [Role("main", str(live.engines["local"].root), entrypoint="sleep", args=["5400"])])
    if owner:
        app.metadata[OWNER] = owner
    return scheduler.schedule(scheduler.submit_dryrun(app, {}))


def owner_of(live, app_id: str) -> dict[str, str]:
    (owner,) = (dict(row.owner) for row in live.engines["local"].scheduler.list() if row.app_id == app_id)
    return owner


class Orphans:
    """Apps whose owner is a task that has failed: while they end, the reconciler of a triggerer does its work."""

    def __init__(self, live) -> None:
        self._live = live
        run, app_id = begun(live, "plain_deferrable", "local", FOREVER)
        self.owner = owner_of(live, app_id)
        run.mark("failed")
        until(lambda: not lives(live, app_id), GONE_WITHIN_S, POLL_S)

    def launch(self) -> str:
        return launched(self._live, **self.owner)

    def see_one_end(self) -> None:
        """Return when an orphan was found twice, 20 s apart: everything else was compared with its task as often."""
        app_id = self.launch()
        until(lambda: not lives(self._live, app_id), GONE_WITHIN_S, POLL_S)


# ---- runs that end while they launch -------------------------------------------------------------------------


def mark_and_delete(run: Run) -> None:
    run.mark_run("failed")
    run.delete()


ENDS: dict[str, Callable[[Run], object]] = {
    "failed": lambda run: run.mark_run("failed"),
    "success": lambda run: run.mark_run("success"),
    "deleted": mark_and_delete,
}


def end_while_it_launches(live, mode: str, how: str) -> None:
    run = live.run(f"launching_{mode}", "local", FOREVER, count=TASKS)
    until(lambda: len(living(live, run)) >= TASKS // 3, 4 * STARTED_WITHIN_S, POLL_S)
    ENDS[how](run)
    until_none_is_alive(live, run, f"{mode}, {how}")


def clear_with_a_full_pool(live, mode: str) -> None:
    """The new tries wait for room; the apps of the old ones do not."""
    pool = f"roomy_{mode}"
    run = live.run(f"roomy_{mode}", "local", FOREVER, count=TASKS)
    until(lambda: len(living(live, run)) >= TASKS // 3, 4 * STARTED_WITHIN_S, POLL_S)
    with no_room(live.airflow, pool):
        run.clear()
        until_none_is_alive(live, run, f"{mode}, cleared")
        run.mark_run("failed")
    until_none_is_alive(live, run, f"{mode}, cleared, then failed")


@contextlib.contextmanager
def no_room(airflow: Airflow, pool: str) -> Iterator[None]:
    airflow.resize(pool, 0)
    try:
        yield
    finally:
        airflow.resize(pool, ROOMY_SLOTS)


def test_runs_that_end_while_they_launch_leave_no_app(on_postgres) -> None:
    """All at the same time: a busy Airflow has wider gaps between two processes."""
    for _ in range(TIMES):
        with ThreadPoolExecutor(6) as pool:
            ended = [
                pool.submit(end_while_it_launches, on_postgres, mode, how)
                for mode, how in itertools.product(MODES, ENDS)
            ]
        for each in ended:
            each.result()


def test_tasks_that_are_cleared_with_a_full_pool_leave_no_app(on_postgres) -> None:
    for _ in range(TIMES):
        with ThreadPoolExecutor(2) as pool:
            cleared = [pool.submit(clear_with_a_full_pool, on_postgres, mode) for mode in MODES]
        for each in cleared:
            each.result()


def test_a_task_that_is_marked_when_it_defers_cancels_its_app(on_postgres) -> None:
    """Airflow refuses the deferral, so no trigger will ever follow the app."""
    live = on_postgres
    run = live.run("marked_deferrable", "local", FOREVER)

    assert run.wait({"failed"}, STARTED_WITHIN_S)["state"] == "failed"
    until(lambda: apps_of(live.engines["local"], run.run_id), STARTED_WITHIN_S, POLL_S)
    until_none_is_alive(live, run, "marked at the deferral")

    (app_id,) = apps_of(live.engines["local"], run.run_id)
    # Airflow may ask for the end of the worker before it refuses.
    ends = ("so its deferral was refused", f"app {app_id}")
    assert any(each in line for line in lines_of(run) for each in ends if "cancel" in line), [*lines_of(run)]


# ---- what is kept --------------------------------------------------------------------------------------------


def test_a_triggerer_that_comes_back_cancels_nothing(on_postgres) -> None:
    """Another one has taken over its triggers and fired: the task looks like one that was cleared."""
    live = on_postgres
    stop = live.engines["local"].stop_file
    run = live.run("patient_deferrable", "local", f"echo began; while test ! -e {stop}; do sleep 1; done")
    run.wait({"deferred"}, STARTED_WITHIN_S)
    until(lambda: "[main/0] began" in lines_of(run), STARTED_WITHIN_S, POLL_S)
    (app_id,) = living(live, run)
    live.airflow.start_another_triggerer()
    try:
        with no_room(live.airflow, "roomy_deferrable"):
            until(lambda: "Triggerer" in live.airflow.output("triggerer-2"), STARTED_WITHIN_S, POLL_S)
            live.airflow.send_signal("triggerer", signal.SIGSTOP)
            live.engines["local"].tell_to_stop(app_id)
            run.wait({"scheduled"}, 2 * STARTED_WITHIN_S)
            live.airflow.send_signal("triggerer", signal.SIGCONT)
            # Its reconciler has compared everything, and its triggers were ended, or itself.
            Orphans(live).see_one_end()
            assert run.task()["state"] == "scheduled"
        assert run.end(STARTED_WITHIN_S)["state"] == "success"
    finally:
        live.airflow.stop("triggerer-2")
        live.airflow.stop("triggerer", signal.SIGKILL)
        live.airflow.start("triggerer")
    assert not [line for line in lines_of(run) if "is cancelled" in line]


def test_without_triggerers_the_maintenance_dag_cancels_orphans(on_postgres) -> None:
    live = on_postgres
    over, over_id = begun(live, "plain_deferrable", "local", FOREVER)
    goes, goes_id = begun(live, "plain_deferrable", "local", FOREVER)
    left, left_id = begun(live, "left_deferrable", "local", FOREVER)
    foreign = launched(live, **{**owner_of(live, over_id), DEPLOYMENT: "another"})
    unowned = launched(live)
    live.airflow.stop("triggerer", signal.SIGKILL)
    try:
        over.mark("failed")
        left.mark("failed")
        maintenance = Run(live.airflow, "launch_orphans")
        until(lambda: maintenance.state() in {"success", "failed"}, 2 * STARTED_WITHIN_S, POLL_S)

        assert maintenance.state() == "success"
        until(lambda: not lives(live, over_id), GONE_WITHIN_S, POLL_S)
        assert all(lives(live, app_id) for app_id in (goes_id, left_id, foreign, unowned))
    finally:
        live.airflow.start("triggerer")
    # Triggerers, too, keep what is not theirs to end: an orphan ends after about five rounds.
    orphans = Orphans(live)
    for _ in range(2):
        orphans.see_one_end()
    assert all(lives(live, app_id) for app_id in (goes_id, left_id, foreign, unowned))
    goes.mark("failed")
    until(lambda: not lives(live, goes_id), GONE_WITHIN_S, POLL_S)


def test_the_app_of_a_lost_worker_waits_for_the_retry(on_postgres) -> None:
    """Neither a long pause before the retry, nor a pool without room, nor a scheduler that dies costs the app."""
    live = on_postgres
    orphans = Orphans(live)
    stop = live.engines["local"].stop_file
    run, app_id = begun(live, "patient_sync", "local", f"echo began; while test ! -e {stop}; do sleep 1; done")
    live.airflow.lose_worker(run.task()["id"])
    run.wait({"up_for_retry"}, STARTED_WITHIN_S)
    with no_room(live.airflow, "roomy_sync"):
        orphans.see_one_end()
        run.wait({"scheduled"}, 2 * STARTED_WITHIN_S)
        orphans.see_one_end()
        live.airflow.stop("scheduler", signal.SIGKILL)
        live.airflow.start("scheduler")
        orphans.see_one_end()
        assert lives(live, app_id)
    until(lambda: any(f"continuing with app {app_id}" in line for line in lines_of(run)), STARTED_WITHIN_S, POLL_S)
    live.engines["local"].tell_to_stop(app_id)

    assert run.end(STARTED_WITHIN_S)["state"] == "success"
    assert apps_of(live.engines["local"], run.run_id) == {app_id: AppState.SUCCEEDED}


@contextlib.contextmanager
def copied(live: Live, home: Path, deployment: str) -> Iterator[Live]:
    """Start an Airflow on a copy of the database, with the connections and the deployment id of the original."""
    assert live.postgres is not None
    settings = {**WATCHED, "AIRFLOW__LAUNCH__DEPLOYMENT_ID": deployment}
    database, apps = live.postgres.copy("copied"), live.engines["local"]
    airflow = Airflow(home, {"local": apps.connection}, database=database, settings=settings)
    try:
        airflow.begin()
        yield Live(airflow, {"local": apps})
    finally:
        airflow.end()


def test_a_copy_of_the_database_ends_no_app_of_the_original(on_postgres, tmp_path: Path) -> None:
    """Only the runs that each of the two has seen differ."""
    live = on_postgres
    deployment = Orphans(live).owner[DEPLOYMENT]
    with copied(live, tmp_path, deployment) as copy:
        run, app_id = begun(live, "plain_deferrable", "local", FOREVER)
        assert owner_of(live, app_id)[DEPLOYMENT] == deployment

        # The triggerer of the copy compares every app with the tasks of the copy.
        Orphans(copy).see_one_end()
        assert lives(live, app_id)
        assert f"original of a copied database: {app_id}" in (tmp_path / "triggerer.log").read_text()
    run.mark("failed")
    until(lambda: not lives(live, app_id), GONE_WITHIN_S, POLL_S)


@pytest.mark.parametrize("fault", ["empty", "500", "404", "nothing"])
def test_wrong_answers_of_airflow_end_no_app(on_postgres, fault: str) -> None:
    """A proxy, a bug or a broken database must not look like tasks that are over."""
    if fault != "empty" and not SOAK:
        pytest.skip("make soak runs it")
    live = on_postgres
    orphans = Orphans(live)
    run, app_id = begun(live, "plain_deferrable", "local", FOREVER)
    with live.airflow.faults(fault):
        kept = [orphans.launch() for _ in range(3)]
        deadline = time.monotonic() + FAULTY_S
        asked = live.airflow.asked_in_vain()
        until(lambda: live.airflow.asked_in_vain() >= asked + 4, 2 * STARTED_WITHIN_S, POLL_S)
        time.sleep(max(deadline - time.monotonic(), 0))
        assert all(lives(live, each) for each in (app_id, *kept))
    until(lambda: not any(lives(live, each) for each in kept), 2 * GONE_WITHIN_S, POLL_S)
    assert lives(live, app_id)
    run.mark("failed")
    until(lambda: not lives(live, app_id), GONE_WITHIN_S, POLL_S)
