"""The cache of apps: a hostile record must not cause a read in each poll. No cluster is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_launch.schedulers.slurm.app_cache import AppCache, CachedApp
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.records import Attempt, Record
from airflow_provider_launch.schedulers.slurm.request import build_request
from airflow_provider_launch.schedulers.slurm.store import FilePart
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.statuses import ReplicaStatus

APP = AppDef("app", [Role("main", "", entrypoint="true", num_replicas=2, max_retries=3)])


class Store:
    """Counts the reads of an app."""

    def __init__(self, attempts: Any = (), size: int = 1000) -> None:
        self.read, self.listed, self.size = 0, 0, size
        self._attempts = attempts

    def requests(self, app_ids: Any) -> dict[str, Any]:
        self.read += 1
        return {app_id: (f"h:{app_id}", build_request(APP, SlurmOpts(), app_id, {}), self.size) for app_id in app_ids}

    def attempts(self, app_ids: Any) -> dict[str, Any]:
        self.listed += 1
        return dict.fromkeys(app_ids, self._attempts)


def test_a_record_that_is_replaced_again_and_again_is_read_a_few_times() -> None:
    store = Store()
    cache = AppCache(store)
    for number in range(200):
        found, damaged = cache.load({"app": Record("app", created=f"1 {number}")})
        assert ("app" in found) is not ("app" in damaged)

    assert store.read <= 20
    assert "replaced too often" in damaged["app"]
    # A new app is not affected.
    assert "other" in cache.load({"other": Record("other", created="1 1")})[0]


@pytest.mark.parametrize(
    "attempts", ["too many", [Attempt(0, 0, 0, number, code=1) for number in range(5000)]], ids=["answer", "attempts"]
)
def test_attempts_that_cannot_be_are_not_listed_at_each_poll(attempts) -> None:
    """A program may make any number of files, and change them before each poll."""
    store = Store(attempts)
    cache = AppCache(store)
    for number in range(20):
        found, _ = cache.load({"app": Record("app", created="1 1", claim="c", changed=str(number))})
        damaged = cache.load_attempts(found.values())
        assert damaged.keys() == {"app"}

    assert store.listed == 1


def test_attempts_of_an_honest_app_are_listed_when_they_change() -> None:
    store = Store([Attempt(0, 0, k, number, code=1) for k in range(2) for number in range(4)])
    cache = AppCache(store)
    for number in (1, 1, 2):
        found, _ = cache.load({"app": Record("app", created="1 1", claim="c", changed=str(number))})
        assert cache.load_attempts(found.values()) == {}

    assert store.listed == 2
    assert len(found["app"].attempts) == 8


class Counted(list[Attempt]):
    """Counts how often it is read from start to end."""

    def __init__(self, attempts: list[Attempt]) -> None:
        super().__init__(attempts)
        self.read = 0

    def __iter__(self) -> Iterator[Attempt]:
        self.read += 1
        return super().__iter__()


def test_the_errors_of_many_replicas_need_few_passes_over_their_attempts() -> None:
    """One pass for each of 10 000 failed replicas needed 22 s of CPU, while all other apps had to wait."""

    class Files:
        def read(self, paths: Any, _: int) -> dict[str, FilePart]:
            return {path: FilePart(is_plain=True, data=path.encode(), size=1, inode=1, modified_ms=1) for path in paths}

    app_def = AppDef("app", [Role("main", "", entrypoint="true", num_replicas=200, max_retries=1)])
    request = build_request(app_def, SlurmOpts(), "app", {})
    app = CachedApp(Record("app", end="FAILED,exit,1"), "h:i", request)
    app.attempts = attempts = Counted([Attempt(0, 0, k, number, code=1) for k in range(200) for number in range(2)])

    AppCache(Files()).load_errors(app)
    errors = [app.error(0, ReplicaStatus(k, AppState.FAILED, "main", "")) for k in range(200)]

    assert errors == [f"app/run/0/{request.roles[0].slug}/{k}/1/error.json" for k in range(200)]
    assert app.newest_paths(0, "error.json") == errors
    assert attempts.read <= 3


def test_a_large_record_is_read_less_often() -> None:
    store = Store(size=2**20)
    cache = AppCache(store)
    for number in range(50):
        cache.load({"app": Record("app", created=f"1 {number}")})

    assert store.read <= 2


def test_the_cached_records_have_a_limit_together() -> None:
    store = Store(size=8 * 2**20)
    cache = AppCache(store)
    for name in "abcdefgh":
        assert cache.load({name: Record(name, created="1 1")})[0].keys() == {name}
    before = store.read

    cache.load({"h": Record("h", created="1 1")})
    assert store.read == before
    cache.load({"a": Record("a", created="1 1")})
    assert store.read == before + 1


def test_the_errors_of_failed_apps_have_a_limit() -> None:
    """Those of a few hundred apps of a forged number of replicas filled the memory."""

    class Files:
        def requests(self, app_ids: Any) -> dict[str, Any]:
            return {app_id: ("h:i", build_request(app_def, SlurmOpts(), app_id, {}), 1000) for app_id in app_ids}

        def read(self, paths: Any, limit: int) -> dict[str, FilePart]:
            data = b"x" * limit
            return {path: FilePart(is_plain=True, data=data, size=limit, inode=1, modified_ms=1) for path in paths}

    app_def = AppDef("app", [Role("main", "", entrypoint="true", num_replicas=500)])
    cache = AppCache(Files())
    names = [f"app-{number}" for number in range(50)]
    apps = cache.load({name: Record(name, created="1 1") for name in names})[0]
    for app in apps.values():
        app.attempts = [Attempt(0, 0, k, 0, code=1) for k in range(500)]
        cache.load_errors(app)
        assert sum(map(len, app.errors.values())) <= 2 * 2**20

    kept = [app for app in apps.values() if app.errors is not None]
    assert 20 <= len(kept) < 40
    assert kept[-1] is apps[names[-1]]
