"""A refused submission leaves nothing; one that is interrupted at any point starts each replica once in the end."""

from __future__ import annotations

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker import observer
from airflow_provider_launch.schedulers.docker.request import container_body, request_in
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import (
    AppConflictError,
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    InvalidAppError,
    LaunchError,
    Resource,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    macros,
)
from airflow_provider_launch.specs.secrets import masked_env
from tests.faults import Fault, drop, drop_answer, error, leave

pytestmark = pytest.mark.engine("docker")

ABSENT = "launch-tests/absent:none"
NOWHERE = "127.0.0.1:1/absent:none"


def refusal(docker_apps, *roles, error=SchedulerRejectedError, **how):
    """Submit an app that is refused, check that nothing is left of it, and return the message."""
    info = docker_apps.info(*roles, **how)
    with pytest.raises(error) as caught:
        docker_apps.scheduler.schedule(info)
    assert docker_apps.left(info.request.app_id) == []
    assert docker_apps.scheduler.describe(info.request.app_id) is None
    return str(caught.value)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["first", "second"])
def test_a_missing_image_that_may_not_be_pulled(docker_apps, docker_proxy, position):
    """For the first role it prevents the record, for the second one a replica."""
    roles = [docker_apps.sh("true", "a"), docker_apps.sh("true", "b")]
    roles[position == "second"].image = ABSENT
    text = refusal(docker_apps, *roles, pull="never")
    assert f"no image '{ABSENT}'" in text
    assert "pull='missing'" in text
    assert docker_proxy.count("POST", "/images/create") == 0


@pytest.mark.parametrize("pull", ["missing", "always"])
def test_a_registry_that_is_not_reached(docker_apps, pull):
    # With `always` the record is created before the pull.
    docker_apps.client.api.tag(docker_apps.image, f"127.0.0.1:1/{pull}", "none")
    try:
        image = NOWHERE if pull == "missing" else f"127.0.0.1:1/{pull}:none"
        text = refusal(docker_apps, docker_apps.sh("true", image=image), pull=pull)
    finally:
        docker_apps.client.api.remove_image(f"127.0.0.1:1/{pull}:none", noprune=True)
    assert f"image '{image}' cannot be pulled: " in text
    assert "no credentials were sent" in text
    assert "connection refused" in text
    assert "that the engine's host can reach the registry" in text


def test_a_pull_that_the_registry_refuses_names_the_user_and_hides_the_password(docker_apps, docker_proxy):
    docker_apps.scheduler = docker_apps.another(
        registry="127.0.0.1:1", registry_username="anna", registry_password="geheim"
    )
    denied = "pull access denied for absent, repository does not exist or may require 'docker login'"
    docker_proxy.add(Fault(error(404, denied), "POST", "/images/create"))
    text = refusal(docker_apps, docker_apps.sh("true", image=NOWHERE), pull="missing")
    assert "sent the credentials of 'anna'" in text
    assert denied in text
    assert "geheim" not in text


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 429, 500])
def test_any_refusal_of_a_pull_is_one_of_the_registry(docker_apps, docker_proxy, code):
    """Engines with the image store of containerd pass on its codes."""
    docker_proxy.add(Fault(error(code, "denied there"), "POST", "/images/create"))
    text = refusal(docker_apps, docker_apps.sh("true", image=NOWHERE), pull="missing")
    assert f"image '{NOWHERE}' cannot be pulled: denied there" in text
    assert "check its name, the connection's registry options" in text
    assert ("limits the rate of pulls, which a login may raise" in text) == (code == 429)


@pytest.mark.parametrize("code", [502, 503, 504])
def test_a_pull_that_an_engine_cannot_serve_now_may_be_repeated(docker_apps, docker_proxy, code):
    docker_proxy.add(Fault(error(code, "busy"), "POST", "/images/create"))
    info = docker_apps.info(docker_apps.sh("true", image=NOWHERE), pull="missing")
    with pytest.raises(SchedulerUnavailableError, match=r"cannot serve the pull now .*: busy"):
        docker_apps.scheduler.schedule(info)


def test_an_image_of_another_platform(docker_apps):
    # Each engine has words of its own, such as "wanted linux/s390x" or "does not match the specified platform".
    assert "linux/s390x" in refusal(docker_apps, docker_apps.sh("true"), platform="linux/s390x")
    text = refusal(docker_apps, docker_apps.sh("true"), platform="linux/s390x", pull="missing")
    assert f"image '{docker_apps.image}' of platform 'linux/s390x', which the engine lacks, cannot be pulled" in text


