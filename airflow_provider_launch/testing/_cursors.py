"""Cursors: a read continues exactly where the last one stopped."""

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
from airflow_provider_launch.testing._base import Apps, ContractBase, often, read_on, until
from airflow_provider_launch.testing._process import OtherProcess
from airflow_provider_launch.testing._retries import CAPABILITY

SEED = "LAUNCH_CONTRACT_SEED"
"""Environment variable with the seed of a run to repeat; each random test prints its seed."""

_CUTS = often(40, 200)
_FEW_CUTS = 30
_FIRST_CUTS = 5
_PAUSE_S = 0.03
_DIES = 0.2

# Writes bursts of lines with almost the same time. Ends after the current loop, so that the number of lines is exact.
# The shell's own stderr is discarded, because shells report killed children there. The pause before the last line is
# for logs of both streams, which may join an unfinished line with a line of the other stream.
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
    """Reads one replica in parts, each by a new scheduler that has only the stored cursor."""

    def __init__(self, apps: Apps, app_id: str) -> None:
        self._apps = apps
        self._app_id = app_id
        seed = int(os.environ.get(SEED) or random.SystemRandom().getrandbits(32))
        # pytest shows it with a failure. The seed repeats the times of the cuts, not the behaviour of the engine.
        print(f"cuts at random moments; to repeat them set {SEED}={seed}")  # noqa: T201 - see above
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self.texts: list[str] = []
        self.stored = "null"

    def here(self, cursor: JsonValue) -> tuple[list[str], JsonValue]:
        """Read with a new scheduler of this process."""
        chunk = self._chunk(cursor)
        return _texts(chunk), chunk.cursor

    def _chunk(self, cursor: JsonValue) -> LogChunk:
        with contextlib.closing(self._apps.another()) as scheduler:
            return scheduler.read_logs(self._app_id, "main", 0, cursor)

    def there(self, other: OtherProcess) -> Read:
        """Return a function that reads in another process."""

        def read(cursor: JsonValue) -> tuple[list[str], JsonValue]:
            chunk: dict[str, Any] = other.call("read_logs", app_id=self._app_id, role="main", cursor=cursor)
            return [text for text, *_ in chunk["lines"]], chunk["cursor"]

        return read

    def cut(self, times: int, *reads: Read) -> None:
        """Read `times` times at random moments; some readers die before they store their cursor."""
        for number in range(times):
            time.sleep(self._random.uniform(0, _PAUSE_S))
            texts, cursor = (reads or (self.here,))[number % max(1, len(reads))](json.loads(self.stored))
            if self._random.random() >= _DIES:
                self._store(texts, cursor)

    def finish(self) -> None:
        """End the writer and read the rest."""
        self._apps.scheduler.cancel(self._app_id)
        self._apps.end(self._app_id)
        for chunk in read_on(self._chunk, self._apps.timeout_s, json.loads(self.stored)):
            self._store(_texts(chunk), chunk.cursor)

    def _store(self, texts: list[str], cursor: JsonValue) -> None:
        self.texts += texts
        self.stored = json.dumps(cursor)

    def check(self) -> None:
        """Check that each line of the writer was read once, in the order of its stream."""
        ends = [text for text in self.texts if text.startswith("end ")]
        assert len(ends) == 1, f"the last line was read {len(ends)} times"
        count = int(ends[0].split()[1])
        for stream in ("out", "err"):
            numbers = [int(text[4:]) for text in self.texts if text.startswith(stream)]
            lost = sorted({*range(1, count + 1)} - {*numbers})
            assert not lost, f"{len(lost)} of {count} lines of {stream} are lost: {lost[:10]}"
            repeated = [number for number, times in Counter(numbers).items() if times > 1]
            assert not repeated, f"{len(repeated)} of {count} lines of {stream} are repeated: {repeated[:10]}"
            assert numbers == sorted(numbers), f"the lines of {stream} are out of order"
        assert len(self.texts) == 2 * count + 1


def _of_writer(apps: Apps) -> _Reader:
    """Launch the writer, and return its reader, which has already read while the writer started."""
    app_id = apps.start(apps.sh(_WRITER))
    reader = _Reader(apps, app_id)
    reader.cut(_FIRST_CUTS)
    # A slow engine would spend all cuts on an app that waits, and a writer that is cancelled then has no last line.
    # One read, because the whole log of such a writer may never be read on a slow engine.
    until(lambda: reader.here(None)[0], apps.timeout_s, f"{app_id} writes")
    return reader


