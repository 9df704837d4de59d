"""A platform in trouble: a hundred deferred apps on Postgres, two triggerers, and each part goes away once."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.live.airflow import Airflow
from tests.live.engines import LocalApps, apps_of
from tests.live.postgres import Postgres, airflow_on_postgres
from tests.live.runs import Run
from tests.live.test_many import PER_TASK_S, states, wait_for
from tests.support.apps import until
from tests.support.repeats import SOAK

pytestmark = pytest.mark.alone
log = logging.getLogger(__name__)

APPS = int(os.environ.get("LAUNCH_SOAK_APPS", "100"))
SCRIPT = "n=0; while test ! -e STOP; do echo $n; n=$((n + 1)); sleep 2; done; echo end $n"
NUMBERED = re.compile(rb'"event": ?"\[main/0\] (end )?(\d+)"')
INDEX = re.compile(r"map_index=(\d+)")
_PAUSE_S = 20


@pytest.fixture
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Airflow, Postgres, LocalApps]]:
    if not SOAK:
        pytest.skip("takes minutes: make soak runs it")
    with airflow_on_postgres(tmp_path_factory.mktemp("platform")) as (airflow, postgres, apps):
        airflow.start_another_triggerer()
        yield airflow, postgres, apps


@pytest.mark.timeout(5400)
def test_apps_and_lines_outlive_every_part_of_the_platform(platform: tuple[Airflow, Postgres, LocalApps]) -> None:
    """Five disturbances, one after the other; no app is started twice, and no line is lost."""
    airflow, postgres, apps = platform
    conf = {"engine": "local", "image": "", "script": SCRIPT.replace("STOP", f"{apps.root}/stop"), "count": APPS}
    run = Run(airflow, "disturbed_deferrable", **conf)
    wait_for(run, "deferred", APPS)
    before = apps_of(apps, run.run_id)
    # A busy scheduler of Airflow may reset a task that runs; its app is cancelled, and its next try has another one.
    alive = {app_id for app_id, state in before.items() if not is_terminal(state)}
    assert len(alive) == APPS

    def restart(part: str, how: signal.Signals) -> None:
        airflow.stop(part, how)
        airflow.start(part)

    def restart_postgres() -> None:
        postgres.stop()
        time.sleep(5)
        postgres.start()

    def wait(seconds: float) -> None:
        """Start again what has ended, as systemd does, also what notices late that its database was away."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for part in [part for part in airflow.parts if not airflow.is_alive(part)]:
                log.info("%s has ended; it is started again", part)
                restart(part, signal.SIGKILL)
            time.sleep(1)

    for name, disturb in {
        "a triggerer is stopped": lambda: restart("triggerer", signal.SIGTERM),
        "a triggerer is killed": lambda: restart("triggerer-2", signal.SIGKILL),
        "the scheduler is killed": lambda: restart("scheduler", signal.SIGKILL),
        "the API server is killed": lambda: restart("api-execution", signal.SIGKILL),
        "Postgres restarts": restart_postgres,
    }.items():
        log.info("%s: %s", name, dict(states(run)))
        disturb()
        wait(_PAUSE_S)
    (apps.root / "stop").touch()
    deadline = time.monotonic() + 300 + PER_TASK_S * APPS
    while (found := states(run))["success"] < APPS:
        assert not found["failed"], found
        assert time.monotonic() < deadline, found
        wait(5)

    # The same app for each task, whatever happened.
    found_apps = apps_of(apps, run.run_id)
    assert found_apps.keys() == before.keys()
    assert {app_id for app_id, state in found_apps.items() if state is AppState.SUCCEEDED} == alive
    until(lambda: len(_lines(run)) == APPS, 60, 5)
    lost, repeated = 0, 0
    for numbers, end in _lines(run).values():
        lost += len({*range(end)} - numbers.keys())
        repeated += numbers.total() - len(numbers)
    log.info("%d apps, %d lines lost, %d shown twice", APPS, lost, repeated)
    assert lost == 0


def _lines(run: Run) -> dict[int, tuple[Counter[int], int]]:
    """Return by map index how often each numbered line was logged, and how many there were."""
    numbers: dict[int, Counter[int]] = defaultdict(Counter)
    ends: dict[int, int] = {}
    for path in run.airflow.log_files(run.dag_id, run.run_id):
        if (found := INDEX.search(str(path))) is None:
            continue
        index = int(found[1])
        for is_end, digits in NUMBERED.findall(path.read_bytes()):
            if is_end:
                ends[index] = int(digits)
            else:
                numbers[index][int(digits)] += 1
    return {index: (numbers[index], end) for index, end in ends.items()}