def test_more_cpus_than_the_host_has(docker_apps):
    text = refusal(
        docker_apps, docker_apps.sh("true", resource=Resource(cpu=4096, gpu=0, memMB=0)), error=InvalidAppError
    )
    assert "CPUs" in text


def test_a_bind_source_that_is_missing(docker_apps):
    """The engine must not create an empty directory, as it does for the older kind of bind."""
    mount = BindMount("/absent/source", "/data", read_only=True)
    text = refusal(
        docker_apps, docker_apps.sh("true", "a"), docker_apps.sh("true", "b", mounts=[mount]), error=InvalidAppError
    )
    assert "/absent/source" in text


def test_an_unknown_network(docker_apps):
    text = refusal(docker_apps, docker_apps.sh("true"), network="absent-network")
    assert "no network 'absent-network'" in text
    assert "'launch' or 'app'" in text


@pytest.mark.parametrize("taken", ["", "-b-1"], ids=["record", "replica"])
def test_a_name_that_a_foreign_container_has(docker_apps, taken):
    """The foreign one is not changed, and no object of the launcher is left next to it."""
    app_id = make_unique("taken")
    foreign = docker_apps.client.containers.create(docker_apps.image, ["true"], name=app_id + taken)
    try:
        info = docker_apps.info(docker_apps.sh("true", "a"), docker_apps.sh("true", "b", num_replicas=2), app_id=app_id)
        with pytest.raises(AppConflictError, match=f"has a container '{app_id + taken}'.* choose another"):
            docker_apps.scheduler.schedule(info)
        assert docker_apps.left(app_id) == []
        foreign.reload()
        assert foreign.status == "created"
    finally:
        foreign.remove(force=True)


def test_a_program_that_the_image_lacks(docker_apps):
    """It fails at the start, when the app already exists, so the app fails with the engine's message."""
    found = docker_apps.run(docker_apps.sh("true", entrypoint="absent-program"), init=False)
    (replica,) = found.roles_statuses[0].replicas
    assert found.state is AppState.FAILED
    assert replica.exit_code == 127
    assert "absent-program" in str(replica.reason)
    assert "could not be started" in found.msg
    assert "absent-program" in found.msg


def test_a_failed_start_uses_up_retries(docker_apps):
    found = docker_apps.run(docker_apps.sh("true", entrypoint="absent-program", max_retries=1), init=False)
    assert found.state is AppState.FAILED
    assert len(docker_apps.containers(found.app_id)) == 2


def test_roles_whose_names_hold_the_words_of_the_protocol(docker_apps):
    """Observers rename containers; such a role must not look as if they had."""
    found = docker_apps.run(docker_apps.sh("true", "x.void-fill"), docker_apps.sh("true", "by.by-me"))
    assert found.state is AppState.SUCCEEDED


# ---- requests --------------------------------------------------------------------------------------------------------


def shown_in(text: str) -> dict[str, Any]:
    """Return the bodies that a dry run shows, by the names of their containers."""
    decoder = json.JSONDecoder()
    parts = re.split(r"^POST /containers/create\?name=(\S+)\n", text, flags=re.MULTILINE)[1:]
    return {name: decoder.raw_decode(body)[0] for name, body in zip(parts[::2], parts[1::2], strict=True)}


def masked(body: dict[str, Any]) -> dict[str, Any]:
    env = dict(item.split("=", 1) for item in body["Env"])
    return {**body, "Env": [f"{name}={value}" for name, value in masked_env(env).items()]}