def _texts(chunk: LogChunk) -> list[str]:
    return [line.text for line in chunk.lines]


class CursorTests(ContractBase):
    """Readers change, and no line is lost or repeated."""

    def test_nothing_is_lost_or_repeated_at_many_cuts(self, apps: Apps) -> None:
        """Tasks defer, triggerers restart, workers die: each reader continues from the last stored cursor."""
        reader = _of_writer(apps)
        reader.cut(_CUTS)
        reader.finish()

        reader.check()

    def test_a_cursor_is_good_in_another_process(self, apps: Apps, other_process: OtherProcess) -> None:
        """Worker and triggerer read in turns; each cut is between two processes."""
        reader = _of_writer(apps)
        reader.cut(_CUTS, reader.here, reader.there(other_process))
        reader.finish()

        reader.check()

    @pytest.mark.parametrize("offset_s", [5.0, -5.0])
    def test_a_clock_that_is_off_costs_no_line(self, apps: Apps, other_process: OtherProcess, offset_s: float) -> None:
        """The clock of a node differs from ours, so a cursor must not compare the two, in any process."""
        if (clock := apps.engine.clock(offset_s)) is None:
            pytest.skip("the clock of the engine cannot be shifted")
        with clock:
            reader = _of_writer(apps)
            reader.cut(_CUTS, reader.here, reader.there(other_process))
            reader.finish()

        reader.check()

    def test_a_clock_that_steps_costs_no_line(self, apps: Apps) -> None:
        """Clocks are set while apps run; lines written after a step back have earlier times than those before."""
        if (clock := apps.engine.clock(0.0)) is None:
            pytest.skip("the clock of the engine cannot be shifted")
        with clock as step:
            reader = _of_writer(apps)
            reader.cut(_FEW_CUTS)
            step(-1.0)
            # Only a few of the dying readers have read lines: read often, so that a loss is always found.
            reader.cut(3 * _FEW_CUTS)
            step(1.0)
            reader.cut(_FEW_CUTS)
            reader.finish()

        reader.check()

    @pytest.mark.parametrize("policy", [*CAPABILITY])
    def test_a_cursor_crosses_attempts(self, apps: Apps, policy: RetryPolicy) -> None:
        """A retry starts a new log; a reader that stopped in the old log continues into the new one."""
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
    def test_a_cursor_of_the_first_attempt_continues_after_the_last(
        self, apps: Apps, other_process: OtherProcess, policy: RetryPolicy
    ) -> None:
        """A task deferred in the first attempt may resume after several attempts, and shows them all."""
        self.needs(CAPABILITY[policy])
        script = "echo $LAUNCH_ATTEMPT; echo on; sleep 2; printf last; exit 1"
        app_id = apps.start(apps.sh(script, max_retries=2, retry_policy=policy))
        apps.until_written(app_id, "on")
        first = apps.another().read_logs(app_id, "main", 0)
        stored = json.dumps(first.cursor)
        already_read = [(line.text, line.attempt) for line in first.lines]
        apps.end(app_id)

        def there(cursor: JsonValue) -> LogChunk:
            chunk: dict[str, Any] = other_process.call("read_logs", app_id=app_id, role="main", cursor=cursor)
            lines = [LogLine(text, Stream(stream), *rest) for text, stream, *rest in chunk["lines"]]
            return LogChunk(lines, chunk["cursor"])

        written = [(text, number) for number in range(3) for text in (f"{number}\n", "on\n", "last")]
        assert already_read
        assert already_read == written[: len(already_read)]
        for read in (lambda cursor: apps.another().read_logs(app_id, "main", 0, cursor), there):
            rest = [line for chunk in read_on(read, apps.timeout_s, json.loads(stored)) for line in chunk.lines]
            assert already_read + [(line.text, line.attempt) for line in rest] == written

    def test_a_cursor_at_the_end_stays_there(self, apps: Apps) -> None:
        """A reader reads once more after the end to check that it has all lines."""
        app_id = apps.start(apps.sh("echo 1; echo 2 >&2; sleep 1; printf 3"))
        apps.end(app_id)
        reader = _Reader(apps, app_id)
        reader.finish()
        texts, cursor = reader.here(json.loads(reader.stored))

        assert sorted(reader.texts) == ["1\n", "2\n", "3"]
        assert texts == []
        for _ in range(3):
            assert reader.here(json.loads(json.dumps(cursor))) == ([], cursor)
