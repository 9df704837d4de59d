"""Labels set by an image, or by another user on a container: they affect one app at most."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from docker.errors import ImageNotFound

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.request import REQUEST_ENV
from airflow_provider_launch.specs import AppState, AppUnavailableError, InvalidAppError
from tests.support.apps import until

pytestmark = pytest.mark.engine("docker")

DIGITS = "9" * 5000
PLAN = {"roles": [["main", 1, "REPLICA", 0]], "time_limit_s": None}


@pytest.fixture
def hostile_image(docker_apps, gpus) -> Iterator[str]:
    """Return an image with a value for each label of the launcher."""
    name = f"launch-tests/hostile:{uuid4().hex[:8]}"
    labels = {
        Label.MANAGED: "true",
        Label.KIND: Kind.REPLICA,
        Label.APP_ID: "payroll",
        Label.APP_NAME: "payroll",
        Label.OWNER: json.dumps({"dag_id": "payroll"}),
        Label.SPEC_HASH: "0",
        Label.PLAN: "{",
        Label.ROLE: "other",
        Label.REPLICA: DIGITS,
        Label.APP_ATTEMPT: DIGITS,
        Label.ATTEMPT: "-1",
        Label.NAME: "payroll",
        Label.MARK: "cancel",
        Label.DECISION: "fail",
        Label.CAUSE: "payroll",
        Label.GPUS: ",".join(gpus),
    }
    container = docker_apps.client.containers.create(docker_apps.image, ["true"])
    changes = [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
    container.commit(*name.split(":"), changes=changes)
    container.remove()
    assert docker_apps.client.images.get(name).labels.keys() >= set(labels)
    yield name
    with contextlib.suppress(ImageNotFound):
        docker_apps.client.images.remove(name, force=True)


def test_no_container_of_ours_inherits_a_label_from_its_image(docker_apps, hostile_image):
    bystander = docker_apps.start(docker_apps.sh("sleep 60"))
    hostile = docker_apps.start(docker_apps.sh("sleep 60", image=hostile_image))
    docker_apps.scheduler.cancel(hostile)
    docker_apps.end(hostile)

    for kind, owned in {Kind.APP: {Label.APP_NAME}, Kind.MARK: {Label.MARK}, Kind.REPLICA: set()}.items():
        (found,) = docker_apps.containers(hostile, kind)
        labels = found["Config"]["Labels"]
        assert {name for name in Label.NOTES if labels[name]} == owned, kind
        assert "payroll" not in labels.values()
        assert not any(len(value) > 1000 for value in labels.values())
    rows = {row.app_id: row for row in docker_apps.scheduler.list()}
    assert (rows[hostile].state, rows[hostile].owner) == (AppState.CANCELLED, {})
    assert rows[bystander].state is AppState.RUNNING


@pytest.fixture
def image_of_large_labels(docker_engine) -> Iterator[str]:
    """Return an image with a label of 20 MB, which an engine accepts."""
    name = f"launch-tests/large:{uuid4().hex[:8]}"
    layer = archive({})
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {"a": "x" * 20_000_000}, "Cmd": ["true"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config), "layer.tar": layer, "manifest.json": json.dumps(manifest)}
    docker_engine.client.images.load(archive(files))
    yield name
    docker_engine.client.images.remove(name, force=True)


def archive(files: dict[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            given = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(given)
            tar.addfile(info, io.BytesIO(given))
    return data.getvalue()


def test_a_container_inherits_no_large_label(docker_apps, moved_tag):
    """Images of buildpacks have such labels."""
    image = moved_tag({"a": "x" * 40_000, "b": "x" * 40_000, "c": "small"})
    app_id = docker_apps.start(docker_apps.sh("true", image=image))

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    (found,) = docker_apps.containers(app_id, Kind.REPLICA)
    assert [found["Config"]["Labels"][name] for name in "abc"] == ["", "", "small"]


@pytest.fixture
def image_of_many_labels(docker_apps) -> Iterator[str]:
    name = f"launch-tests/many:{uuid4().hex[:8]}"
    container = docker_apps.client.containers.create(docker_apps.image, ["true"])
    lines = [" ".join(f"{number:05}-{one}={'x' * 900}" for one in range(10)) for number in range(10)]
    container.commit(*name.split(":"), changes=[f"LABEL {line}" for line in lines])
    container.remove()
    yield name
    docker_apps.client.images.remove(name, force=True)


def test_an_image_of_many_labels_is_refused(docker_apps, image_of_many_labels):
    app_id = f"many-{uuid4().hex[:8]}"
    with pytest.raises(InvalidAppError, match=r"has \d+ labels of \d+ bytes.*; build it with fewer"):
        docker_apps.start(docker_apps.sh("true", image=image_of_many_labels), app_id=app_id)

    assert docker_apps.left(app_id) == []


@pytest.fixture
def moved_tag(docker_apps) -> Iterator[Callable[[dict[str, str]], str]]:
    """Return a function that tags an image with these labels, and returns the tag."""
    name = f"launch-tests/moved:{uuid4().hex[:8]}"

    def move(labels: dict[str, str]) -> str:
        container = docker_apps.client.containers.create(docker_apps.image, ["true"])
        container.commit(*name.split(":"), changes=[f"LABEL {key}={json.dumps(text)}" for key, text in labels.items()])
        container.remove()
        return name

    yield move
    docker_apps.client.images.remove(name, force=True)


@pytest.mark.parametrize(
    "labels",
    # The engine accepts no line of more than 64 KB.
    [{"a": "x" * 40_000, "b": "x" * 40_000}, {"a": "<" * 12_000}],
    ids=["large", "large as JSON"],
)
def test_a_tag_that_moves_to_an_image_of_large_labels_is_checked_again(docker_apps, moved_tag, labels, monkeypatch):
    """The cached labels of a tag belong to the image that had the tag then."""
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.images._KEPT_S", 0.0)
    docker_apps.scheduler = docker_apps.another()
    image = moved_tag({"a": "few"})
    assert docker_apps.run(docker_apps.sh("true", image=image)).state is AppState.SUCCEEDED
    moved_tag(labels)

    app_id = docker_apps.start(docker_apps.sh("true", image=image))
    docker_apps.end(app_id)
    (found,) = docker_apps.containers(app_id, Kind.REPLICA)
    assert not any(len(value) > 1000 for value in found["Config"]["Labels"].values())


def test_a_container_of_large_labels_hides_no_other_app(docker_apps, image_of_large_labels, caplog):
    """The engine repeats them in each list, which was an outage for all until the container was removed."""
    bystander = docker_apps.start(docker_apps.sh("sleep 60"))
    labels = {Label.MANAGED: "true", Label.APP_ID: f"large-{uuid4().hex[:8]}", Label.KIND: Kind.REPLICA}
    large = docker_apps.client.api.create_container(image_of_large_labels, ["true"], labels=labels)["Id"]
    try:
        scheduler = docker_apps.another()

        assert scheduler.describe_many([bystander, "another-app"])[bystander].state is AppState.RUNNING
        assert bystander in {row.app_id for row in scheduler.list()}
        assert f'{{"Id":"{large}"' in caplog.text
    finally:
        docker_apps.client.api.remove_container(large)


def test_an_app_of_a_hostile_image_lives_its_life(docker_apps, hostile_image, gpus):
    fails_once = docker_apps.sh("echo begun; test $LAUNCH_ATTEMPT = 1", image=hostile_image, max_retries=1)
    app_id = docker_apps.start(fails_once)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert docker_apps.lines(app_id) == ["begun\n", "begun\n"]
    leases = docker_apps.another(gpus=gpus)._leases
    apps, now = leases._catalog.every()
    assert not [lease for lease in leases._leases_of(apps.values(), now) if lease.gpus & set(gpus)]


@pytest.fixture
def damaged_app(docker_apps, request) -> str:
    """Return an app created by another user, or by an older launcher from a hostile image."""
    app_id = f"damaged-{uuid4().hex[:8]}"
    docker_apps.ids.add(app_id)
    for kind, name in ((Kind.APP, app_id), (Kind.REPLICA, f"{app_id}-main-0")):
        labels = {
            Label.MANAGED: "true",
            Label.KIND: kind,
            Label.APP_ID: app_id,
            Label.NAME: name,
            Label.PLAN: json.dumps(PLAN),
            **({Label.ROLE: "main", Label.REPLICA: "0"} if kind == Kind.REPLICA else {}),
            **{key: value for key, value in request.param.items() if kind == Kind.REPLICA or key == Label.PLAN},
        }
        docker_apps.client.containers.create(docker_apps.image, ["true"], name=name, labels=labels)
    return app_id


@pytest.mark.parametrize(
    "damaged_app",
    [
        {Label.PLAN: "{"},
        {Label.PLAN: "[" * 100_000},
        {Label.PLAN: '{"roles": 1, "time_limit_s": null}'},
        {Label.PLAN: json.dumps({**PLAN, "roles": [["main", 10**9, "REPLICA", 0]]})},
        {Label.PLAN: json.dumps({**PLAN, "roles": []})},
        {Label.REPLICA: DIGITS},
        {Label.APP_ATTEMPT: DIGITS},
        {Label.ATTEMPT: "-1"},
    ],
    ids=lambda labels: "-".join(f"{key.partition('/')[2]}-{value[:60]}" for key, value in labels.items()),
    indirect=True,
)
def test_a_damaged_app_concerns_no_other(docker_apps, damaged_app, gpus):
    bystander = docker_apps.start(docker_apps.sh("sleep 60"))
    scheduler = docker_apps.another(gpus=gpus)

    found = poll_many(scheduler, [bystander, damaged_app])
    assert found[bystander].state is AppState.RUNNING
    assert isinstance(found[damaged_app], AppUnavailableError)
    rows = {row.app_id: row.state for row in scheduler.list()}
    assert (rows[bystander], rows[damaged_app]) == (AppState.RUNNING, AppState.UNKNOWN)

    scheduler.delete(damaged_app)
    assert docker_apps.left(damaged_app) == []


@pytest.mark.parametrize("damaged_app", [{Label.REPLICA: DIGITS}], indirect=True)
def test_a_damaged_app_holds_no_gpus(docker_apps, damaged_app, gpus):
    name = f"{damaged_app}-main-1"
    labels = docker_apps.containers(damaged_app)[0]["Config"]["Labels"] | {
        Label.NAME: name,
        Label.GPUS: ",".join(gpus),
    }
    docker_apps.client.containers.create(docker_apps.image, ["true"], name=name, labels=labels)
    leases = docker_apps.another(gpus=gpus)._leases
    apps, now = leases._catalog.every()

    assert not [lease for lease in leases._leases_of(apps.values(), now) if lease.gpus & set(gpus)]


@pytest.mark.parametrize("env", [[], ["LAUNCH_REQUEST={"], ["LAUNCH_REQUEST=[]"]], ids=["none", "cut", "list"])
def test_a_damaged_record_is_an_error_of_its_app(docker_apps, env):
    app_id = f"damaged-{uuid4().hex[:8]}"
    docker_apps.ids.add(app_id)
    labels = {
        Label.MANAGED: "true",
        Label.KIND: Kind.APP,
        Label.APP_ID: app_id,
        Label.NAME: app_id,
        Label.PLAN: json.dumps(PLAN),
    }
    docker_apps.client.containers.create(docker_apps.image, ["true"], name=app_id, labels=labels, environment=env)

    with pytest.raises(AppUnavailableError, match="delete the app"):
        docker_apps.scheduler.describe(app_id)
    docker_apps.scheduler.delete(app_id)
    assert docker_apps.left(app_id) == []


@pytest.mark.parametrize("grace_s", ["1", None, 1e300])
def test_an_app_with_a_damaged_grace_time_is_cancelled_and_deleted(docker_apps, grace_s):
    """Another user of the engine can make a record, and only the launcher of the app removes it."""
    app_id = docker_apps.start(docker_apps.sh("trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done"))
    (record,) = docker_apps.containers(app_id, Kind.APP)
    text = next(item for item in record["Config"]["Env"] if item.startswith(REQUEST_ENV))
    document = json.loads(text.partition("=")[2])
    document["roles"][0]["body"]["StopTimeout"] = grace_s
    docker_apps.client.api.remove_container(record["Id"])
    docker_apps.client.containers.create(
        docker_apps.image,
        ["true"],
        name=app_id,
        labels=record["Config"]["Labels"],
        environment=[f"{REQUEST_ENV}={json.dumps(document)}"],
    )
    scheduler = docker_apps.another()

    scheduler.cancel(app_id)
    until(lambda: all(one["State"]["Status"] == "exited" for one in docker_apps.containers(app_id)))
    scheduler.delete(app_id)
    assert docker_apps.left(app_id) == []
