"""Following: the events of an app for operators, sensors and triggers."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_launch.follow.events import AttemptEnded, Ended, Event, LogGap, LogLines, StateChanged, Unfinished
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.api import has_own
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, often, within
from airflow_provider_launch.testing._retries import CAPABILITY
from airflow_provider_launch.testing._starting import NeverStarts

_POLL_S = 0.2
_SELDOM_S = 60.0
_DRAIN_S = 2.0
_CUTS, _CUT_EACH_S, _CUT_REPLICAS = 200, 0.1, 5
_LONG_WRITER = "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done"
_SETTLE_S, _QUIET_S = 5.0, 10.0
_SILENT_REPLICAS = often(3, 40)
_WAITING_REPLICAS = 5
_TAIL_REQUESTS = 20
"""Requests for state and lines until the stream is open."""
_STATE_REQUESTS = 2 * (_QUIET_S / _POLL_S + 2)
"""Polls of the state in this time: one request for all apps, or one for Jobs and one for pods."""
_WRITER = "i=0; while [ $i -lt 300 ]; do i=$((i + 1)); echo $i; sleep 0.01; done; printf last"
_PAIRS, _CUT_CHUNKS, _CUT_LINES = 1000, 2, 6
_BOTH_WRITER = f"i=0; while [ $i -lt {_PAIRS} ]; do i=$((i + 1)); echo out $i; echo err $i >&2; sleep 0.002; done"
_WRITTEN = [*(f"{i}\n" for i in range(1, 301)), "last"]


def lines_of(events: Iterable[Event]) -> dict[str, list[str]]:
    """Return the texts of the log by `role/k`."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if isinstance(event, LogLines):
            found[f"{event.role}/{event.replica}"] += [line.text for line in event.lines]
    return dict(found)


@contextlib.contextmanager
def _follower(apps: Apps, app_id: str, *, poll_interval_s: float = _POLL_S, **how: Any) -> Iterator[Follower]:
    with (
        contextlib.closing(apps.another()) as scheduler,
        Follower(scheduler, app_id, poll_interval_s=poll_interval_s, **how) as follower,
    ):
        yield follower


def _follow(apps: Apps, app_id: str) -> list[Event]:
    with _follower(apps, app_id) as follower:
        return [*_to_the_end(apps, follower)]


def _to_the_end(apps: Apps, follower: Follower) -> Iterator[Event]:
    return within(follower, apps.timeout_s, "the follower")


