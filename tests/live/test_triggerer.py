"""A triggerer that is stopped or killed: no app is hurt, and no line is lost."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.engines import apps_of
from tests.live.runs import Run
from tests.live.test_endings import STARTED_WITHIN_S, lines_of
from tests.support.apps import until

pytestmark = pytest.mark.alone
log = logging.getLogger(__name__)

APPS = 20
# Each costs about 20 seconds. The whole proof is 20: a stop has to meet the moment of a checkpoint, too.
TERMS = KILLS = int(os.environ.get("LAUNCH_TRIGGERER_RESTARTS", "1"))
LINES_PER_S = 10
CHECKPOINT_S = 10
# A checkpoint waits until Airflow has taken what was written; then it is to be stored.
STORED_WITHIN_S = 5
# One writer; the other replica is only there.
SCRIPT = (
    "test $LAUNCH_REPLICA_ID = 0 || exit 0; n=0; "
    f"while test ! -e STOP; do seq $n $((n + {LINES_PER_S - 1})); n=$((n + {LINES_PER_S})); sleep 1; done; echo end $n"
)
NUMBERED = re.compile(rb'"timestamp": ?"([^"]+)Z".*?"event": ?"\[main/0\] (\d+)"')
END = re.compile(r"\[main/0\] end (\d+)")


@pytest.mark.timeout(3600)
def test_apps_and_their_lines_outlive_the_triggerer(live) -> None:
    """Stopped, it hands over every line once; killed, it may repeat what came after its last checkpoint."""
    engines = itertools.islice(itertools.cycle(live.engines.values()), APPS)
    apps = {Told(live.run("plain_deferrable", one.name, SCRIPT.replace("STOP", one.stop_file))): one for one in engines}
    until_followed(apps)

    for number in range(TERMS):
        restart(live, signal.SIGTERM, number)
        until_followed(apps)
        for told in apps:
            assert told.missing() == [], (number, told.run.run_id)
            assert told.repeated() == 0, (number, told.run.run_id, told.numbers.most_common(20))
        log.info("terminated %d times, %d lines", number + 1, sum(told.numbers.total() for told in apps))

    for number in range(KILLS):
        restart(live, signal.SIGKILL, number)
        until_followed(apps)
        for told in apps:
            assert told.missing() == [], (number, told.run.run_id)
            assert told.goes_back_s <= CHECKPOINT_S + STORED_WITHIN_S, (number, told.run.run_id)
        log.info(
            "killed %d times, %d lines, %d repeated, none written more than %.1f s before the kill",
            number + 1,
            sum(told.numbers.total() for told in apps),
            sum(told.repeated() for told in apps),
            max(told.goes_back_s for told in apps),
        )

    before = {told: told.repeated() for told in apps}
    for told, engine in apps.items():
        (app_id,) = apps_of(engine, told.run.run_id)
        engine.tell_to_stop(app_id)
    for told, engine in apps.items():
        assert told.run.end(300)["state"] == "success"
        assert list(apps_of(engine, told.run.run_id).values()) == [AppState.SUCCEEDED]
        (total,) = {int(found[1]) for line in lines_of(told.run) if (found := END.fullmatch(line))}
        told.read()
        assert set(told.numbers) == set(range(total)), told.run.run_id
        assert told.repeated() == before[told]


def restart(live, how: signal.Signals, number: int) -> None:
    """End the triggerer, each time at another moment between two checkpoints, and start it again."""
    time.sleep(7 * (number + 1) % 13)
    live.airflow.stop("triggerer", how)
    live.airflow.start("triggerer")


def until_followed(apps: Iterable[Told]) -> None:
    """Wait until lines of every app arrive that were not there before."""
    before = {told: told.read().last() for told in apps}
    for told, last in before.items():
        until(lambda told=told, last=last: told.read().last() > last, 2 * STARTED_WITHIN_S, 1)


class Told:
    """How often each numbered line of a run stands in its log files, and when it was written."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.numbers: Counter[int] = Counter()
        self.goes_back_s = 0.0
        """How long before the end of a triggerer the oldest line was written that the next one repeated."""
        self._written: dict[int, float] = {}
        self._ended: dict[Path, float] = {}
        self._read: Counter[Path] = Counter()

    def read(self) -> Told:
        """Take in what the files have more than the last time."""
        for path in self.run.airflow.log_files(self.run.dag_id, self.run.run_id):
            with path.open("rb") as file:
                file.seek(self._read[path])
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._read[path] += len(new)
            for moment, digits in NUMBERED.findall(new):
                self._take(path, datetime.fromisoformat(moment.decode()).timestamp(), int(digits))
        return self

    def _take(self, path: Path, written: float, number: int) -> None:
        if number in self.numbers:
            # Each triggerer has a file of its own; the one that has just ended wrote last.
            ended = max((moment for other, moment in self._ended.items() if other != path), default=math.inf)
            self.goes_back_s = max(self.goes_back_s, ended - self._written[number])
        self.numbers[number] += 1
        self._written[number] = self._ended[path] = written

    def last(self) -> int:
        """Return the highest number so far."""
        return max(self.numbers, default=-1)

    def missing(self) -> list[int]:
        """Return the numbers which are not there though a higher one is."""
        return sorted(set(range(self.last())) - set(self.numbers))

    def repeated(self) -> int:
        """Return how many lines too many there are."""
        return self.numbers.total() - len(self.numbers)
