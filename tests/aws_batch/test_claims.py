"""An app starts once, whatever happens to its submitters: containers are counted, with a ListJobs that lags."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch.naming import Tag, definition_name
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import AppConflictError, SchedulerRejectedError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._process import OtherProcess
from tests.aws_batch.conftest import described
from tests.engines.aws_batch.engine import BatchServer
from tests.faults import Fault, FaultProxy, drop_answer, error
from tests.faults.proxy import Exchange
from tests.support.apps import until

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(300)]

FACTORY = "airflow_provider_launch.schedulers.aws_batch.scheduler:create_scheduler"
REGISTER, SUBMIT = r"/registerjobdefinition$", r"/submitjob$"
LAG_S, WAIT_S = 3.0, 4.0


@pytest.fixture(autouse=True)
def _lag(batch_server: BatchServer) -> Iterator[None]:
    with batch_server.settings(list_lag_s=LAG_S):
        yield


@pytest.fixture
def params(batch_params) -> dict[str, Any]:
    return {**batch_params, "claim_wait_s": WAIT_S}


@pytest.fixture
def make(params) -> Iterator[Any]:
    made: list[AwsBatchScheduler] = []

    def create() -> AwsBatchScheduler:
        made.append(create_scheduler("claims", **params))
        return made[-1]

    yield create
    for scheduler in made:
        scheduler.close()


@pytest.fixture
def app(docker_engine) -> AppDef:
    script = ["-c", "echo run; sleep 1"]
    role = Role("main", docker_engine.image, entrypoint="sh", args=script, resource=Resource(1, 0, 64))
    return AppDef("claims", [role])


@pytest.fixture(params=["own", "users"])
def cfg(request, definition, batch_queue) -> dict[str, Any]:
    """Options of a launch; also with the defaults of an existing definition, which changes nothing about the claim."""
    return {"queue": batch_queue, **({"job_definition": definition} if request.param == "users" else {})}


def schedule(scheduler: AwsBatchScheduler, app: AppDef, app_id: str, where: str | dict[str, Any]) -> str:
    cfg = {"queue": where} if isinstance(where, str) else where
    return scheduler.schedule(scheduler.submit_dryrun(app, cfg, app_id=app_id))


def starts(server: BatchServer, app_id: str) -> int:
    return int(server.control(app=app_id)["starts"])


def hold_after(exchange: Exchange) -> None:
    """Let the server have the request, and keep its answer until the client has gone."""
    exchange.forward()
    exchange.wait()


def hold_before(exchange: Exchange) -> None:
    exchange.wait()


def test_racers_start_one_app(make, app, batch_server, cfg) -> None:
    ids = [make_unique("race") for _ in range(4)]
    schedulers = [make() for _ in range(5)]
    with ThreadPoolExecutor(20) as pool:
        done = [pool.submit(schedule, one, app, app_id, cfg) for app_id in ids for one in schedulers]
        assert sorted({one.result() for one in done}) == sorted(ids)

    for app_id in ids:
        assert described(make(), app_id).state is AppState.SUCCEEDED
    time.sleep(1)
    assert [starts(batch_server, app_id) for app_id in ids] == [1] * len(ids)


@pytest.mark.parametrize("hold", [hold_before, hold_after], ids=["before", "after"])
@pytest.mark.parametrize("path", [REGISTER, SUBMIT], ids=["register", "submit"])
def test_a_submitter_killed_at_a_request_is_replaced_and_nothing_starts_twice(
    make, params, app, batch_server, batch_proxy: FaultProxy, cfg, path, hold
) -> None:
    app_id = make_unique("killed")
    batch_proxy.add(Fault(hold, "POST", path))
    with OtherProcess(FACTORY, params) as process:
        process.send("schedule", app=app_to_dict(app), cfg=cfg, app_id=app_id)
        until(lambda: batch_proxy.count("POST", path), 60, 0.05)
        time.sleep(0.5)
        process.kill()
    others = [make() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(schedule, one, app, app_id, cfg) for one in others]
        assert {one.result() for one in done} == {app_id}

    assert described(make(), app_id).state is AppState.SUCCEEDED
    time.sleep(1)
    assert starts(batch_server, app_id) == 1


def test_a_stalled_submitter_finds_that_it_was_replaced(
    make, app, batch_server, batch_proxy: FaultProxy, batch_queue
) -> None:
    """Its SubmitJob comes when another one has run the app: the revision is inactive by then."""
    app_id = make_unique("stalled")

    def late(exchange: Exchange) -> None:
        exchange.wait(4 * WAIT_S)
        exchange.relay(exchange.forward())

    batch_proxy.add(Fault(late, "POST", SUBMIT))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(schedule, make(), app, app_id, batch_queue)
        while not batch_proxy.count("POST", SUBMIT):
            time.sleep(0.05)
        assert schedule(make(), app, app_id, batch_queue) == app_id
        assert first.result() == app_id

    assert described(make(), app_id).state is AppState.SUCCEEDED
    time.sleep(1)
    assert starts(batch_server, app_id) == 1


@pytest.mark.parametrize(
    ("action", "path"),
    [(drop_answer(), REGISTER), (drop_answer(), SUBMIT), (error(500), SUBMIT), (error(500), REGISTER)],
    ids=["register-lost", "submit-lost", "submit-500", "register-500"],
)
def test_a_lost_answer_starts_nothing_twice(
    make, app, batch_server, batch_proxy: FaultProxy, batch_queue, action, path
) -> None:
    """boto3 itself would send SubmitJob three times."""
    app_id = make_unique("lost")
    batch_proxy.add(Fault(action, "POST", path))

    assert schedule(make(), app, app_id, batch_queue) == app_id
    assert described(make(), app_id).state is AppState.SUCCEEDED
    time.sleep(1)
    assert starts(batch_server, app_id) == 1


def test_throttling_is_waited_out(make, app, batch_server, batch_queue) -> None:
    app_id = make_unique("busy")
    with batch_server.settings(rates={"submitjob": 0.5}):
        for number in range(3):
            assert schedule(make(), app, f"{app_id}-{number}", batch_queue)

    assert [starts(batch_server, f"{app_id}-{number}") <= 1 for number in range(3)] == [True] * 3
    assert {described(make(), f"{app_id}-{number}").state for number in range(3)} == {AppState.SUCCEEDED}


def test_alone_a_launch_takes_three_requests(make, app, batch_proxy: FaultProxy, batch_queue) -> None:
    schedule(make(), app, make_unique("alone"), batch_queue)

    paths = ["/v1/registerjobdefinition", "/v1/submitjob", "/v1/describejobdefinitions"]
    assert [one.path for one in batch_proxy.requests] == paths


@pytest.mark.parametrize("end", ["delete", "cancel"])
def test_an_app_that_is_ended_before_its_job_is_listed_does_not_run(
    make, app, batch_server, batch_proxy: FaultProxy, batch_queue, end
) -> None:
    """The cancel sees no job yet, so the submitter must notice the cancel."""
    app_id = make_unique("ended")
    other = make()
    app.roles[0].args = ["-c", "sleep 600"]

    def meanwhile(exchange: Exchange) -> None:
        answer = exchange.forward()
        getattr(other, end)(app_id)
        exchange.relay(answer)

    batch_proxy.add(Fault(meanwhile, "POST", SUBMIT))
    if end == "delete":
        with pytest.raises(SchedulerRejectedError, match="deleted while it was submitted"):
            schedule(make(), app, app_id, batch_queue)
    else:
        assert schedule(make(), app, app_id, batch_queue) == app_id
        assert described(make(), app_id).state is AppState.CANCELLED
    deadline = time.monotonic() + 60
    while batch_server.control(app=app_id)["alive"] or time.monotonic() < deadline - 55:
        assert time.monotonic() < deadline, "it runs"
        time.sleep(0.2)


def test_an_app_that_batch_has_forgotten_is_not_run_again(make, app, batch_server, batch_queue) -> None:
    app_id = make_unique("old")
    scheduler = make()
    request = scheduler.submit_dryrun(app, {"queue": batch_queue}, app_id=app_id).request
    scheduler.aws.register(request.definition(0, int(time.time()) - 7 * 24 * 3600))

    with pytest.raises(SchedulerRejectedError, match="forgotten"):
        schedule(make(), app, app_id, batch_queue)
    assert starts(batch_server, app_id) == 0
    assert [int(one["revision"]) for one in scheduler.aws.active(definition_name(app_id))] == [1]


def test_another_app_of_the_same_id_is_a_conflict_before_the_job_is_listed(
    make, app, batch_server, batch_queue
) -> None:
    app_id = make_unique("conflict")
    schedule(make(), app, app_id, batch_queue)
    other = AppDef("claims", [Role("main", app.roles[0].image, entrypoint="true", resource=Resource(1, 0, 64))])

    with pytest.raises(AppConflictError, match=app_id):
        schedule(make(), other, app_id, batch_queue)
    assert described(make(), app_id).state is AppState.SUCCEEDED
    assert starts(batch_server, app_id) == 1


def test_of_two_jobs_of_one_name_the_first_stays(make, app, batch_server, batch_queue) -> None:
    """A user may have created the second job, or Batch listed the first one too late."""
    app_id = make_unique("twice")
    scheduler = make()
    app.roles[0].args = ["-c", "sleep 20"]
    request = scheduler.submit_dryrun(app, {"queue": batch_queue}, app_id=app_id).request
    scheduler.schedule(scheduler.submit_dryrun(app, {"queue": batch_queue}, app_id=app_id))
    second = scheduler.aws.submit(request.submission(0, 1))
    time.sleep(LAG_S + 0.5)

    found = make().describe(app_id)
    assert found is not None
    assert found.state in {AppState.PENDING, AppState.RUNNING}
    until(lambda: scheduler.aws.describe([second])[second]["status"] == "FAILED", 30, 0.1)
    assert str(Tag.DELETED) not in scheduler.aws.describe([second])[second]["tags"]
    scheduler.delete(app_id)
