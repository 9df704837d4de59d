"""Status of waiting apps, many replicas and forgotten jobs, and the number of requests for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.states import AppState
from tests.aws_batch.conftest import described
from tests.engines.aws_batch.containers import IDLE_IMAGE
from tests.engines.aws_batch.names import OTHER_QUEUE, REGION
from tests.faults import Fault, FaultProxy, error
from tests.support.apps import until

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(120)]


@pytest.fixture
def make(batch_params) -> Iterator[Callable[[], AwsBatchScheduler]]:
    made: list[AwsBatchScheduler] = []

    def make() -> AwsBatchScheduler:
        made.append(create_scheduler("state", **batch_params))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def launch(scheduler: AwsBatchScheduler, queue: str, count: int = 1, **cfg: Any) -> str:
    role = Role("main", IDLE_IMAGE, entrypoint="x", num_replicas=count, resource=Resource(1, 0, 64))
    info = scheduler.submit_dryrun(AppDef("state", [role]), {"queue": queue, **cfg}, app_id=make_unique("state"))
    return scheduler.schedule(info)


def running(found: DescribeAppResponse) -> int:
    return sum(one.state is AppState.RUNNING for role in found.roles_statuses for one in role.replicas)


def job_of(scheduler: AwsBatchScheduler, app_id: str) -> str:
    known = scheduler._catalog.get(app_id)
    assert known is not None
    return str(known.jobs[known.attempt]["jobId"])


def test_why_an_app_waits_is_asked_of_its_queue(make, batch_server, batch_proxy: FaultProxy, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.queues._WAITS_S", 0.0)
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("batch", endpoint_url=batch_server.url, region_name=REGION, **keys)
    scheduler = make()
    with batch_server.settings(held=True):
        first, second = launch(scheduler, OTHER_QUEUE), launch(scheduler, OTHER_QUEUE)
        described(scheduler, second, lambda found: "RUNNABLE" in found.msg)
        fresh = make()
        assert "position 1 in queue" in described(fresh, first, lambda found: "position" in found.msg).msg
        before = batch_proxy.count("POST", "/getjobqueuesnapshot$")
        for _ in range(5):
            fresh.describe(second)
        assert batch_proxy.count("POST", "/getjobqueuesnapshot$") == before
        client.update_job_queue(jobQueue=OTHER_QUEUE, state="DISABLED")
        try:
            assert "disabled" in described(make(), first, lambda found: "RUNNABLE" in found.msg).msg
        finally:
            client.update_job_queue(jobQueue=OTHER_QUEUE, state="ENABLED")
            for app_id in (first, second):
                scheduler.cancel(app_id)


@pytest.mark.parametrize("call", ["describejobqueues", "getjobqueuesnapshot"])
def test_a_throttled_queue_keeps_the_cached_reason(
    make, batch_server, batch_proxy: FaultProxy, monkeypatch, call
) -> None:
    """The message of a waiting app must not vanish and come back with each busy minute of the account."""
    for name in ("_WAITS_S", "_KEPT_S"):
        monkeypatch.setattr(f"airflow_provider_launch.schedulers.aws_batch.queues.{name}", 0.0)
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.queues._BUSY_S", 2.0)
    busy = error(429, body={"__type": "TooManyRequestsException", "message": "Too Many Requests"})
    scheduler = make()
    with batch_server.settings(held=True):
        app_id = launch(scheduler, OTHER_QUEUE)
        described(scheduler, app_id, lambda found: "position 1" in found.msg)
        fault = batch_proxy.add(Fault(busy, "POST", f"/{call}$", times=None))
        kept = [described(scheduler, app_id, lambda _: True).msg for _ in range(5)]
        batch_proxy.clear()
        asked = batch_proxy.count("POST", f"/{call}$")
        described(scheduler, app_id, lambda _: batch_proxy.count("POST", f"/{call}$") > asked)
        scheduler.cancel(app_id)

    assert all("position 1 in queue" in msg for msg in kept), kept
    assert 1 <= fault.hits <= 6, "it is not asked at each poll"


@pytest.mark.parametrize("layout", ["array", "multi-node"])
def test_a_failed_replica_of_many_is_found_by_one_list(
    make, batch_server, batch_proxy: FaultProxy, batch_queue, layout
) -> None:
    scheduler = make()
    app_id = launch(scheduler, batch_queue, 230, layout=layout)
    described(scheduler, app_id, lambda found: running(found) == 230)
    before = len(batch_proxy.requests)
    scheduler.describe(app_id)
    quiet = [one.path for one in batch_proxy.requests[before:]]
    joint = ":" if layout == "array" else "#"
    batch_server.control(end_idle={f"{job_of(scheduler, app_id)}{joint}200": 3})
    time.sleep(0.3)
    before = len(batch_proxy.requests)
    found = scheduler.describe(app_id)
    paths = [one.path.rpartition("/")[2] for one in batch_proxy.requests[before:]]

    assert len(quiet) <= (1 if layout == "array" else 3)
    assert paths.count("describejobs") == 2  # the job, and the replica
    assert paths.count("listjobs") <= 4
    assert paths.count("terminatejob") == 1
    assert found is not None
    (role,) = found.roles_statuses
    assert (role.replicas[200].state, role.replicas[200].exit_code) == (AppState.FAILED, 3)
    ended = described(scheduler, app_id)
    assert ended.state is AppState.FAILED
    assert "replica 200" in ended.msg or "main/200" in ended.msg


def test_the_states_of_200_apps_cost_two_requests(make, batch_proxy: FaultProxy, batch_queue) -> None:
    """The contract counts 60 real containers, which is what two cores start in seconds; these stand for containers."""
    scheduler = make()
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: launch(scheduler, batch_queue), range(200)))
    # Lists have them by then.
    until(
        lambda: {found and found.state for found in scheduler.describe_many(ids).values()} == {AppState.RUNNING},
        60,
        0.5,
    )
    fresh = make()
    used = []
    for one in (fresh, fresh):
        before = len(batch_proxy.requests)
        found = one.describe_many(ids)
        used.append(len(batch_proxy.requests) - before)
        assert all(response is not None for response in found.values())
    for app_id in ids:
        scheduler.cancel(app_id)

    assert used[0] <= 8
    assert used[1] == 2


def test_a_job_that_batch_has_forgotten_keeps_its_last_state(make, batch_server, batch_queue) -> None:
    scheduler = make()
    app_id = launch(scheduler, batch_queue)
    described(scheduler, app_id, lambda found: found.state is AppState.RUNNING)
    job_id = job_of(scheduler, app_id)
    batch_server.control(end_idle={job_id: 0})
    described(scheduler, app_id, lambda found: found.state is AppState.SUCCEEDED)
    batch_server.control(forget=[job_id])

    found = scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.SUCCEEDED
    assert scheduler.exists(app_id)
