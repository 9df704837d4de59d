"""The host of the workers restarts."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.dags import MODES
from tests.live.engines import apps_of
from tests.live.runs import POLL_S
from tests.live.test_endings import STARTED_WITHIN_S, begun, lines_of
from tests.support.apps import until

pytestmark = pytest.mark.alone


def test_apps_outlive_a_restart_of_all_workers(live) -> None:
    """A retry continues with the app; a deferred task, which has no worker, does not notice."""

    def begin(engine: str, mode: str):
        stop = live.engines[engine].stop_file
        script = f"echo began; test $LAUNCH_REPLICA_ID = 0 || exit 0; while test ! -e {stop}; do sleep 1; done"
        return begun(live, f"retried_{mode}", engine, script)

    wanted = [(engine, mode) for engine in live.engines for mode in MODES]
    with ThreadPoolExecutor() as threads:
        runs = dict(zip(wanted, threads.map(lambda one: begin(*one), wanted), strict=True))

    # The LocalExecutor is a part of the scheduler, and its workers are its children.
    live.airflow.stop("scheduler", signal.SIGKILL)
    live.airflow.start("scheduler")

    for (engine, mode), (run, app_id) in runs.items():
        if mode == "sync":
            going_on = f"continuing with app {app_id} of the last try, which is RUNNING"
            until(lambda run=run, text=going_on: text in lines_of(run), STARTED_WITHIN_S, POLL_S)
        live.engines[engine].tell_to_stop(app_id)
    for (engine, mode), (run, app_id) in runs.items():
        task = run.end(STARTED_WITHIN_S)
        assert (task["state"], task["try_number"]) == ("success", 2 if mode == "sync" else 1)
        assert apps_of(live.engines[engine], run.run_id) == {app_id: AppState.SUCCEEDED}
