"""Defects in logs: lines that are lost, repeated, split, mixed up or late."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, LogChunk, LogLine, Stream
from airflow_provider_launch.schedulers.logs import MOST_LINES
from airflow_provider_launch.specs.errors import UnknownAppException
from airflow_provider_launch.specs.states import is_terminal
from tests.contract.broken.defects import Local, Threads, caught_by

# ---- which lines ---------------------------------------------------------------------------------------------


@caught_by("test_streams_are_kept_apart_and_combined")
class IgnoresTheStream(Threads):
    def read_logs(self, *args: Any, streams: Stream | None = None) -> LogChunk:
        return super().read_logs(*args)


@caught_by("test_streams_are_kept_apart_and_combined")
class CallsEverythingStdout(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(stream=Stream.STDOUT) for line in chunk.lines], chunk.cursor)


class KeepsOneStream(Threads):
    """Not broken: it has one log for both streams, and refuses to read one of them."""

    capabilities = promised = Threads.capabilities - {Capability.STREAMS}

    def read_logs(self, app_id: str, role_name: str, *args: Any, streams: Stream | None = None) -> LogChunk:
        if streams not in {None, Stream.COMBINED}:
            self.refuse(role_name, streams)
        chunk = super().read_logs(app_id, role_name, *args)
        return LogChunk([line._replace(stream=Stream.COMBINED) for line in chunk.lines], chunk.cursor)

    def refuse(self, role_name: str, stream: Stream) -> None:
        raise ValueError(f"role {role_name!r}: {self.backend!r} keeps no {stream.value}; leave `streams` out")


@caught_by("test_streams_are_kept_apart_and_combined")
class GivesAllForAStreamItDoesNotKeep(KeepsOneStream):
    def refuse(self, role_name: str, stream: Stream) -> None:
        pass


@caught_by("test_streams_are_kept_apart_and_combined")
class RefusesAStreamWithoutACure(KeepsOneStream):
    def refuse(self, role_name: str, stream: Stream) -> None:
        raise ValueError(f"role {role_name!r}: {self.backend!r} keeps no {stream.value}")


@caught_by("test_regex_keeps_the_lines_in_which_it_is_found")
class MatchesFromTheStart(Threads):
    def log_iter(self, *args: Any, regex: str | None = None, **kwargs: Any) -> Any:
        return super().log_iter(*args, regex=regex and f"^{regex}", **kwargs)


@caught_by("test_since_and_until_are_honoured_or_warned_about")
class IgnoresTimesSilently(Threads):
    def log_iter(self, *args: Any, since: Any = None, until: Any = None, **kwargs: Any) -> Any:
        return super().log_iter(*args, **kwargs)


@caught_by("test_lines_show_when_they_were_written")
class TakesTheReadForTheWriting(Threads):
    capabilities = promised = frozenset({*Threads.capabilities, Capability.TIME_FILTER})

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(time=time.time()) for line in chunk.lines], chunk.cursor)


@caught_by("test_lines_show_when_they_were_written")
class MakesUpTimes(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(time=time.time()) for line in chunk.lines], chunk.cursor)


@caught_by("test_tail_follows_to_the_end")
class TailEndsAtAPause(Threads):
    def _lines(
        self, app_id: str, role_name: str, k: int, chunk: LogChunk, *, should_tail: bool, streams: Stream | None
    ) -> Iterator[LogLine]:
        deadline = time.monotonic() + 1
        while chunk.lines or (should_tail and time.monotonic() < deadline):
            if chunk.lines:
                yield from chunk.lines
                deadline = time.monotonic() + 1
            else:
                time.sleep(0.1)
            chunk = self.read_logs(app_id, role_name, k, chunk.cursor, streams=streams)


@caught_by("test_unknown_app_role_and_replica_are_reported_at_the_call")
class UnknownReplicaWritesNothing(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        try:
            return super().read_logs(*args, **kwargs)
        except ValueError:
            return LogChunk([], None)


@caught_by("test_unknown_app_role_and_replica_are_reported_at_the_call")
class UnknownAppWritesNothing(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        try:
            return super().read_logs(*args, **kwargs)
        except UnknownAppException:
            return LogChunk([], None)


@caught_by("test_unknown_app_role_and_replica_are_reported_at_the_call")
class UnknownAppIsToldAtTheFirstLine(Threads):
    def log_iter(self, *args: Any, **kwargs: Any) -> Any:
        yield from super().log_iter(*args, **kwargs)


# ---- time of reads ------------------------------------------------------------------------------------------------


@caught_by("test_a_read_does_not_wait")
class WaitsForALine(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        deadline = time.monotonic() + 4
        chunk = super().read_logs(*args, **kwargs)
        while not chunk.lines and time.monotonic() < deadline:
            time.sleep(0.1)
            chunk = super().read_logs(*args, **kwargs)
        return chunk


@caught_by("test_an_unfinished_line_comes_whole_once_it_is_finished")
class TearsAnUnfinishedLine(Threads):
    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        return super()._read(path, at, True)


@caught_by(
    "test_an_unfinished_line_comes_whole_once_it_is_finished",
    "test_streams_are_kept_apart_and_combined",
    "test_logs_of_a_cancelled_app_are_kept",
    "test_logs_are_readable_after_the_end_and_elsewhere",
)
class DropsAnUnfinishedLastLine(Threads):
    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        return super()._read(path, at, False)


@caught_by("test_logs_are_readable_after_the_end_and_elsewhere")
class KeepsLogsInTheLauncher(Threads):
    mine: ClassVar[set[str]] = set()

    def schedule(self, dryrun_info: Any) -> str:
        self.mine.add(dryrun_info.request["app_id"])
        return super().schedule(dryrun_info)

    def read_logs(self, app_id: str, *args: Any, **kwargs: Any) -> LogChunk:
        return super().read_logs(app_id, *args, **kwargs) if app_id in self.mine else LogChunk([], None)


@caught_by("test_logs_of_all_attempts_follow_each_other[REPLICA]")
class ShowsTheLastAttemptOnly(Local):
    def read_logs(self, app_id: str, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(app_id, *args, **kwargs)
        found = self.describe(app_id)
        lines = [line for line in chunk.lines if found and line.attempt == found.num_restarts]
        # An empty chunk would mean the end.
        return (
            LogChunk(lines, chunk.cursor)
            if lines or not chunk.lines
            else self.read_logs(app_id, *args[:2], chunk.cursor)
        )


@caught_by("test_logs_of_all_attempts_follow_each_other[REPLICA]")
class NumbersNoAttempts(Local):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(attempt=0) for line in chunk.lines], chunk.cursor)


@caught_by("test_logs_of_a_cancelled_app_are_kept")
class CancelRemovesTheLogs(Threads):
    def _cancel_existing(self, app_id: str) -> None:
        super()._cancel_existing(app_id)
        for path in self._dir(app_id).glob("*.std*"):
            path.unlink()


# ---- content -------------------------------------------------------------------------------------------------


@caught_by("test_logs_of_roles_and_replicas_are_not_mixed_up")
class ShowsReplica0ForAll(Threads):
    def read_logs(self, app_id: str, role_name: str, k: int, *args: Any, **kwargs: Any) -> LogChunk:
        return super().read_logs(app_id, role_name, 0, *args, **kwargs)


@caught_by("test_logs_of_roles_and_replicas_are_not_mixed_up")
class MixesUpRolesWithOneNameInFront(Threads):
    def read_logs(self, app_id: str, role_name: str, *args: Any, **kwargs: Any) -> LogChunk:
        return super().read_logs(app_id, role_name.partition("-")[0], *args, **kwargs)


@caught_by("test_odd_output_is_complete")
class SplitsLikePython(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        lines = [line._replace(text=part) for line in chunk.lines for part in line.text.splitlines(keepends=True)]
        return LogChunk(lines, chunk.cursor)


@caught_by("test_odd_output_is_complete")
class StripsLines(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(text=line.text.strip() + "\n") for line in chunk.lines], chunk.cursor)


@caught_by("test_a_line_of_1_mb_is_whole")
class TearsLongLines(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        lines = [
            line._replace(text=line.text[at : at + 65536])
            for line in chunk.lines
            for at in range(0, len(line.text), 65536)
        ]
        return LogChunk(lines, chunk.cursor)


@caught_by("test_a_line_of_1_mb_is_whole")
class CutsLongLines(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(text=line.text[:65536]) for line in chunk.lines], chunk.cursor)


@caught_by("test_many_lines_on_both_streams_at_once")
class LosesTheLastLineOfAFullChunk(Threads):
    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        text, end = super()._read(path, at, ended)
        return (text[: text.rindex("\n", 0, -1) + 1], end) if end - at > 200_000 else (text, end)


@caught_by("test_many_lines_on_both_streams_at_once")
class MixesUpTheStreamsOfAFullChunk(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        if len(chunk.lines) < 10_000:
            return chunk
        last = chunk.lines[-1]
        other = Stream.STDOUT if last.stream is Stream.STDERR else Stream.STDERR
        return LogChunk([*chunk.lines[:-1], last._replace(stream=other)], chunk.cursor)


@caught_by("test_a_rare_stream_is_found_in_a_large_log")
class TakesLinesOfTheOtherStreamForTheEnd(Threads):
    def read_logs(self, *args: Any, streams: Stream | None = None, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        if streams is Stream.STDERR and any(line.stream is Stream.STDOUT for line in chunk.lines):
            return LogChunk([], chunk.cursor)
        return chunk


@caught_by("test_a_reader_that_started_before_the_end_gets_all_of_a_large_log")
class TakesTheEndOfThatMomentForTheEnd(Threads):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sizes: dict[Path, int] = {}

    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        size = path.stat().st_size if path.exists() else 0
        known = self.sizes.setdefault(path, size) if size else 0
        return super()._read(path, at, ended) if at < known else ("", at)


@caught_by("test_many_short_lines_are_read_on_completely")
class DropsTheLinesAboveItsLimit(Threads):
    """Limits the lines of a chunk, but continues after all that it has read."""

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk(chunk.lines[:MOST_LINES], chunk.cursor)


@caught_by("test_a_read_is_bounded")
class ReadsEverythingAtOnce(Threads):
    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        lines = []
        while (chunk := super().read_logs(app_id, role_name, k, cursor, **kwargs)).lines:
            lines += chunk.lines
            cursor = chunk.cursor
        return LogChunk(lines, chunk.cursor)


# ---- cursors -------------------------------------------------------------------------------------------------


@caught_by(
    "test_nothing_is_lost_or_repeated_at_many_cuts",
    "test_a_cursor_is_good_in_another_process",
    "test_a_follower_shows_each_line_once_and_the_end",
    "test_a_follower_continues_where_another_was_cut",
)
class LosesALineOnResume(Threads):
    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(app_id, role_name, k, cursor, **kwargs)
        return LogChunk(chunk.lines[1:] if cursor and len(chunk.lines) > 1 else chunk.lines, chunk.cursor)


@caught_by("test_nothing_is_lost_or_repeated_at_many_cuts", "test_a_follower_continues_where_another_was_cut")
class RepeatsALineOnResume(Threads):
    """Like a cursor of whole seconds."""

    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(app_id, role_name, k, (cursor or {}).get("at"), **kwargs)
        lines = chunk.lines
        if cursor and lines and cursor["last"]:
            lines = [LogLine(cursor["last"], Stream.STDOUT), *lines]
        return LogChunk(lines, {"at": chunk.cursor, "last": lines[-1].text if lines else None})


@caught_by("test_a_follower_continues_after_each_line_of_both_streams")
class NamesNoStream(Threads):
    """Its files of both streams have no common order, which is hidden if the lines do not name their stream."""

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line._replace(stream=Stream.COMBINED) for line in chunk.lines], chunk.cursor)


@caught_by("test_a_cursor_is_good_in_another_process")
class KeepsCursorsInMemory(Threads):
    cursors: ClassVar[list[Any]] = [None]

    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        known = self.cursors[cursor] if cursor and cursor < len(self.cursors) else None
        chunk = super().read_logs(app_id, role_name, k, known, **kwargs)
        self.cursors.append(chunk.cursor)
        return LogChunk(chunk.lines, len(self.cursors) - 1)


@caught_by(
    "test_one_role_runs_to_its_end",
    "test_tail_follows_to_the_end",
    "test_logs_are_readable_after_the_end_and_elsewhere",
    "test_many_lines_on_both_streams_at_once",
    "test_a_read_is_bounded",
    "test_a_reader_that_started_before_the_end_gets_all_of_a_large_log",
    "test_nothing_is_lost_or_repeated_at_many_cuts",
    "test_a_cursor_at_the_end_stays_there",
    "test_two_followers_see_the_same",
    "test_a_follower_continues_where_another_was_cut",
)
class NeverMovesTheCursor(Threads):
    """Reading until no lines come never ends."""

    timeout_s = 4

    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        return LogChunk(super().read_logs(app_id, role_name, k, **kwargs).lines, "here")


@caught_by("test_a_clock_that_is_off_costs_no_line", "test_a_clock_that_steps_costs_no_line")
class ComparesItsClockWithTheEngines(Threads):
    """Its cursor is the time of the last read, but the engine stamps lines with another clock."""

    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        now = time.time()
        # `at` is the end of the last read in microseconds; lines that are later by the engine's clock are returned.
        begin = self._written_until(path, at / 1e6 - self._engine_ahead_s()) if at else 0
        text, end = super()._read(path, begin, ended)
        with path.with_suffix(f"{path.suffix}.times").open("a") as times:
            times.write(f"{now} {end}\n")
        return text, int(now * 1e6)

    def _engine_ahead_s(self) -> float:
        clock = self.root.with_name("clock")
        return float(clock.read_text()) if clock.exists() else 0.0

    @staticmethod
    def _written_until(path: Path, moment: float) -> int:
        rows = path.with_suffix(f"{path.suffix}.times").read_text().splitlines()
        return max((int(end) for when, end in map(str.split, rows) if float(when) <= moment + 1e-6), default=0)


@caught_by(
    "test_a_cursor_of_the_first_attempt_continues_after_the_last[REPLICA]",
    "test_a_cursor_of_the_first_attempt_continues_after_the_last[APPLICATION]",
)
class JumpsToTheLastAttempt(Local):
    """A cursor of a former attempt continues in the current attempt."""

    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        known = cursor or {"at": None, "attempt": 0}
        found = self.describe(app_id)
        newest = found.num_restarts if found else 0
        at, lines = known["at"], list[LogLine]()
        while not lines:
            chunk = super().read_logs(app_id, role_name, k, at, **kwargs)
            if not chunk.lines:
                break
            at = chunk.cursor
            lines = [line for line in chunk.lines if line.attempt in {known["attempt"], newest}]
        attempt = lines[-1].attempt if lines else known["attempt"]
        return LogChunk(lines, {"at": at, "attempt": attempt})


@caught_by(
    "test_a_cursor_crosses_attempts[REPLICA]",
    "test_a_cursor_crosses_attempts[APPLICATION]",
)
class LosesTheEndOfAnAttempt(Local):
    """Holds back text after the last line feed until the end, and that of a former attempt for ever."""

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line for line in chunk.lines if line.text.endswith("\n")], chunk.cursor)


@caught_by("test_a_cursor_at_the_end_stays_there")
class ForgetsTheCursorAtTheEnd(Threads):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return chunk if chunk.lines else LogChunk([], None)


# ---- following -----------------------------------------------------------------------------------------------


@caught_by("test_two_followers_see_the_same")
class TakesLinesFromOtherReaders(Threads):
    taken: ClassVar[dict[Any, Any]] = {}

    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(app_id, role_name, k, self.taken.get((app_id, role_name, k)), **kwargs)
        self.taken[app_id, role_name, k] = chunk.cursor
        return chunk


@caught_by("test_the_end_of_an_attempt_is_between_its_lines_and_the_next[REPLICA]")
class ConfusesTheEndsOfAttempts(Local):
    def attempt_ending(self, *_: Any) -> str:
        return "exit code 0"


@caught_by("test_a_silent_attempt_is_reported_too")
class CountsNoAttempts(Local):
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        for response in filter(None, found.values()):
            for role in response.roles_statuses:
                for replica in role.replicas:
                    replica.num_restarts = None
        return found


@caught_by("test_a_progress_bar_is_one_line")
class ShowsNothingBeforeTheLineEnds(Local):
    def unfinished_line(self, *_: Any, **__: Any) -> None:
        return None


@caught_by("test_a_follower_shows_each_line_once_and_the_end")
class SaysNothingAfterTheEnd(Threads):
    def read_logs(self, app_id: str, role_name: str, k: int, cursor: Any = None, **kwargs: Any) -> LogChunk:
        found = self.describe(app_id)
        ended = found is not None and is_terminal(found.state)
        return (
            LogChunk([], cursor) if ended and not cursor else super().read_logs(app_id, role_name, k, cursor, **kwargs)
        )


@caught_by("test_a_stopped_log_source_does_not_delay_the_end")
class LooksAtTheLogForTheState(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        self.flowing.wait(5)
        return super().describe_many(app_ids)


@caught_by("test_a_stopped_log_source_does_not_delay_the_end")
class LooksAtTheLogForTheEnd(Threads):
    """Waits for the text of an error, and stops after a while."""

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        if any(response and is_terminal(response.state) for response in found.values()):
            self.flowing.wait(5)
        return found
