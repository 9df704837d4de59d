"""Costs: many apps need as few requests as one."""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.testing._base import Apps, ContractBase, until

_SUBMITTERS = 8
_LIVE = 5


def _asked(apps: Apps, ids: list[str]) -> tuple[dict[str, DescribeAppResponse | None], int | None]:
    """Return the answers of a new scheduler about the apps, and the number of its requests."""
    with contextlib.closing(apps.another()) as scheduler:
        before = apps.engine.requests()
        found = scheduler.describe_many(ids)
        after = apps.engine.requests()
    return found, None if before is None or after is None else after - before


class CostTests(ContractBase):
    """Following many apps takes no more requests than following one."""

    requests_per_describe: ClassVar[int | None] = None
    """Requests that `describe_many` of `many` apps may take. None means as many as for one app."""

    def test_describe_many_gives_each_app_its_own_answer(self, apps: Apps) -> None:
        """An answer about many apps must not mix them up, and an unknown app must not hide the others."""
        good, bad = apps.start(apps.sh("true")), apps.start(apps.sh("exit 3"))
        live, unknown = apps.start(apps.sh("echo up; sleep 60")), apps.new_id()
        for app_id in (good, bad):
            apps.end(app_id)
        apps.until_running(live)
        found = apps.another().describe_many(iter([good, unknown, bad, live]))

        assert {app_id: response and response.state for app_id, response in found.items()} == {
            good: AppState.SUCCEEDED,
            unknown: None,
            bad: AppState.FAILED,
            live: AppState.RUNNING,
        }
        assert all(response is None or response.app_id == app_id for app_id, response in found.items())

    def test_describe_many_of_nothing_is_nothing(self, apps: Apps) -> None:
        """A poller without followers asks for no apps."""
        assert apps.scheduler.describe_many([]) == {}

    def test_many_apps_cost_what_one_costs(self, apps: Apps) -> None:
        """An Airflow with hundreds of running tasks must not overload the engine with polls."""
        with ThreadPoolExecutor(_SUBMITTERS) as pool:
            ids = [*pool.map(lambda _: apps.start(apps.sh("true")), range(self.many))]
        until(
            lambda: all(app and is_terminal(app.state) for app in apps.scheduler.describe_many(ids).values()),
            self.timeout_s,
            f"{self.many} apps end",
            pause_s=0.5,
        )
        found, many = _asked(apps, ids)

        assert {*found} == {*ids}
        assert all(response and is_terminal(response.state) for response in found.values())
        assert {app_id for app_id, response in found.items() if response and response.app_id == app_id} == {*ids}
        listed = Counter(row.app_id for row in apps.another().list())
        assert [app_id for app_id in ids if listed[app_id] != 1] == []
        _, one = _asked(apps, ids[:1])
        self._compare(many, one)

    def test_running_apps_cost_what_one_costs(self, apps: Apps) -> None:
        """Running apps are polled again and again."""
        self.needs_apps_at_once(_LIVE)
        ids = [apps.start(apps.sh("exec sleep 300")) for _ in range(_LIVE)]
        for app_id in ids:
            apps.until_running(app_id)
        # The first observer finishes the start of an app.
        found, _ = _asked(apps, ids)
        _, many = _asked(apps, ids)
        _, one = _asked(apps, ids[:1])

        assert {app_id: response and response.state for app_id, response in found.items()} == dict.fromkeys(
            ids, AppState.RUNNING
        )
        self._compare(many, one)

    def _compare(self, many: int | None, one: int | None) -> None:
        if many is None or one is None:
            pytest.skip("each app has its own answer, but the requests of the engine are not counted")
        assert many <= (self.requests_per_describe or one), f"{many} requests for several apps, {one} for one"
