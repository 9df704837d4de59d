"""Many mapped tasks at a time, in a pool, with retries, and one that fails."""

from __future__ import annotations

import time
from collections import Counter

from airflow_provider_launch.specs.states import AppState
from tests.live.dags import MAPPED, MAPPED_FAILING, MAPPED_SLOTS
from tests.live.engines import apps_of
from tests.live.test_endings import in_modes, on_engines


@on_engines
@in_modes
def test_one_of_a_hundred_mapped_tasks_fails_and_is_retried(live, engine: str, mode: str) -> None:
    run = live.run(f"mapped_{mode}", engine)

    most, states = 0, Counter()
    deadline = time.monotonic() + 420
    while states["success"] + states["failed"] < MAPPED:
        states = Counter(task["state"] for task in run.tasks())
        most = max(most, states["running"])
        assert time.monotonic() < deadline, states
        time.sleep(1)

    assert states == {"success": MAPPED - 1, "failed": 1}
    assert most <= MAPPED_SLOTS
    failed = run.task(MAPPED_FAILING)
    assert (failed["state"], failed["try_number"]) == ("failed", 2)
    assert any("exited with code 3" in line for line in run.log(2, MAPPED_FAILING))
    apps = apps_of(live.engines[engine], run.run_id)
    assert Counter(apps.values()) == {AppState.SUCCEEDED: MAPPED - 1, AppState.FAILED: 2}
