"""Outages and losses: an unknown status is never reported as a state, and a lost app has no invented end."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from airflow_provider_launch.follow.events import Ended, Event, Reached, Unreachable
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.api import Capability, Scheduler
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, replicas, until, within
from airflow_provider_launch.testing._ending import DEAF, grace_above_lag
from airflow_provider_launch.testing._following import lines_of

_POLL_S = 0.2
_OUTAGE_S = 4.0

CutOff = Callable[[], AbstractContextManager[None]]
Call = Callable[[Scheduler[Any], str], object]

_CALLS: dict[str, Call] = {
    "describe": lambda scheduler, app_id: scheduler.describe(app_id),
    "describe_many": lambda scheduler, app_id: scheduler.describe_many([app_id]),
    "exists": lambda scheduler, app_id: scheduler.exists(app_id),
    "describe_native": lambda scheduler, app_id: scheduler.describe_native(app_id),
    "result": lambda scheduler, app_id: scheduler.result(app_id),
    "list": lambda scheduler, _: scheduler.list(),
    "read_logs": lambda scheduler, app_id: scheduler.read_logs(app_id, "main", 0),
    "log_iter": lambda scheduler, app_id: [*itertools.islice(scheduler.log_iter(app_id, "main", 0), 1000)],
    "cancel": lambda scheduler, app_id: scheduler.cancel(app_id),
    "delete": lambda scheduler, app_id: scheduler.delete(app_id),
}


class OutageTests(ContractBase):
    """An unreachable engine is an error, and work continues after it."""

    @pytest.fixture
    def cut_off(self, apps: Apps) -> CutOff:
        """Return a function that returns a context in which the engine is unreachable."""
        if apps.engine.cut_off() is None:
            pytest.skip("the engine cannot be cut off")

        @contextlib.contextmanager
        def cut() -> Iterator[None]:
            context = apps.engine.cut_off()
            assert context is not None
            with context:
                yield

        return cut

    @pytest.mark.parametrize("call", [*_CALLS])
    def test_unreachable_is_an_error_and_never_an_answer(self, apps: Apps, cut_off: CutOff, call: str) -> None:
        """Reporting an outage as "no such app" launches the app twice; reporting it as RUNNING waits for ever."""
        if call == "result":
            self.needs(Capability.RESULT)
        app_id = apps.start(apps.sh("echo up; sleep 60"))
        apps.until_running(app_id)
        apps.until_written(app_id, "up")
        known = apps.scheduler
        if call == "describe_native" and known.describe_native(app_id) is None:
            pytest.skip("the engine keeps no request")
        with cut_off():
            # A scheduler that was connected before, and a new one.
            for scheduler in (known, apps.another()):
                with pytest.raises(SchedulerUnavailableError):
                    _CALLS[call](scheduler, app_id)

        found = known.describe(app_id)
        assert found is not None
        assert found.state is AppState.RUNNING
        apps.expect_starts(app_id, 1)

    def test_an_app_that_could_not_be_launched_is_launched_by_the_same_call(self, apps: Apps, cut_off: CutOff) -> None:
        """The launch is repeated after an outage, so the failed call must not leave obstacles."""
        app_id = apps.new_id()
        request = apps.dryrun(apps.sh("echo hello"), app_id=app_id)
        with cut_off(), pytest.raises(SchedulerUnavailableError):
            apps.scheduler.schedule(request)
        apps.scheduler.schedule(request)

        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 1)
        assert apps.lines(app_id) == ["hello\n"]

    def test_what_happened_meanwhile_is_reported_afterwards(self, apps: Apps, cut_off: CutOff) -> None:
        """The app ends during the outage; its end and its log are available after it."""
        app_id = apps.start(apps.sh("echo 1; sleep 2; echo 2; exit 3"))
        apps.until_written(app_id, "1")
        with cut_off():
            time.sleep(4 + self.lag_s)

        # No process could record the end during the outage, so it may take a moment.
        found = apps.end(app_id)
        assert found.state is AppState.FAILED
        assert replicas(found)["main", 0].exit_code == 3
        assert "3" in found.msg
        assert apps.lines(app_id) == ["1\n", "2\n"]

    def test_a_follower_bridges_an_outage(self, apps: Apps, cut_off: CutOff) -> None:
        """The task logs that it waits, and then continues from its position."""
        for count in (80, 400):
            events = self._follow_through_an_outage(apps, cut_off, count)
            kinds = [type(event) for event in events if isinstance(event, Unreachable | Reached | Ended)]
            # On a busy machine a short app may end before its first line is read, and so before the outage.
            if Unreachable in kinds:
                break

        assert kinds == [Unreachable, Reached, Ended]
        assert isinstance(events[-1], Ended)
        assert events[-1].response.state is AppState.SUCCEEDED
        assert lines_of(events) == {"main/0": [f"{i}\n" for i in range(1, count + 1)]}

    @staticmethod
    def _follow_through_an_outage(apps: Apps, cut_off: CutOff, count: int) -> list[Event]:
        """Return the events of an app that writes ten lines per second; the outage starts after the first ones."""
        script = f"i=0; while [ $i -lt {count} ]; do i=$((i + 1)); echo $i; sleep 0.1; done"
        app_id = apps.start(apps.sh(script))
        events: list[Event] = []
        with contextlib.ExitStack() as outage, Follower(apps.another(), app_id, poll_interval_s=_POLL_S) as follower:
            cut_at = None
            for event in within(follower, apps.timeout_s, "the follower"):
                events.append(event)
                if cut_at is None and lines_of([event]):
                    outage.enter_context(cut_off())
                    cut_at = time.monotonic()
                if cut_at is not None and time.monotonic() - cut_at > _OUTAGE_S:
                    outage.close()
        return events


class LossTests(ContractBase):
    """A lost app is UNKNOWN. An app that the engine has given up is not reported as ended while its programs run."""

    def test_an_app_that_was_lost_is_unknown(self, apps: Apps) -> None:
        """The end is unknown: an invented end may be wrong, and "no such app" launches the app twice."""
        app_id = apps.new_id()
        request = apps.dryrun(apps.sh("sleep 5"), apps.sh("sleep 120", "other"), app_id=app_id)
        apps.scheduler.schedule(request)
        apps.until_running(app_id, ("other", 0))
        if not apps.engine.lose(app_id, "other"):
            pytest.skip("the engine cannot lose an app")

        for scheduler in (apps.scheduler, apps.another()):
            states: list[AppState | None] = []

            def is_unknown(observer: Scheduler[Any] = scheduler, seen: list[AppState | None] = states) -> bool:
                found = observer.describe(app_id)
                seen.append(found.state if found else None)
                return seen[-1] is AppState.UNKNOWN

            until(is_unknown, apps.timeout_s, f"{app_id} is UNKNOWN")
            # The app is RUNNING while another role runs.
            assert {*states} <= {AppState.RUNNING, AppState.UNKNOWN}
        starts = apps.engine.starts(app_id)
        apps.scheduler.schedule(request)
        apps.until_nothing_is_alive(app_id)
        found = apps.scheduler.describe(app_id)
        assert found is not None
        assert found.state is AppState.UNKNOWN
        assert apps.engine.starts(app_id) == starts

    def test_nothing_runs_once_an_app_is_given_up(self, apps: Apps) -> None:
        """The engine may take a program for dead that still runs, and writes the checkpoint of the next attempt."""
        if apps.engine.alive(apps.new_id()) is None:
            pytest.skip("the engine cannot report what is alive")
        app_id = apps.start(apps.sh(DEAF), apps.sh(DEAF, "peer"), **grace_above_lag(apps))
        for role in ("main", "peer"):
            apps.until_written(app_id, "up", role)
        apps.until_running(app_id, ("main", 0), ("peer", 0))
        if not apps.engine.give_up(app_id, "main"):
            pytest.skip("the engine cannot give up an app")

        assert apps.until_processes_end(app_id).state is AppState.FAILED
