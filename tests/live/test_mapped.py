"""Many mapped tasks at a time, in a pool, with retries, and one that fails."""

from __future__ import annotations

import time
from collections import Counter

from airflow_provider_launch.specs.states import AppState
from tests.live.dags import MAPPED_SLOTS
from tests.live.engines import apps_of
from tests.live.test_endings import STARTED_WITHIN_S, in_modes, on_engines
from tests.live.test_tries import PAUSE

FAILING = 7
COUNT = {"local": 100, "docker": 10}  # a container costs the engine a second


@on_engines
@in_modes
def test_one_of_many_mapped_tasks_fails_and_is_retried(live, engine: str, mode: str) -> None:
    count = COUNT[engine]
    pause = PAUSE if mode == "deferrable" else "true"
    run = live.run(f"mapped_{mode}", engine, f"{pause}; test $1 != {FAILING} || exit 3", count=count)

    most, ended, states = 0, 0, Counter()
    moved = time.monotonic()
    while ended < count:
        states = Counter(task["state"] for task in run.tasks())
        most = max(most, states["running"])
        before, ended = ended, states["success"] + states["failed"]
        # How long all of them take is the machine's matter: a busy one starts a task each 4 seconds.
        moved = moved if ended == before else time.monotonic()
        assert time.monotonic() < moved + STARTED_WITHIN_S, states
        time.sleep(5)

    assert states == {"success": count - 1, "failed": 1}
    assert most <= MAPPED_SLOTS
    failed = run.task(FAILING)
    assert (failed["state"], failed["try_number"]) == ("failed", 2)
    assert any("exited with code 3" in line for line in run.log(2, FAILING))
    apps = apps_of(live.engines[engine], run.run_id)
    assert Counter(apps.values()) == {AppState.SUCCEEDED: count - 1, AppState.FAILED: 2}