@pytest.mark.parametrize("network", ["launch", "app", "none", None])
def test_what_is_sent_is_what_the_dry_run_shows(docker_apps, docker_proxy, network):
    """A dry run must show the rights and files that replicas get exactly as they are requested."""
    wishes = {
        "env": {"LEVEL": "naïve $HOME", "API_TOKEN": "geheim", "ID": f"{macros.app_id}/{macros.replica_id}"},
        "resource": Resource(cpu=1, gpu=0, memMB=64),
        "mounts": [BindMount("/tmp", "/in", read_only=True), DeviceMount("/dev/null", "/dev/other")],
        "port_map": {"x": 0},
    }
    limits = {"ulimits": {"nofile": "512:1024"}, "shm_size_mb": 8, "extra_hosts": {"db": "10.0.0.1"}, "user": "0:0"}
    roles = [docker_apps.sh("true", "a", **wishes), docker_apps.sh("true", "b", num_replicas=3, max_retries=1)]
    info = docker_apps.info(*roles, network=network, platform="linux/amd64", time_limit_s=60, **limits)
    app_id = info.request.app_id
    text = str(info)

    assert docker_apps.scheduler.schedule(info) == app_id
    assert docker_apps.end(app_id).state is AppState.SUCCEEDED

    creations = docker_proxy.matching("POST", "/containers/create$")
    sent = {one.query["name"]: one.json for one in creations}
    assert len(creations) == len(sent) == 5
    assert {one.query["platform"] for one in creations} == {"linux/amd64"}
    # The record, which is never started: it stores the same request that was shown.
    record = sent.pop(app_id)
    assert request_in({"Config": record}) == info.request
    shown = shown_in(text)
    assert list(shown) == [f"{app_id}-a-0", f"{app_id}-b-0"]
    assert {name: masked(sent[name]) for name in shown} == shown
    assert "API_TOKEN=geheim" in sent[f"{app_id}-a-0"]["Env"]
    assert "geheim" not in text
    # Only the first of equal replicas is shown; the request has the others.
    assert "and 2 more replicas" in text
    b = info.request.role("b")
    for k in range(3):
        assert sent[f"{app_id}-b-{k}"] == container_body(info.request, b, k, 0, 0)

    chosen = {"app": app_id, None: "launch"}.get(network, network)
    assert f"app {app_id} (app) on network {chosen}, pull never, time limit 60 s" in text
    assert {body["HostConfig"]["NetworkMode"] for body in sent.values()} == {chosen}
    made = [one.json for one in docker_proxy.matching("POST", "/networks/create$")]
    # The network that all apps share usually exists already.
    wanted = {"app": [[app_id]], "none": [[]]}.get(network, [[], ["launch"]])
    assert [one["Name"] for one in made] in wanted
    assert all(one["Driver"] == "bridge" for one in made)


# ---- interruptions ---------------------------------------------------------------------------------------------------


@pytest.fixture
def two_roles(docker_apps):
    """Return a new request of an app with two replicas that run during the submission: an end costs requests."""
    script = "echo begun; sleep 1"
    return lambda: docker_apps.info(docker_apps.sh(script, "a"), docker_apps.sh(script, "b"))


def assert_started_once(docker_apps, *app_ids: str) -> None:
    scheduler = docker_apps.another()
    for app_id in app_ids:
        found = docker_apps.end(app_id, scheduler)
        assert found.state is AppState.SUCCEEDED, found
        assert found.num_restarts == 0
        assert docker_apps.begun(app_id) == [1, 1]
        # Neither a second record nor containers that are never started.
        assert len(docker_apps.left(app_id)) == 3


@pytest.fixture
def cost(docker_apps, docker_proxy, two_roles):
    """Return how many requests of the method a submission without faults takes."""

    def count(method: str | None = None) -> int:
        scheduler = docker_apps.another()
        before = docker_proxy.count(method)
        scheduler.schedule(two_roles())
        return docker_proxy.count(method) - before

    return count


def test_a_lost_answer_to_any_post(docker_apps, docker_proxy, two_roles, cost):
    """The submitter cannot know whether it succeeded, and submits again."""
    posts = cost("POST")
    assert posts >= 5  # the record, two containers, two starts
    app_ids = []
    for nth in range(1, posts + 1):
        info = two_roles()
        docker_proxy.add(Fault(drop_answer(), "POST", nth=nth))
        with pytest.raises(SchedulerUnavailableError, match="does not answer"):
            docker_apps.scheduler.schedule(info)
        docker_proxy.clear()
        app_ids.append(docker_apps.scheduler.schedule(info))
    assert_started_once(docker_apps, *app_ids)