class FollowTests(ContractBase):
    """A follower reports each line once, and the end."""

    def test_a_follower_shows_each_line_once_and_the_end(self, apps: Apps) -> None:
        """The log of the task has exactly the lines of the replicas, and the task ends with the app."""
        app_id = apps.start(apps.sh(_WRITER, num_replicas=2), apps.sh("sleep 1; echo bye >&2; exit 3", "other"))
        events = _follow(apps, app_id)

        found = lines_of(events)
        assert found["other/0"] == ["bye\n"]
        for k in range(2):
            # The failure of the other role ends them early; their lines must be complete.
            assert found.get(f"main/{k}", []) == apps.lines(app_id, "main", k)
        assert [event.response.state for event in events if isinstance(event, Ended)] == [AppState.FAILED]
        assert isinstance(events[-1], Ended)
        states = [event.new for event in events if isinstance(event, StateChanged)]
        assert states[-1] is AppState.FAILED
        assert not [event for event in events if isinstance(event, LogGap)]

    def test_an_end_that_is_reported_need_not_be_asked_for(self, apps: Apps) -> None:
        """A follower that polls once a minute need not wait a minute for the end."""
        app_id = apps.start(apps.sh("sleep 5; exit 3"))
        apps.until_running(app_id)
        try:
            apps.scheduler.await_end(app_id, 0.1)
        except NotImplementedError:
            pytest.skip("the scheduler has no `await_end`, so it is polled")  # other errors fail the test
        deadline = time.monotonic() + _SELDOM_S / 2
        with _follower(apps, app_id, poll_interval_s=_SELDOM_S) as follower:
            events = []
            for event in follower:
                events.append(event)
                if time.monotonic() > deadline:
                    break

        assert isinstance(events[-1], Ended), "the end was not reported"
        assert events[-1].response.state is AppState.FAILED

    def test_two_followers_see_the_same(self, apps: Apps) -> None:
        """A second task or a person may follow the app without taking lines from the first."""
        app_id = apps.start(apps.sh(_WRITER))
        with ThreadPoolExecutor(2) as pool:
            both = [*pool.map(lambda _: _follow(apps, app_id), range(2))]

        for events in both:
            assert lines_of(events) == {"main/0": _WRITTEN}
            assert isinstance(events[-1], Ended)
            assert events[-1].response.state is AppState.SUCCEEDED

    def test_a_follower_continues_where_another_was_cut(self, apps: Apps) -> None:
        """A deferred task resumes on another worker; its log has no gap and no repeated line."""
        app_id = apps.start(apps.sh(_WRITER))
        stored, seen, cuts, over = "{}", list[str](), 0, False
        while not over:
            with _follower(apps, app_id, cursors=json.loads(stored), scheduled=True) as follower:
                for event in _to_the_end(apps, follower):
                    seen += lines_of([event]).get("main/0", [])
                    over = isinstance(event, Ended)
                    if isinstance(event, LogLines):
                        break
                before, stored = stored, json.dumps(follower.cursors)
                cuts += 1
            assert over or stored != before, f"the cursor did not move although lines were read: {before}"

        assert cuts > 1
        assert seen == _WRITTEN

    def test_a_follower_continues_after_each_line_of_both_streams(self, apps: Apps) -> None:
        """A follower counts the lines of each stream after a cursor, because later reads may merge them differently."""
        app_id = apps.start(apps.sh(_BOTH_WRITER))
        apps.until_written(app_id, "err 5")
        cuts = []
        for _ in range(_CUT_CHUNKS):
            with _follower(apps, app_id) as follower:
                chunk = next(event for event in _to_the_end(apps, follower) if isinstance(event, LogLines))
                # The last ones, because a scheduler that stores times may already know those of the others.
                for shown in range(max(0, len(chunk.lines) - _CUT_LINES), len(chunk.lines)):
                    follower.leave(shown)
                    cuts.append((chunk.lines[:shown], json.dumps(follower.cursors)))
        apps.end(app_id)

        for lines, stored in cuts:
            with _follower(apps, app_id, cursors=json.loads(stored)) as follower:
                rest = lines_of(_to_the_end(apps, follower)).get("main/0", [])
            texts = [*(line.text for line in lines), *rest]
            for stream in ("out", "err"):
                assert [text for text in texts if text.startswith(stream)] == [
                    f"{stream} {number}\n" for number in range(1, _PAIRS + 1)
                ], (
                    f"a follower that continued after {len(lines)} lines has lost or repeated lines of {stream}; "
                    "set `LogLine.stream` if a later read may merge the two streams differently"
                )

    def test_a_stream_that_is_cut_again_and_again_loses_no_line(self, apps: Apps) -> None:
        """Balancers, restarts and networks cut connections; the log still has no gap and no repeated line."""
        if not has_own(apps.scheduler, "stream_log") or apps.engine.cut_streams() is None:
            pytest.skip("the engine has no streams that can be cut")
        app_id = apps.start(apps.sh(_LONG_WRITER, num_replicas=_CUT_REPLICAS))
        events, cuts = list[Event](), 0
        with _follower(apps, app_id) as follower:
            cut_at = time.monotonic()
            for event in _to_the_end(apps, follower):
                events.append(event)
                if time.monotonic() - cut_at > _CUT_EACH_S and cuts < _CUTS:
                    cuts += apps.engine.cut_streams() or 0
                    cut_at = time.monotonic()
                    if cuts >= _CUTS:
                        # Enough cuts; the writers never end by themselves.
                        break
            apps.scheduler.cancel(app_id)
            events += _to_the_end(apps, follower)

        assert cuts >= _CUTS
        found = lines_of(events)
        for k in range(_CUT_REPLICAS):
            assert found[f"main/{k}"] == apps.lines(app_id, "main", k)
            numbers = [int(line) for line in found[f"main/{k}"] if line.endswith("\n")]
            assert numbers == [*range(1, len(numbers) + 1)]
        assert not [event for event in events if isinstance(event, LogGap)]

    @pytest.mark.parametrize("policy", [*CAPABILITY])
    def test_the_end_of_an_attempt_is_between_its_lines_and_the_next(self, apps: Apps, policy: RetryPolicy) -> None:
        """A task that finally succeeds hides earlier failures unless its log shows them."""
        self.needs(CAPABILITY[policy])
        app_id = apps.start(apps.sh("echo up; test $LAUNCH_ATTEMPT = 2 || exit 5", max_retries=3, retry_policy=policy))
        events = _follow(apps, app_id)

        story = [event for event in events if isinstance(event, (LogLines, AttemptEnded))]
        assert [(event.attempt if isinstance(event, AttemptEnded) else "up") for event in story] == [
            "up",
            0,
            "up",
            1,
            "up",
        ]
        if has_own(apps.scheduler, "attempt_ending"):
            assert [event.ending for event in story if isinstance(event, AttemptEnded)] == ["exit code 5"] * 2

    def test_a_silent_attempt_is_reported_too(self, apps: Apps) -> None:
        """An attempt that fails without output would otherwise leave no trace in the log."""
        policy = next((policy for policy, capability in CAPABILITY.items() if capability in self.capabilities), None)
        if policy is None:
            pytest.skip("nothing is retried")
        app_id = apps.start(apps.sh("test $LAUNCH_ATTEMPT = 1 || exit 5", max_retries=1, retry_policy=policy))
        events = _follow(apps, app_id)

        assert [event.attempt for event in events if isinstance(event, AttemptEnded)] == [0]
        assert isinstance(events[-1], Ended)
        assert events[-1].response.state is AppState.SUCCEEDED

    def test_a_progress_bar_is_one_line(self, apps: Apps) -> None:
        """Its text is kept unchanged; if the scheduler supports it, some refreshes are shown before the line ends."""
        script = r"echo up; for i in 1 2 3 4 5 6 7 8; do printf '\r%s of 8' $i; sleep 0.5; done; echo; echo down"
        app_id = apps.start(apps.sh(script))
        shown, up_at = list[float](), 0.0
        with _follower(apps, app_id) as follower:
            events = []
            for event in _to_the_end(apps, follower):
                events.append(event)
                if isinstance(event, LogLines):
                    up_at = up_at or time.monotonic()
                if isinstance(event, Unfinished):
                    shown.append(time.monotonic() - up_at)

        bar = "".join(f"\r{i} of 8" for i in range(1, 9))
        assert lines_of(events) == {"main/0": ["up\n", f"{bar}\n", "down\n"]}
        if not has_own(apps.scheduler, "unfinished_line"):
            assert shown == []
            return
        texts = [event.line.text for event in events if isinstance(event, Unfinished)]
        assert all(text in [f"{i} of 8" for i in range(1, 9)] for text in texts)
        assert shown, "nothing was shown before the line ended"
        assert shown[0] < 2
        assert len(shown) <= 3

    def test_silent_replicas_cost_almost_nothing(self, apps: Apps) -> None:
        """Hundreds of silent replicas must not keep an engine busy."""
        if apps.engine.requests() is None:
            pytest.skip("the requests of the engine are not counted")
        app_id = apps.start(apps.sh("echo up; exec sleep 600", num_replicas=_SILENT_REPLICAS))
        up, quiet_at = set[int](), float("inf")

        def is_quiet(event: Event) -> bool:
            nonlocal quiet_at
            up.update([event.replica] if isinstance(event, LogLines) else [])
            if len(up) == _SILENT_REPLICAS and quiet_at == float("inf"):
                quiet_at = time.monotonic() + _SETTLE_S
            return time.monotonic() >= quiet_at

        asked = self._asked_from(apps, app_id, is_quiet)
        has_streams = has_own(apps.scheduler, "stream_log")
        # Read in turns, each replica is polled after a tenth of its silence, which grows.
        of_logs = 0 if has_streams else _SILENT_REPLICAS * 10 * _QUIET_S / _SETTLE_S
        assert asked <= _STATE_REQUESTS + of_logs, f"{asked} requests in {_QUIET_S:g} s"

    def test_a_tail_of_a_silent_replica_costs_almost_nothing(self, apps: Apps) -> None:
        """A caller that waits for hours for the next line costs as little as a task."""
        if not has_own(apps.scheduler, "stream_log") or apps.engine.requests() is None:
            pytest.skip("there are no streams, or the requests of the engine are not counted")
        app_id = apps.start(apps.sh(f"echo up; sleep {_SETTLE_S + _QUIET_S:g}; echo down"))
        with contextlib.closing(apps.another()) as scheduler:
            tail = within(scheduler.log_iter(app_id, "main", should_tail=True), apps.timeout_s, "the tail")
            seen = [(line, apps.engine.requests() or 0) for line in tail]

        (up, before), (down, after) = seen
        assert (up, down) == ("up\n", "down\n")
        assert after - before <= _TAIL_REQUESTS, f"{after - before} requests in {_SETTLE_S + _QUIET_S:g} s"

    def test_waiting_replicas_cost_nothing(self, apps: Apps, never_starts: NeverStarts | None) -> None:
        """An app may wait in a queue for days without a log to read."""
        if apps.engine.requests() is None or never_starts is None:
            pytest.skip("the requests of the engine are not counted, or it refuses launches that cannot start")
        role, cfg = never_starts
        app_id = apps.start(apps.sh("true", num_replicas=_WAITING_REPLICAS, **role), **cfg)
        started = time.monotonic()
        asked = self._asked_from(apps, app_id, lambda _: time.monotonic() > started + _SETTLE_S)
        assert asked <= _STATE_REQUESTS, f"{asked} requests in {_QUIET_S:g} s"

    @staticmethod
    def _asked_from(apps: Apps, app_id: str, is_ready: Callable[[Event], bool]) -> int:
        """Return how many requests a follower makes in `_QUIET_S` after an event."""
        before, started = 0, float("inf")
        with _follower(apps, app_id) as follower:
            for event in _to_the_end(apps, follower):
                if started == float("inf") and is_ready(event):
                    before, started = apps.engine.requests() or 0, time.monotonic()
                if time.monotonic() >= started + _QUIET_S:
                    break
            return (apps.engine.requests() or 0) - before

    def test_a_stopped_log_source_does_not_delay_the_end(self, apps: Apps) -> None:
        """A hanging log must not delay the outcome of the app; the log can be read later."""
        if (stall := apps.engine.stall_logs()) is None:
            pytest.skip("the logs of the engine cannot be stalled")
        app_id = apps.start(apps.sh("echo 1; sleep 1; echo 2"))
        with stall:
            asked_live = self._time_to_describe(apps, app_id)
            with _follower(apps, app_id, log_drain_s=_DRAIN_S) as follower:
                events = []
                for event in _to_the_end(apps, follower):
                    events.append(event)
                    if isinstance(event, StateChanged):
                        changed = time.monotonic()
            waited = time.monotonic() - changed
            # With a new scheduler, because that of the follower may have cached the end.
            asked_ended = self._time_to_describe(apps, app_id)

        assert isinstance(events[-1], Ended)
        assert events[-1].response.state is AppState.SUCCEEDED
        assert asked_live < _DRAIN_S + 2
        assert asked_ended < _DRAIN_S + 2
        assert waited < _DRAIN_S + 2
        assert [event for event in events if isinstance(event, LogGap)]
        with _follower(apps, app_id, cursors=events[-1].cursors) as follower:
            rest = [*_to_the_end(apps, follower)]
        assert lines_of([*events, *rest]) == {"main/0": ["1\n", "2\n"]}

    @staticmethod
    def _time_to_describe(apps: Apps, app_id: str) -> float:
        with contextlib.closing(apps.another()) as scheduler:
            started = time.monotonic()
            scheduler.describe(app_id)
            return time.monotonic() - started
