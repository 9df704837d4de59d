"""Faults of some minutes: throttling, expired tokens, a wrong clock, a late list."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from tests.aws_batch.conftest import described
from tests.engines.aws_batch.containers import IDLE_IMAGE
from tests.faults import Fault, FaultProxy, error

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(120)]

ROOM = Resource(1, 0, 64)


@pytest.fixture
def make(batch_params) -> Iterator[Callable[..., AwsBatchScheduler]]:
    made: list[AwsBatchScheduler] = []

    def make(**params) -> AwsBatchScheduler:
        made.append(create_scheduler("faults", **{**batch_params, **params}))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def request(scheduler: AwsBatchScheduler, role: Role, queue: str, **cfg):
    return scheduler.submit_dryrun(AppDef("faults", [role]), {"queue": queue, **cfg}, app_id=make_unique("faults"))


def sh(image: str, script: str) -> Role:
    return Role("main", image, entrypoint="sh", args=["-c", script], resource=ROOM)


@pytest.mark.parametrize("operation", ["registerjobdefinition", "submitjob"])
def test_throttling_beyond_our_time_is_an_outage_and_the_same_call_starts_one_app_later(
    make, batch_server, batch_queue, docker_engine, monkeypatch, operation
) -> None:
    """A call waits up to a minute; the task repeats the call for `unavailable_for_s`."""
    scheduler = make()
    info = request(scheduler, sh(docker_engine.image, "echo hi"), batch_queue)
    with batch_server.settings(rates={operation: 0.0001}), monkeypatch.context() as short:
        short.setattr("airflow_provider_launch.schedulers.aws_batch.client._THROTTLED_S", 1.0)
        # The first one is let through.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: scheduler.schedule(request(scheduler, sh(IDLE_IMAGE, ""), batch_queue))).result()
        for _ in range(2):
            with pytest.raises(SchedulerUnavailableError, match="throttle"):
                scheduler.schedule(info)
    app_id = scheduler.schedule(info)

    with Follower(scheduler, app_id, poll_interval_s=0.2) as follower:
        list(follower)
    assert follower.response is not None
    assert follower.response.state is AppState.SUCCEEDED
    assert batch_server.control(app=app_id)["starts"] == 1


def test_a_follower_continues_after_throttled_and_expired_answers(
    make, batch_proxy: FaultProxy, batch_queue, docker_engine
) -> None:
    scheduler = make()
    script = "for n in $(seq 20); do echo $n; sleep 1; done"
    app_id = scheduler.schedule(request(scheduler, sh(docker_engine.image, script), batch_queue))
    busy = error(429, body={"__type": "TooManyRequestsException", "message": "Too Many Requests"})
    expired = error(403, body={"__type": "ExpiredTokenException", "message": "The security token is expired"})
    slow = error(400, body={"__type": "ThrottlingException", "message": "Rate exceeded"})
    lines = []
    is_faulty = False
    with Follower(scheduler, app_id, poll_interval_s=0.2, unavailable_for_s=60) as follower:
        for event in follower:
            if isinstance(event, LogLines):
                lines += [line.text.strip() for line in event.lines]
                if not is_faulty:
                    is_faulty = True
                    for action, path, nth in (
                        (busy, "/describejobs$", 1),
                        (expired, "/describejobs$", 3),
                        (slow, "^/$", 1),
                    ):
                        batch_proxy.add(Fault(action, "POST", path, nth=nth, times=2))

    assert follower.response is not None
    assert follower.response.state is AppState.SUCCEEDED
    assert lines == [str(number) for number in range(1, 21)]


def test_expired_tokens_of_cloudwatch_lose_and_repeat_nothing(make, batch_server, batch_queue, docker_engine) -> None:
    scheduler = make()
    script = "for n in 1 2 3 4 5 6 7 8; do echo $n; echo $n$n; sleep 0.4; done"
    app_id = scheduler.schedule(request(scheduler, sh(docker_engine.image, script), batch_queue))
    lines: list[str] = []
    with batch_server.settings(token_epoch=1, page=3), Follower(scheduler, app_id, poll_interval_s=0.2) as follower:
        for event in follower:
            if isinstance(event, LogLines):
                lines += [line.text.strip() for line in event.lines]
                batch_server.control(settings={"token_epoch": 2 + len(lines)})

    assert lines == [text for n in range(1, 9) for text in (str(n), f"{n}{n}")]


@pytest.mark.parametrize("offset_s", [600.0, -600.0])
def test_another_clock_ends_no_app_too_early_or_too_late(make, batch_server, batch_queue, offset_s) -> None:
    scheduler = make()
    with batch_server.settings(offset_s=offset_s):
        app_id = scheduler.schedule(request(scheduler, sh(IDLE_IMAGE, ""), batch_queue, time_limit_s=4))
        began = time.monotonic()
        found = described(scheduler, app_id, timeout_s=30)

    assert found.state is AppState.FAILED
    assert "time limit" in found.msg
    assert 3 < time.monotonic() - began < 15


def test_racers_start_one_app_with_a_list_that_is_5_s_late(make, batch_server, batch_queue, docker_engine) -> None:
    schedulers = [make(claim_wait_s=6.0) for _ in range(4)]
    info = request(schedulers[0], sh(docker_engine.image, "sleep 1"), batch_queue)
    with batch_server.settings(list_lag_s=5.0), ThreadPoolExecutor(4) as pool:
        done = [pool.submit(one.schedule, info) for one in schedulers]
        assert {one.result() for one in done} == {info.request.app_id}
        time.sleep(1)

    assert batch_server.control(app=info.request.app_id)["starts"] == 1
