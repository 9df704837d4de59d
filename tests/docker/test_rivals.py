"""Submitters, observers and deleters that conflict at a bad moment."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from docker.errors import APIError

from airflow_provider_launch.schedulers.docker import catalog, creation, observer
from airflow_provider_launch.specs import (
    AppState,
    LaunchError,
    Resource,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    is_terminal,
)
from tests.faults import Fault, drop, error
from tests.support.apps import until

pytestmark = pytest.mark.engine("docker")


def test_a_submitter_that_wakes_up_late_leaves_alone_what_another_has_started(docker_apps, monkeypatch):
    """It may remove the containers that it has created, but not running ones."""
    info = docker_apps.info(docker_apps.sh("echo begun; sleep 5", num_replicas=2))
    slow, quick = docker_apps.another(), docker_apps.another()
    created, go_on, work = threading.Event(), threading.Event(), slow._observer.work

    def stalled(*args, **how):
        created.set()
        assert go_on.wait(60)
        return work(*args, **how)

    monkeypatch.setattr(slow._observer, "work", stalled)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(slow.schedule, info)
        assert created.wait(30)
        app_id = quick.schedule(info)
        go_on.set()
        assert late.result(60) == app_id

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert docker_apps.begun(app_id) == [1, 1]


@pytest.mark.parametrize("late_s", [0.0, 3.0])
def test_a_third_container_under_a_name_that_became_free_is_no_second_start(docker_apps, monkeypatch, late_s):
    """A takeover renames the container; a start by its old name may then find one that another process created."""
    info = docker_apps.info(docker_apps.sh("echo begun; sleep 6"))
    slow, quick, third = (docker_apps.another() for _ in range(3))
    about_to_start, may_start = threading.Event(), threading.Event()
    start, rename = slow.engine.start, quick.engine.rename

    def stalled(name: str) -> None:
        about_to_start.set()
        assert may_start.wait(60)
        time.sleep(late_s)
        start(name)

    def created_again(old: str, new: str) -> None:
        rename(old, new)
        if not may_start.is_set():
            third._creation.create_all(info.request, creation.first_attempts(info.request), set())
            may_start.set()

    monkeypatch.setattr(slow.engine, "start", stalled)
    monkeypatch.setattr(quick.engine, "rename", created_again)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(slow.schedule, info)
        assert about_to_start.wait(30)
        app_id = quick.schedule(info)
        assert late.result(60) == app_id

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert docker_apps.begun(app_id) == [1]


def test_what_an_outage_kept_from_being_prepared_is_prepared_by_the_repeat(docker_apps, docker_proxy):
    info = docker_apps.info(docker_apps.sh("true"), network="app")
    docker_proxy.add(Fault(drop(), "POST", "/networks/create"))
    with pytest.raises(SchedulerUnavailableError):
        docker_apps.scheduler.schedule(info)
    app_id = docker_apps.another().schedule(info)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED


def test_a_stop_that_the_engine_did_not_take_is_sent_again(docker_apps, docker_proxy):
    app_id = docker_apps.start(docker_apps.sh("sleep 60"))
    docker_proxy.add(Fault(error(503, "busy"), "POST", "/stop"))
    with pytest.raises(SchedulerUnavailableError):
        docker_apps.scheduler.cancel(app_id)
    docker_apps.scheduler.cancel(app_id)

    assert docker_apps.end(app_id, timeout_s=20).state is AppState.CANCELLED


def test_a_delete_does_not_hold_up_the_states_of_others(docker_apps):
    """The app that is deleted may use its whole grace time."""
    stubborn = docker_apps.start(docker_apps.sh("trap '' TERM; echo ready; while :; do sleep 1; done"), grace_s=4)
    other = docker_apps.start(docker_apps.sh("sleep 30"))
    while not docker_apps.lines(stubborn):
        time.sleep(0.05)
    with ThreadPoolExecutor(1) as pool:
        deletion = pool.submit(docker_apps.scheduler.delete, stubborn)
        time.sleep(1.0)
        began = time.monotonic()
        assert docker_apps.scheduler.describe(other).state is AppState.RUNNING
        assert time.monotonic() - began < 2.0
        assert not deletion.done()
        deletion.result(60)

    assert docker_apps.left(stubborn) == []
    docker_apps.scheduler.cancel(other)


def test_what_is_being_removed_has_neither_log_nor_result_any_more(docker_apps, docker_proxy):
    """The engine responds with 409 until the container is removed, and then with 404."""
    app_id = docker_apps.start(docker_apps.sh("echo 1 >$LAUNCH_RESULT_PATH"))
    docker_apps.end(app_id)
    text = "can not get logs from container which is dead or marked for removal"
    docker_proxy.add(Fault(error(409, text), "GET", "/(logs|archive)$", times=None))

    assert docker_apps.scheduler.read_logs(app_id, "main", 0).lines == []
    assert docker_apps.scheduler.result(app_id) is None


def test_a_deleted_app_is_not_started_by_its_submitter(docker_apps, monkeypatch):
    info = docker_apps.info(docker_apps.sh("echo begun"))
    slow = docker_apps.another()
    prepare = slow._creation.prepare

    def deleted_meanwhile(request):
        docker_apps.another().delete(request.app_id)
        prepare(request)

    monkeypatch.setattr(slow._creation, "prepare", deleted_meanwhile)
    with pytest.raises(SchedulerRejectedError, match="deleted while it was submitted"):
        slow.schedule(info)

    assert docker_apps.begun(info.request.app_id) == []
    assert docker_apps.left(info.request.app_id) == []


def test_one_gpu_goes_to_one_of_many_submitters(docker_apps, gpus, monkeypatch):
    """There is no GPU here, so nothing can be started with one; the record has the lease before that."""
    role = docker_apps.sh("true", resource=Resource(cpu=1, gpu=1, memMB=64))
    docker_apps.scheduler = docker_apps.another(gpus=gpus[:1])
    schedulers = [docker_apps.another(gpus=gpus[:1]) for _ in range(4)]
    infos = [docker_apps.info(role) for _ in schedulers]
    for scheduler in schedulers:
        monkeypatch.setattr(scheduler._observer, "work", lambda *_args, **_how: None)  # claimed, and not started

    def submit(scheduler, info) -> LaunchError | str:
        try:
            return scheduler.schedule(info)
        except LaunchError as caught:
            return caught

    with ThreadPoolExecutor(len(schedulers)) as pool:
        ended = list(pool.map(submit, schedulers, infos))

    assert sum("wants 1 GPUs, 0 of 1 are free" in str(each) for each in ended) == len(schedulers) - 1


def test_a_failed_start_ends_no_sibling_that_is_about_to_start(docker_apps, monkeypatch):
    """A reported end is final: no container of the app may run after it."""
    slow = docker_apps.another()
    start = slow.engine.start

    def late(name: str) -> None:
        if "-b-" in name:
            time.sleep(2.0)
        start(name)

    monkeypatch.setattr(slow.engine, "start", late)
    broken = docker_apps.sh("true", "a", entrypoint="/nope", args=[])
    info = docker_apps.info(broken, docker_apps.sh("echo begun; sleep 20", "b"), init=False)
    states: list[AppState] = []
    with ThreadPoolExecutor(1) as pool:
        launching = pool.submit(slow.schedule, info)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and not (launching.done() and states and is_terminal(states[-1])):
            if found := docker_apps.scheduler.describe(info.request.app_id):
                states.append(found.state)
            time.sleep(0.05)

    first = next(n for n, state in enumerate(states) if is_terminal(state))
    assert set(states[first:]) == {AppState.FAILED}


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "going"])
def test_an_older_app_that_is_deleted_disturbs_no_list(docker_apps, docker_proxy, monkeypatch, gone):
    """Lists start after an older app, which another process may remove at any time."""
    monkeypatch.setattr(catalog, "_CLOCK_S", 0)
    older, *watched = [_ended(docker_apps) for _ in range(3)]
    docker_apps.scheduler.describe_many([older, *watched])

    def starts_after_another() -> bool:
        docker_apps.scheduler.describe_many(watched)
        return "since" in docker_proxy.matching("GET", "/containers/json")[-1].query["filters"]

    # The list may start after the app of another test, which has just removed it.
    until(starts_after_another)
    if gone:
        docker_apps.another().delete(older)
    else:
        # The engine's message while it removes the container.
        docker_proxy.add(Fault(error(500, "no such container 608a9a5a"), "GET", "/containers/json"))

    found = docker_apps.scheduler.describe_many(watched)

    assert [app and app.state for app in found.values()] == [AppState.SUCCEEDED] * 2


def _second_network(docker_apps, name, labels=None):
    """Create another network of the same name; engines since API 1.44 keep the names unique."""
    try:
        return docker_apps.client.networks.create(name, labels=labels, check_duplicate=False)
    except APIError as error:
        if error.status_code != 409:
            raise
        pytest.skip(f"this engine has one network of a name: {error.explanation}")


def test_two_networks_of_one_name_are_made_one(docker_apps, monkeypatch):
    """Two launchers create it at the same moment, and the one that would remove its own again dies."""
    slow = docker_apps.another()
    # It is removed at the end of its app.
    info = docker_apps.info(docker_apps.sh("sleep 2"), network="app")
    prepare = slow._creation.prepare

    def prepare_twice(request):
        prepare(request)
        labels = {"launch.io/managed": "true", "launch.io/app-id": request.app_id}
        _second_network(docker_apps, request.app_id, labels)
        assert len(docker_apps.client.networks.list(names=[request.app_id])) == 2

    monkeypatch.setattr(slow._creation, "prepare", prepare_twice)
    slow.schedule(info)

    assert len(docker_apps.client.networks.list(names=[info.request.app_id])) == 1
    assert docker_apps.end(info.request.app_id).state is AppState.SUCCEEDED


def test_two_networks_of_another_user_are_reported_at_once(docker_apps):
    """Only their owner can know which one is meant."""
    name = f"foreign-{docker_apps.info(docker_apps.sh('true')).request.app_id}"
    networks = [docker_apps.client.networks.create(name)]
    try:
        networks.append(_second_network(docker_apps, name))
        began = time.monotonic()
        found = docker_apps.run(docker_apps.sh("true"), network=name)

        assert found.state is AppState.FAILED
        assert "is ambiguous" in found.msg
        assert time.monotonic() - began < 4
        assert len(docker_apps.client.networks.list(names=[name])) == 2
    finally:
        for network in networks:
            network.remove()


def test_what_is_forgotten_is_learnt_again_for_a_whole_app(docker_apps, monkeypatch):
    monkeypatch.setattr(observer, "_KEPT_CONTAINERS", 0)
    found = docker_apps.run(docker_apps.sh("exit 3", num_replicas=3))

    assert found.state is AppState.FAILED
    assert all(replica.end_time for replica in found.roles_statuses[0].replicas)


def _ended(docker_apps) -> str:
    app_id = docker_apps.start(docker_apps.sh("true"))
    docker_apps.end(app_id)
    time.sleep(1.1)  # the engine has the creation time in whole seconds
    return app_id