def test_a_submitter_that_dies_after_any_request(docker_apps, docker_proxy, two_roles, cost):
    """Its task is retried in another process, which has only the request."""
    app_ids = []
    for nth in range(1, cost() + 1):
        info = two_roles()
        docker_proxy.add(Fault(drop(), nth=nth, times=None))
        first = docker_apps.another()
        with pytest.raises(SchedulerUnavailableError):
            first.schedule(info)
        first.close()
        docker_proxy.clear()
        app_ids.append(docker_apps.another().schedule(info))
    assert len(set(app_ids)) == len(app_ids) >= 8
    assert_started_once(docker_apps, *app_ids)


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_start_whose_client_died_costs_no_attempt(docker_apps, docker_proxy, deaths, monkeypatch):
    """Engines since 26.1 cancel such a start; the container then looks like one that could not be started."""
    monkeypatch.setattr(observer, "_TAKEOVER_S", 2.0)
    app_ids = []
    for _ in range(3):
        info = docker_apps.info(docker_apps.sh("echo begun"))
        for _ in range(deaths):
            docker_proxy.add(Fault(leave(), "POST", "/start$", times=None, may_miss=True))
            with contextlib.suppress(SchedulerUnavailableError):  # the engine may have been faster than the cut
                docker_apps.another().schedule(info)
            docker_proxy.clear()
        app_ids.append(docker_apps.another().schedule(info))

    for app_id in app_ids:
        assert docker_apps.end(app_id, docker_apps.another()).state is AppState.SUCCEEDED
    assert [docker_apps.begun(app_id) for app_id in app_ids] == [[1]] * 3


def test_an_engine_that_is_overloaded(docker_apps, docker_proxy, two_roles, cost):
    """It is a temporary error, or none, but never a state of the app; the repeat works."""
    app_ids, failed = [], 0
    for nth in range(1, cost() + 1):
        info = two_roles()
        scheduler = docker_apps.another()
        fault = docker_proxy.add(Fault(error([429, 500, 503][nth % 3], "too busy"), nth=nth))
        caught = attempt(scheduler, info)
        if isinstance(caught, SchedulerUnavailableError):
            failed += 1
            assert "too busy" in str(caught)
        else:
            assert caught == info.request.app_id
        assert fault.hits == 1
        docker_proxy.clear()
        app_ids.append(scheduler.schedule(info))
    assert failed > 0
    assert_started_once(docker_apps, *app_ids)


def attempt(scheduler: DockerScheduler, info) -> str | LaunchError:
    try:
        return scheduler.schedule(info)
    except LaunchError as caught:
        return caught


@pytest.mark.parametrize("rest", ["nothing", "record", "containers"])
def test_two_submitters_at_once(docker_apps, docker_proxy, two_roles, rest):
    """A zombie task and its retry: both succeed, one of them starts. `rest` is left from a dead one."""
    app_ids = []
    for _ in range(7):
        info = two_roles()
        if rest != "nothing":
            path, nth = {"record": ("/containers/create", 2), "containers": ("/start", 1)}[rest]
            docker_proxy.add(Fault(drop(), "POST", path, nth=nth, times=None))
            assert isinstance(attempt(docker_apps.scheduler, info), SchedulerUnavailableError)
            docker_proxy.clear()
        schedulers = [docker_apps.another(), docker_apps.another()]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(attempt, schedulers, [info, info]))
        assert answers == [info.request.app_id] * 2
        app_ids.append(info.request.app_id)
    assert_started_once(docker_apps, *app_ids)


def test_an_engine_that_is_overloaded_is_no_state(docker_apps, docker_proxy):
    app_id = docker_apps.start(docker_apps.sh("sleep 60"))
    with docker_proxy.refused(), pytest.raises(SchedulerUnavailableError, match="check that it is running"):
        docker_apps.scheduler.describe(app_id)
    docker_proxy.add(Fault(error(500, "too busy"), "GET", "/containers/json"))
    with pytest.raises(SchedulerUnavailableError, match="too busy"):
        docker_apps.scheduler.describe(app_id)
    found = docker_apps.scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.RUNNING


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_any_label_is_kept_whole(docker_apps):
    """Docker restricts neither names nor values, so nothing is changed."""
    given = {
        "team": "data",
        "cost centre": "größe & mehr",
        "größe": "a\nb",
        "n" * 300: "v" * 5000,
        "a/b/c": "{}",
        "": "-",
    }
    task = {"dag_id": "größe" * 40, "task_id": "g.train", "run_id": "manual__2026-01-01T00:00:00+00:00"}
    app = AppDef("app", [docker_apps.sh("true")], metadata={"airflow": task})
    info = docker_apps.scheduler.submit_dryrun(app, {"pull": "never", "labels": given})
    docker_apps.ids.add(info.request.app_id)
    app_id = docker_apps.scheduler.schedule(info)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    labels = docker_apps.container(app_id)["Config"]["Labels"]
    assert {name: labels.get(name) for name in given | task} == given | task
    assert docker_apps.client.api.containers(all=True, filters={"label": [f"cost centre={given['cost centre']}"]})
