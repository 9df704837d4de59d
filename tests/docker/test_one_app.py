"""The engine is reached but fails for one container: that is not an outage, and does not affect other apps."""

from __future__ import annotations

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.specs import (
    AppState,
    AppUnavailableError,
    Resource,
    RetryPolicy,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from tests.faults import Fault, error

pytestmark = pytest.mark.engine("docker")

# The engine responds with 500 to each of them, as long as the container exists.
NO_WAY = ["rm -rf /tmp; touch /tmp", "rm -rf /tmp; ln -s /tmp /tmp", "ln -s $FILE $FILE"]


def states(answers):
    return {app_id: getattr(answer, "state", answer) for app_id, answer in answers.items()}


@pytest.mark.parametrize("wreck", NO_WAY)
def test_an_app_whose_error_file_leads_nowhere_has_failed(docker_apps, wreck):
    good = docker_apps.start(docker_apps.sh("sleep 60"))
    bad = docker_apps.start(docker_apps.sh(f"FILE=$TORCHELASTIC_ERROR_FILE; {wreck}; exit 3"))

    assert "exit code 3" in docker_apps.end(bad).msg
    found = docker_apps.another().describe_many([good, bad])
    assert states(found) == {good: AppState.RUNNING, bad: AppState.FAILED}


@pytest.mark.parametrize("wreck", NO_WAY)
def test_where_no_file_can_be_there_is_no_result(docker_apps, wreck):
    app_id = docker_apps.start(docker_apps.sh(f"FILE=$LAUNCH_RESULT_PATH; {wreck}"))

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert docker_apps.scheduler.result(app_id) is None


def test_an_error_file_that_the_engine_cannot_hand_out_hides_no_failure(docker_apps, docker_proxy, caplog):
    docker_proxy.add(Fault(error(500, "mount: not a directory"), "GET", "/archive", times=None))

    ended = docker_apps.run(docker_apps.sh("exit 3"))

    assert ended.state is AppState.FAILED
    assert "cannot be read" in caplog.text
    assert "mount: not a directory" in caplog.text


def test_a_stop_that_the_engine_refuses_is_reported_to_who_asked_for_it(docker_apps, docker_proxy, caplog):
    """Any other observer sees that the app continues."""
    good = docker_apps.start(docker_apps.sh("sleep 60"))
    bad = docker_apps.start(docker_apps.sh("sleep 60"))
    docker_proxy.add(Fault(error(500, "cannot stop container: permission denied"), "POST", "/stop", times=None))

    with pytest.raises(AppUnavailableError, match="permission denied"):
        docker_apps.scheduler.cancel(bad)
    looks = [poll_many(docker_apps.scheduler, [good, bad]) for _ in range(3)]

    assert [states(look) for look in looks] == [{good: AppState.RUNNING, bad: AppState.RUNNING}] * 3
    assert caplog.text.count("retrying in 60 s") == 1
    docker_proxy.clear()
    docker_apps.another().cancel(bad)
    assert docker_apps.end(bad).state is AppState.CANCELLED


def test_an_inspection_that_fails_hides_one_app_of_many(docker_apps, docker_proxy):
    """It is found by bisection, because a list for each app would be too many requests."""
    good = [docker_apps.start(docker_apps.sh("sleep 60")) for _ in range(7)]
    bad = docker_apps.start(docker_apps.sh("exit 3"))
    docker_apps.end(bad)
    damaged = docker_apps.container(bad)["Id"]
    docker_proxy.add(Fault(error(500, "RWLayer is unexpectedly nil"), "GET", f"/{damaged}/json", times=None))
    scheduler = docker_apps.another()
    before = docker_proxy.count("GET", "/containers/json")

    found = poll_many(scheduler, [*good, bad])

    assert isinstance(found.pop(bad), AppUnavailableError)
    assert set(states(found).values()) == {AppState.RUNNING}
    assert docker_proxy.count("GET", "/containers/json") - before <= 7
    assert {row.app_id: row.state for row in scheduler.list()}[bad] is AppState.FAILED


def test_a_list_that_fails_is_an_outage_for_all(docker_apps, docker_proxy):
    apps = [docker_apps.start(docker_apps.sh("sleep 60")) for _ in range(2)]
    docker_proxy.add(Fault(error(500, "database is locked"), "GET", "/containers/json", times=None))

    found = poll_many(docker_apps.scheduler, apps)

    assert {type(answer) for answer in found.values()} == {SchedulerUnavailableError}


def test_gpus_that_another_app_got_meanwhile_are_not_adopted(docker_apps, gpus, monkeypatch):
    """There is no GPU here: the record has the lease. A launcher died between its record and its search for rivals."""
    role = docker_apps.sh("true", resource=Resource(cpu=1, gpu=1, memMB=64))
    docker_apps.scheduler = docker_apps.another(gpus=gpus[:1])
    dead, rival, repeated = (docker_apps.another(gpus=gpus[:1]) for _ in range(3))
    mine, other = docker_apps.info(role), docker_apps.info(role)
    lease = dead._leases.lease

    def lease_slowly(request):
        leased = lease(request)
        assert rival._claim(other.request) is not None
        return leased

    def die(*_args):
        raise SchedulerUnavailableError("killed")

    monkeypatch.setattr(dead._leases, "lease", lease_slowly)
    monkeypatch.setattr(dead._leases, "has_rival", die)
    with pytest.raises(SchedulerUnavailableError, match="killed"):
        dead.schedule(mine)
    assert docker_apps.left(mine.request.app_id)

    with pytest.raises(SchedulerRejectedError, match="0 of 1 are free"):
        repeated.schedule(mine)

    assert docker_apps.left(mine.request.app_id) == []


def test_a_record_without_rivals_is_adopted_with_its_gpus(docker_apps, gpus):
    role = docker_apps.sh("true", resource=Resource(cpu=1, gpu=1, memMB=64))
    docker_apps.scheduler = docker_apps.another(gpus=gpus[:1])
    repeated = docker_apps.another(gpus=gpus[:1])
    info = docker_apps.info(role)
    assert docker_apps.scheduler._claim(info.request) is not None

    assert repeated._claim(info.request) is None

    request = repeated.describe_native(info.request.app_id).request
    assert request.gpus == {"main/0": gpus[:1]}


def test_the_result_is_that_of_the_last_attempt(docker_apps):
    """Another observer has retried the app since the last poll."""
    role = docker_apps.sh(
        "echo $LAUNCH_ATTEMPT > $LAUNCH_RESULT_PATH; test $LAUNCH_ATTEMPT = 1",
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )
    app_id = docker_apps.start(role)
    docker_apps.client.api.wait(docker_apps.container(app_id)["Id"])
    early = docker_apps.another()
    early.read_logs(app_id, "main", 0)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert early.result(app_id) == 1


def test_the_result_of_an_app_that_another_has_deleted(docker_apps):
    app_id = docker_apps.start(docker_apps.sh("echo 1 > $LAUNCH_RESULT_PATH"))
    docker_apps.end(app_id)
    docker_apps.another().delete(app_id)

    with pytest.raises(UnknownAppException):
        docker_apps.scheduler.result(app_id)


def test_a_removed_result_is_an_error(docker_apps):
    app_id = docker_apps.start(docker_apps.sh("echo 1 > $LAUNCH_RESULT_PATH"))
    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    docker_apps.client.api.remove_container(docker_apps.container(app_id)["Id"])

    with pytest.raises(SchedulerRejectedError, match=r"can no longer be read.*: No such container"):
        docker_apps.scheduler.result(app_id)


def test_a_number_that_the_engine_cannot_hold_is_refused(docker_apps):
    info = docker_apps.info(docker_apps.sh("true"), shm_size_mb=10**13)

    with pytest.raises(SchedulerRejectedError, match="cannot unmarshal"):
        docker_apps.scheduler.schedule(info)

    assert docker_apps.left(info.request.app_id) == []
