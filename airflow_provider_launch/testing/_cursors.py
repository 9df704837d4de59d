"""Cursors: a read goes on exactly where another one ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import JsonValue, LogChunk, LogLine, Stream
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.testing._base import Apps, ContractBase, read_on
from airflow_provider_launch.testing._process import OtherProcess
from airflow_provider_launch.testing._repeats import often
from airflow_provider_launch.testing._retries import CAPABILITY

SEED = "LAUNCH_CONTRACT_SEED"
"""Variable with the seed of a run that is to be repeated; each random test prints its own."""

_CUTS = often(40, 200)
_FEW_CUTS = 30
_PAUSE_S = 0.03
_DIES = 0.2

# Writes in bursts, whose lines have almost the same time. Ends with the loop that is under way, so that the number of
# lines is known exactly. Its own stderr is another one, for shells print a word there when a signal ends what they
# started. The last one: a log of both streams may join a line without end with what the other stream has at the same
# time.
_WRITER = """
exec 3>&2 2>/dev/null
trap stop=1 TERM
n=0
while [ -z "$stop" ]; do
  n=$((n + 1)); echo "out $n"; echo "err $n" >&3
  if [ $((n % 20)) = 0 ]; then sleep 0.05; fi
done
trap '' TERM
sleep 0.5
printf "end $n"
"""

Read = Callable[[JsonValue], tuple[list[str], JsonValue]]


class _Reader:
    """Reads one replica piece by piece, each piece by a scheduler that knows nothing but the stored cursor."""

    def __init__(self, apps: Apps, app_id: str) -> None:
        self._apps = apps
        self._app_id = app_id
        seed = int(os.environ.get(SEED) or random.SystemRandom().getrandbits(32))
        # pytest shows it beside the failure. It repeats the moments of the cuts, not what the engine does meanwhile.
        print(f"cuts at random moments; to repeat them set {SEED}={seed}")  # noqa: T201 - see above
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self.texts: list[str] = []
        self.stored = "null"

    def here(self, cursor: JsonValue) -> tuple[list[str], JsonValue]:
        """Read by a fresh scheduler of this process."""
        chunk = self._chunk(cursor)
        return _texts(chunk), chunk.cursor

    def _chunk(self, cursor: JsonValue) -> LogChunk:
        with contextlib.closing(self._apps.another()) as scheduler:
            return scheduler.read_logs(self._app_id, "main", 0, cursor)

    def there(self, other: OtherProcess) -> Read:
        """Return a read by another process."""

        def read(cursor: JsonValue) -> tuple[list[str], JsonValue]:
            chunk: dict[str, Any] = other.call("read_logs", app_id=self._app_id, role="main", cursor=cursor)
            return [text for text, *_ in chunk["lines"]], chunk["cursor"]

        return read

    def cut(self, times: int, *reads: Read) -> None:
        """Read so many times at random moments; some readers die before they stored what they read."""
        for number in range(times):
            time.sleep(self._random.uniform(0, _PAUSE_S))
            texts, cursor = (reads or (self.here,))[number % max(1, len(reads))](json.loads(self.stored))
            if self._random.random() >= _DIES:
                self._store(texts, cursor)

    def finish(self) -> None:
        """Let the writer end, and read the rest."""
        self._apps.scheduler.cancel(self._app_id)
        self._apps.end(self._app_id)
        for chunk in read_on(self._chunk, self._apps.timeout_s, json.loads(self.stored)):
            self._store(_texts(chunk), chunk.cursor)

    def _store(self, texts: list[str], cursor: JsonValue) -> None:
        self.texts += texts
        self.stored = json.dumps(cursor)

    def check(self) -> None:
        """See that each line of the writer came once, in the order of its stream."""
        ends = [text for text in self.texts if text.startswith("end ")]
        assert len(ends) == 1, f"the last line came {len(ends)} times"
        count = int(ends[0].split()[1])
        for stream in ("out", "err"):
            numbers = [int(text[4:]) for text in self.texts if text.startswith(stream)]
            lost = sorted({*range(1, count + 1)} - {*numbers})
            assert not lost, f"{len(lost)} of {count} lines of {stream} are lost: {lost[:10]}"
            repeated = [number for number, times in Counter(numbers).items() if times > 1]
            assert not repeated, f"{len(repeated)} of {count} lines of {stream} came again: {repeated[:10]}"
            assert numbers == sorted(numbers), f"the lines of {stream} are out of order"
        assert len(self.texts) == 2 * count + 1


def _texts(chunk: LogChunk) -> list[str]:
    return [line.text for line in chunk.lines]


class CursorTests(ContractBase):
    """Readers come and go, and nothing is lost or reported twice."""

    def test_nothing_is_lost_or_repeated_at_many_cuts(self, apps: Apps) -> None:
        """Tasks defer, triggerers restart, workers die: each goes on from the cursor that the last one stored."""
        reader = _Reader(apps, apps.start(apps.sh(_WRITER)))
        reader.cut(_CUTS)
        reader.finish()

        reader.check()

    def test_a_cursor_is_good_in_another_process(self, apps: Apps, other_process: OtherProcess) -> None:
        """What the worker began the triggerer goes on with, and back; each cut is between two processes."""
        reader = _Reader(apps, apps.start(apps.sh(_WRITER)))
        reader.cut(_CUTS, reader.here, reader.there(other_process))
        reader.finish()

        reader.check()

    @pytest.mark.parametrize("offset_s", [5.0, -5.0])
    def test_a_clock_that_is_off_costs_no_line(self, apps: Apps, other_process: OtherProcess, offset_s: float) -> None:
        """The clock of a node is not ours, so a cursor must not compare the two, whichever process reads on from it."""
        if (clock := apps.engine.clock(offset_s)) is None:
            pytest.skip("the clock of the engine cannot be shifted")
        with clock:
            reader = _Reader(apps, apps.start(apps.sh(_WRITER)))
            reader.cut(_CUTS, reader.here, reader.there(other_process))
            reader.finish()

        reader.check()

    def test_a_clock_that_steps_costs_no_line(self, apps: Apps) -> None:
        """Clocks are set while apps run; lines written after a step back look older than those before."""
        if (clock := apps.engine.clock(0.0)) is None:
            pytest.skip("the clock of the engine cannot be shifted")
        with clock as step:
            reader = _Reader(apps, apps.start(apps.sh(_WRITER)))
            reader.cut(_FEW_CUTS)
            step(-1.0)
            # Two of thirty readers that die have read something: what is lost with it shall be seen each time.
            reader.cut(3 * _FEW_CUTS)
            step(1.0)
            reader.cut(_FEW_CUTS)
            reader.finish()

        reader.check()

    @pytest.mark.parametrize("policy", [*CAPABILITY])
    def test_a_cursor_crosses_attempts(self, apps: Apps, policy: RetryPolicy) -> None:
        """A retry begins a new log; a reader that stopped in the old one goes on into the new."""
        self.needs(CAPABILITY[policy])
        script = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; printf last; exit 1"
        app_id = apps.start(apps.sh(script, max_retries=3, retry_policy=policy))
        reader = _Reader(apps, app_id)
        deadline = time.monotonic() + apps.timeout_s
        while (found := apps.scheduler.describe(app_id)) and not is_terminal(found.state):
            assert time.monotonic() < deadline, f"app {app_id} has not ended within {apps.timeout_s:g} s: {found}"
            reader.cut(2)
        reader.finish()

        assert reader.texts == ["1\n", "2\n", "3\n", "4\n", "5\n", "last"] * 4

    @pytest.mark.parametrize("policy", [*CAPABILITY])
    def test_a_cursor_of_the_first_attempt_goes_on_after_the_last(
        self, apps: Apps, other_process: OtherProcess, policy: RetryPolicy
    ) -> None:
        """A task that was deferred in the first attempt may come back when there were several; it shows them all."""
        self.needs(CAPABILITY[policy])
        script = "echo $LAUNCH_ATTEMPT; echo on; sleep 2; printf last; exit 1"
        app_id = apps.start(apps.sh(script, max_retries=2, retry_policy=policy))
        apps.until_written(app_id, "on")
        first = apps.another().read_logs(app_id, "main", 0)
        stored = json.dumps(first.cursor)
        begun = [(line.text, line.attempt) for line in first.lines]
        apps.end(app_id)

        def there(cursor: JsonValue) -> LogChunk:
            chunk: dict[str, Any] = other_process.call("read_logs", app_id=app_id, role="main", cursor=cursor)
            lines = [LogLine(text, Stream(stream), *rest) for text, stream, *rest in chunk["lines"]]
            return LogChunk(lines, chunk["cursor"])

        written = [(text, number) for number in range(3) for text in (f"{number}\n", "on\n", "last")]
        assert begun
        assert begun == written[: len(begun)]
        for read in (lambda cursor: apps.another().read_logs(app_id, "main", 0, cursor), there):
            rest = [line for chunk in read_on(read, apps.timeout_s, json.loads(stored)) for line in chunk.lines]
            assert begun + [(line.text, line.attempt) for line in rest] == written

    def test_a_cursor_at_the_end_stays_there(self, apps: Apps) -> None:
        """Reading once more after the end is how a reader knows that it has everything."""
        app_id = apps.start(apps.sh("echo 1; echo 2 >&2; sleep 1; printf 3"))
        apps.end(app_id)
        reader = _Reader(apps, app_id)
        reader.finish()
        texts, cursor = reader.here(json.loads(reader.stored))

        assert sorted(reader.texts) == ["1\n", "2\n", "3"]
        assert texts == []
        for _ in range(3):
            assert reader.here(json.loads(json.dumps(cursor))) == ([], cursor)
