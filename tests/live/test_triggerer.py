"""A triggerer that is stopped or killed: no app is hurt, and no line is lost."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections import Counter

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.engines import apps_of
from tests.live.runs import Run
from tests.live.test_endings import STARTED_WITHIN_S, lines_of
from tests.support.local import until

pytestmark = pytest.mark.alone

APPS = 20
# Each costs about 15 seconds; the whole proof is 20.
TERMS = KILLS = int(os.environ.get("LAUNCH_TRIGGERER_RESTARTS", "1"))
LINES_PER_S = 10
CHECKPOINT_S = 10
# One writer; the other replica is only there.
SCRIPT = (
    "test $LAUNCH_REPLICA_ID = 0 || exit 0; n=0; "
    f"while test ! -e STOP; do seq $n $((n + {LINES_PER_S - 1})); n=$((n + {LINES_PER_S})); sleep 1; done; echo end $n"
)
NUMBERED = re.compile(r"\[main/0\] (\d+)")
END = re.compile(r"\[main/0\] end (\d+)")


@pytest.mark.timeout(3600)
def test_apps_and_their_lines_outlive_the_triggerer(live) -> None:
    """Stopped, it hands over every line once; killed, it may repeat what came after its last checkpoint."""
    engines = itertools.islice(itertools.cycle(live.engines.values()), APPS)
    runs = {live.run("plain_deferrable", one.name, SCRIPT.replace("STOP", one.stop_file)): one for one in engines}
    follows(runs)

    for _ in range(TERMS):
        live.airflow.stop("triggerer", signal.SIGTERM)
        live.airflow.start("triggerer")
        follows(runs)
    for run in runs:
        told = numbers(run)
        assert told == Counter(range(len(told))), (run.run_id, wrong(told))

    for _ in range(KILLS):
        live.airflow.stop("triggerer", signal.SIGKILL)
        live.airflow.start("triggerer")
        follows(runs)
    for run, engine in runs.items():
        (app_id,) = apps_of(engine, run.run_id)
        engine.tell_to_stop(app_id)
    for run, engine in runs.items():
        assert run.end(300)["state"] == "success"
        assert list(apps_of(engine, run.run_id).values()) == [AppState.SUCCEEDED]
        told = numbers(run)
        (total,) = {int(found[1]) for line in lines_of(run) if (found := END.fullmatch(line))}
        assert set(told) == set(range(total)), (run.run_id, wrong(told))
        repeated = sum(count - 1 for count in told.values())
        assert repeated <= KILLS * 3 * CHECKPOINT_S * LINES_PER_S, (run.run_id, wrong(told))


def numbers(run: Run) -> Counter[int]:
    """Return how often each numbered line stands in the log files."""
    return Counter(int(found[1]) for line in lines_of(run) if (found := NUMBERED.fullmatch(line)))


def wrong(told: Counter[int]) -> dict[str, list[int]]:
    """Return which lines are missing before the last one, and which are there more than once."""
    missing = sorted(set(range(max(told, default=0))) - set(told))
    return {"missing": missing, "repeated": sorted(number for number, count in told.items() if count > 1)}


def follows(runs: dict[Run, object]) -> None:
    """Wait until lines of every app arrive that were not there before."""
    before = {run: max(numbers(run), default=-1) for run in runs}
    until(lambda: all(max(numbers(run), default=-1) > before[run] for run in runs), 2 * STARTED_WITHIN_S, 1)
