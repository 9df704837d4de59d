"""Logs: the selected lines are read, each completely."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_launch.schedulers.api import Capability, LogLine, Stream
from airflow_provider_launch.schedulers.logs import MOST_LINES
from airflow_provider_launch.specs.errors import UnknownAppException
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.testing._base import NODE_CLOCK_S, Apps, ContractBase, read_on, until, within
from airflow_provider_launch.testing._process import OtherProcess

_READ_S = 3.0
_LINES = 50_000
_POLICIES = {
    RetryPolicy.REPLICA: Capability.REPLICA_RETRY,
    RetryPolicy.ROLE: Capability.ROLE_RETRY,
    RetryPolicy.APPLICATION: Capability.APPLICATION_RETRY,
}


def read_all(apps: Apps, app_id: str, role: str = "main", k: int = 0) -> list[LogLine]:
    """Return the lines of one replica of an ended app."""
    chunks = read_on(lambda cursor: apps.scheduler.read_logs(app_id, role, k, cursor), apps.timeout_s)
    return [line for chunk in chunks for line in chunk.lines]


class LogTests(ContractBase):
    """Each selected line is read once and completely."""

    # ---- which lines -----------------------------------------------------------------------------------------

    def test_streams_are_kept_apart_and_combined(self, apps: Apps) -> None:
        """A reader of stderr searches for an error, so a missing stream must not appear empty."""
        # The pause is for engines with one log for both streams, which may reorder an unfinished line.
        app_id = apps.start(apps.sh("echo out; echo err >&2; sleep 1; printf last"))
        apps.end(app_id)

        assert sorted(apps.lines(app_id)) == ["err\n", "last", "out\n"]
        assert sorted(apps.lines(app_id, streams=Stream.COMBINED)) == ["err\n", "last", "out\n"]
        if Capability.STREAMS in self.capabilities:
            assert apps.lines(app_id, streams=Stream.STDOUT) == ["out\n", "last"]
            assert apps.lines(app_id, streams=Stream.STDERR) == ["err\n"]
            assert {line.text: line.stream for line in read_all(apps, app_id)} == {
                "out\n": Stream.STDOUT,
                "err\n": Stream.STDERR,
                "last": Stream.STDOUT,
            }
        else:
            assert {line.stream for line in read_all(apps, app_id)} == {Stream.COMBINED}
            for stream in (Stream.STDOUT, Stream.STDERR):
                for read in (apps.scheduler.read_logs, apps.scheduler.log_iter):
                    with self.refused("main", stream.value, apps.scheduler.backend, error=ValueError):
                        read(app_id, "main", 0, streams=stream)

    def test_regex_keeps_the_lines_in_which_it_is_found(self, apps: Apps) -> None:
        """A sensor may search for one line in a large log."""
        app_id = apps.start(apps.sh("echo at 1 loss=1; echo noise; echo at 2 loss=2"))
        apps.end(app_id)

        assert apps.lines(app_id, regex="loss=.") == ["at 1 loss=1\n", "at 2 loss=2\n"]

    def test_since_and_until_are_honoured_or_warned_about(self, apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
        """Times without a zone are UTC, wherever the reader lives; a bound that is not supported gives a warning."""
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            app_id = apps.start(apps.sh("echo early; sleep 4; echo late"))
            apps.end(app_id)
            if Capability.TIME_FILTER in self.capabilities:
                early, late = (line.time for line in read_all(apps, app_id))
                assert early is not None
                assert late is not None
                utc = datetime.fromtimestamp((early + late) / 2, timezone.utc)
                elsewhere = utc.astimezone(timezone(timedelta(hours=-7)))
                for middle in (utc, elsewhere, utc.replace(tzinfo=None)):
                    assert apps.lines(app_id, since=middle) == ["late\n"]
                    assert apps.lines(app_id, until=middle) == ["early\n"]
                second = timedelta(seconds=1)
                assert apps.lines(app_id, since=utc - second, until=utc + second) == []
                assert apps.lines(app_id, since=utc - 4 * second, until=utc + 4 * second) == ["early\n", "late\n"]
            else:
                moment = datetime.now(timezone.utc)
                with pytest.warns(UserWarning, match="are ignored"):
                    assert apps.lines(app_id, since=moment) == ["early\n", "late\n"]
                with pytest.warns(UserWarning, match="are ignored"):
                    assert apps.lines(app_id, until=moment - timedelta(days=1)) == ["early\n", "late\n"]
        finally:
            monkeypatch.undo()
            time.tzset()

    def test_lines_show_when_they_were_written(self, apps: Apps) -> None:
        """Supported times are epoch seconds of the run; unsupported ones are None."""
        before = time.time()
        app_id = apps.start(apps.sh("echo early; sleep 2; echo late"))
        apps.end(app_id)
        after = time.time()

        times = [line.time for line in read_all(apps, app_id)]
        if Capability.TIME_FILTER not in self.capabilities:
            assert times == [None, None]
            return
        early, late = times
        assert early is not None
        assert late is not None
        assert 1 < late - early <= after - before + 1
        assert before - NODE_CLOCK_S < early < late < after + NODE_CLOCK_S

    def test_tail_follows_to_the_end(self, apps: Apps) -> None:
        """A tail shows lines as they are written, and ends by itself."""
        app_id = apps.start(apps.sh("echo 1; sleep 3; echo 2; sleep 1; echo 3"))
        tail = apps.scheduler.log_iter(app_id, "main", should_tail=True)
        lines = within(tail, apps.timeout_s, "the log that is followed")

        assert next(lines, "the end") == "1\n"
        assert apps.lines(app_id) == ["1\n"]
        assert [*lines] == ["2\n", "3\n"]

    def test_unknown_app_role_and_replica_are_reported_at_the_call(self, apps: Apps) -> None:
        """A misspelt name must not appear as an app without output."""
        app_id = apps.start(apps.sh("true", num_replicas=2), apps.sh("true", name="helper"))
        unknown = apps.new_id()

        for read in (apps.scheduler.read_logs, apps.scheduler.log_iter):
            with pytest.raises(UnknownAppException):
                read(unknown, "main", 0)
            with pytest.raises(ValueError, match=r"mian.*main.*helper"):
                read(app_id, "mian", 0)
            with pytest.raises(ValueError, match=r"main.* 2\b.* 0 .* 1\b"):
                read(app_id, "main", 2)
            with pytest.raises(ValueError, match="-1"):
                read(app_id, "main", -1)

    # ---- time of reads --------------------------------------------------------------------------------------

    def test_a_read_does_not_wait(self, apps: Apps) -> None:
        """One reader serves many replicas, so a silent replica must not delay the others."""
        app_id = apps.start(apps.sh("sleep 30"))
        cursor = None
        took = []
        # From before the replica runs until long after.
        for _ in range(10):
            scheduler = apps.another()
            started = time.monotonic()
            chunk = scheduler.read_logs(app_id, "main", 0, cursor)
            took.append(time.monotonic() - started)
            assert chunk.lines == []
            cursor = chunk.cursor
            time.sleep(0.2)
        # A busy machine delays one or the other; a read that waits for lines is late each time.
        assert sorted(took)[len(took) // 2] < _READ_S, took

    def test_an_unfinished_line_comes_whole_once_it_is_finished(self, apps: Apps) -> None:
        """An unfinished line is not split into two lines; the last line needs no line feed."""
        app_id = apps.start(apps.sh("echo start; printf half; sleep 4; echo ' and half'; printf last"))
        apps.until_written(app_id, "start")
        time.sleep(1)

        assert apps.lines(app_id) == ["start\n"]
        apps.end(app_id)
        assert apps.lines(app_id) == ["start\n", "half and half\n", "last"]

    def test_logs_are_readable_after_the_end_and_elsewhere(self, apps: Apps, other_process: OtherProcess) -> None:
        """Failures are examined long after the launcher has ended."""
        app_id = apps.start(apps.sh("echo out; sleep 1; printf why >&2; exit 3"))
        apps.end(app_id)

        assert sorted(apps.lines(app_id, scheduler=apps.another())) == ["out\n", "why"]
        assert sorted(other_process.call("log_iter", app_id=app_id, role="main")) == ["out\n", "why"]

    @pytest.mark.parametrize("policy", [*_POLICIES])
    def test_logs_of_all_attempts_follow_each_other(self, apps: Apps, policy: RetryPolicy) -> None:
        """The first attempt shows why there was a second, so a retry must not hide it."""
        self.needs(_POLICIES[policy])
        app_id = apps.start(apps.sh("echo try; printf last; exit 1", max_retries=2, retry_policy=policy))
        apps.end(app_id)

        lines = [(line.text, line.attempt) for line in read_all(apps, app_id)]
        assert lines == [(text, attempt) for attempt in range(3) for text in ("try\n", "last")]
        assert apps.lines(app_id) == ["try\n", "last"] * 3

    def test_logs_of_a_cancelled_app_are_kept(self, apps: Apps) -> None:
        """The log of a cancelled app shows its work so far."""
        app_id = apps.start(apps.sh("echo before; printf 'in the middle'; exec sleep 60"))
        apps.until_written(app_id, "before")
        time.sleep(0.5)
        apps.scheduler.cancel(app_id)
        apps.end(app_id)

        assert apps.lines(app_id, scheduler=apps.another()) == ["before\n", "in the middle"]

    # ---- content ------------------------------------------------------------------------------------------

    def test_logs_of_roles_and_replicas_are_not_mixed_up(self, apps: Apps) -> None:
        """Eight replicas write eight logs."""
        roles = ("main", "main-1")
        script = f"for i in 1 2 3; do echo $0 {macros.replica_id} $i; done"
        app_id = apps.start(*(apps.role(name, "sh", "-c", script, name, num_replicas=4) for name in roles))
        apps.end(app_id)

        for name in roles:
            for k in range(4):
                assert apps.lines(app_id, name, k) == [f"{name} {k} {i}\n" for i in (1, 2, 3)]

    def test_odd_output_is_complete(self, apps: Apps) -> None:
        """Programs write empty lines, progress bars, colours and worse; one log line stays one log line."""
        written = [
            (r"\n", "\n"),
            (r"50%%\r100%%\n", "50%\r100%\n"),
            (r"dos\r\n", "dos\r\n"),
            (r"  blanks\t \n", "  blanks\t \n"),
            (r"\346\227\245\346\234\254\n", "日本\n"),
            # Unicode line ends, at which `str.splitlines` splits.
            (r"a\013b\014c\302\205d\342\200\250e\n", "a\x0bb\x0cc\x85d\u2028e\n"),
            (r"\033[31mred\033[0m\n", "\x1b[31mred\x1b[0m\n"),
            (r"2020-01-01T00:00:00.000000000Z no time of ours\n", "2020-01-01T00:00:00.000000000Z no time of ours\n"),
            (r"broken \377\376!\n", "broken \ufffd\ufffd!\n"),
            (r"\n\n", "\n\n"),
            (r"end", "end"),
        ]
        app_id = apps.start(apps.sh("; ".join(f"printf '{octal}'" for octal, _ in written)))
        apps.end(app_id)

        assert apps.lines(app_id) == "".join(text for _, text in written).replace("\n", "\n\0").split("\0")

    def test_a_line_of_1_mb_is_whole(self, apps: Apps) -> None:
        """A program that prints one large JSON document has written one line."""
        app_id = apps.start(apps.sh("echo before; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after"))
        apps.end(app_id)

        lines = apps.lines(app_id)
        assert [len(line) for line in lines] == [7, 1_000_001, 6]
        assert lines[1] == "x" * 1_000_000 + "\n"

    def test_many_lines_on_both_streams_at_once(self, apps: Apps) -> None:
        """The streams reach the log separately; neither may lose, repeat or reorder its lines."""
        # The shell writes each `echo` in one call, so lines stay complete even if both streams are one.
        write = f"n=0; while [ $n -lt {_LINES} ]; do n=$((n + 1)); echo {{}} $n{{}}; done"
        both = f"({write.format('out', '')}) & ({write.format('err', ' >&2')}) & wait"
        app_id = apps.start(apps.sh(f"{both}; sleep {self.drain_s:g}"))
        apps.end(app_id)

        lines = read_all(apps, app_id)
        for name in ("out", "err"):
            mine = [line for line in lines if line.text.startswith(name)]
            numbers = [int(line.text[4:]) for line in mine]
            assert len(numbers) == _LINES
            # Not `==` on the lists, because printing the difference of long lists takes minutes.
            assert all(found == number for number, found in enumerate(numbers, 1))
            kept = Stream(f"std{name}") if Capability.STREAMS in self.capabilities else Stream.COMBINED
            assert {line.stream for line in mine} == {kept}
        assert len(lines) == 2 * _LINES

    def test_a_rare_stream_is_found_in_a_large_log(self, apps: Apps) -> None:
        """Megabytes of one stream must not be taken as the end of the other."""
        self.needs(Capability.STREAMS)
        progress = "head -c 2000000 /dev/zero | tr '\\0' x | fold -w 99; echo"
        app_id = apps.start(apps.sh(f"echo first >&2; {progress}; echo second >&2; {progress}; echo third >&2"))
        apps.end(app_id)

        assert apps.lines(app_id, streams=Stream.STDERR) == ["first\n", "second\n", "third\n"]

    def test_a_read_is_bounded(self, apps: Apps) -> None:
        """The memory of a reader must not grow with the log."""
        # About 20 MB.
        script = "n=0; while [ $n -lt 200 ]; do n=$((n + 1)); head -c 99999 /dev/zero | tr '\\0' x; echo; done"
        app_id = apps.start(apps.sh(f"{script}; sleep {self.drain_s:g}"))
        apps.end(app_id)

        chunks = read_on(lambda cursor: apps.scheduler.read_logs(app_id, "main", 0, cursor), apps.timeout_s)
        counts = [len(chunk.lines) for chunk in chunks]
        assert sum(counts) == 200
        assert max(counts) <= 100

    def test_many_short_lines_are_read_on_completely(self, apps: Apps) -> None:
        """A chunk has a limit of lines as well as of bytes; short lines reach the first, and a reader continues."""
        count = 3 * MOST_LINES + 5
        app_id = apps.start(apps.sh(f"seq 1 {count}; sleep {self.drain_s:g}"))
        apps.end(app_id)

        chunks = [*read_on(lambda cursor: apps.another().read_logs(app_id, "main", 0, cursor), apps.timeout_s)]
        numbers = [int(line.text) for chunk in chunks for line in chunk.lines]
        assert len(numbers) == count
        assert all(found == number for number, found in enumerate(numbers, 1))

    def test_a_reader_that_started_before_the_end_gets_all_of_a_large_log(self, apps: Apps) -> None:
        """Fast output overtakes the reader, which still has buffered lines from before the end."""
        app_id = apps.start(apps.sh(f"seq 1 100000; sleep 2; seq 100001 200000; sleep {self.drain_s:g}"))
        until(lambda: apps.scheduler.read_logs(app_id, "main", 0).lines, apps.timeout_s, "a first line is returned")
        first = apps.scheduler.read_logs(app_id, "main", 0)
        lines = [line.text for line in first.lines]
        apps.end(app_id)

        rest = read_on(lambda cursor: apps.scheduler.read_logs(app_id, "main", 0, cursor), apps.timeout_s, first.cursor)
        lines += [line.text for chunk in rest for line in chunk.lines]
        assert lines == [f"{number}\n" for number in range(1, 200_001)]
