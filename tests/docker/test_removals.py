"""Forced removals of things that an app needs: its containers, and the images of its marks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from docker.errors import ImageNotFound

from airflow_provider_launch.schedulers.docker import creation
from airflow_provider_launch.schedulers.docker.naming import Kind
from airflow_provider_launch.specs import AppState, Resource, SchedulerRejectedError
from tests.faults import Fault, error
from tests.support.apps import until

pytestmark = pytest.mark.engine("docker")


# ---- containers ------------------------------------------------------------------------------------------------------


def test_an_app_whose_only_container_is_gone_is_unknown(docker_apps):
    """The rest looks like a submission that is not complete; its follower would wait for ever."""
    role = docker_apps.sh("echo up; sleep 60", max_retries=2)
    app_id = docker_apps.start(role)
    assert docker_apps.scheduler.describe(app_id).state is AppState.RUNNING
    docker_apps.client.api.remove_container(docker_apps.container(app_id)["Id"], force=True)

    found = docker_apps.scheduler.describe(app_id)
    assert (found.state, found.msg) == (AppState.UNKNOWN, "lost: the container of main/0 was removed from outside")
    docker_apps.start(role, app_id=app_id)
    assert docker_apps.containers(app_id) == []
    assert docker_apps.scheduler.describe(app_id).state is AppState.UNKNOWN


def test_a_prune_frees_no_gpu_that_is_in_use(docker_apps, gpus, monkeypatch):
    """It removes the record, which is never started, and keeps running containers."""
    create = creation.container_body

    def without_devices(*args):
        body = create(*args)
        assert body["HostConfig"].pop("DeviceRequests")  # nothing here could be started with one
        return body

    monkeypatch.setattr(creation, "container_body", without_devices)
    gpu = Resource(cpu=0, gpu=1, memMB=0)
    docker_apps.scheduler = docker_apps.another(gpus=gpus[:1])
    app_id = docker_apps.start(docker_apps.sh("sleep 60", resource=gpu))
    (record,) = docker_apps.containers(app_id, Kind.APP)
    docker_apps.client.api.remove_container(record["Id"])

    for scheduler in (docker_apps.scheduler, docker_apps.another(gpus=gpus[:1])):
        with pytest.raises(SchedulerRejectedError, match=rf"0 of 1 are free .*leased by app '{app_id}' \(RUNNING\)"):
            scheduler.schedule(docker_apps.info(docker_apps.sh("true", resource=gpu)))

    docker_apps.scheduler.cancel(app_id)
    docker_apps.end(app_id)
    docker_apps.start(docker_apps.sh("true", resource=gpu))


# ---- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def image(docker_apps) -> Iterator[str]:
    """Return an image that only this test has."""
    name = f"launch-tests/own:{uuid4().hex[:8]}"
    repository, tag = name.split(":")
    container = docker_apps.client.containers.create(docker_apps.image, ["true"])
    container.commit(repository, tag, changes=f"ENV OWN={tag}")
    container.remove()
    yield name
    with contextlib.suppress(ImageNotFound):
        docker_apps.client.images.remove(name, force=True)


def begun(docker_apps, image: str, script: str, *others: str, **fields: object) -> str:
    """Launch a role `a` of that image, which ends, and roles of the usual one; remove the image by force."""
    roles = [docker_apps.sh(other, f"b{number}") for number, other in enumerate(others)]
    app_id = docker_apps.start(docker_apps.sh(script, "a", image=image, **fields), *roles)
    until(
        lambda: any(container["State"]["Status"] == "exited" for container in docker_apps.containers(app_id)), 20, 0.05
    )
    docker_apps.client.images.remove(image, force=True)
    return app_id


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_an_app_is_ended(docker_apps, image, how):
    """The mark of a cancel was created from the first role's image, and its lack was taken for a deleted app."""
    app_id = begun(docker_apps, image, "true", "sleep 60")

    getattr(docker_apps.scheduler, how)(app_id)

    if how == "cancel":
        assert docker_apps.end(app_id, timeout_s=20).state is AppState.CANCELLED
    else:
        assert docker_apps.left(app_id) == []


def test_a_failure_ends_the_siblings(docker_apps, image):
    app_id = begun(docker_apps, image, "exit 3", "sleep 60")

    assert docker_apps.end(app_id, timeout_s=20).state is AppState.FAILED
    assert not any(container["State"]["Running"] for container in docker_apps.containers(app_id))


def test_a_retry_for_which_the_image_is_gone_fails_the_app(docker_apps, image):
    """No image of the app is left, so the mark is created from any other."""
    app_id = begun(docker_apps, image, "exit 3", max_retries=1)
    found = docker_apps.end(app_id, timeout_s=20)

    assert found.state is AppState.FAILED
    assert re.search(f"a/0 could not be started again: .* no longer has the image '{image}'", found.msg)


@pytest.mark.usefixtures("image")  # for a second attempt
def test_a_mark_that_cannot_be_made_is_reported(docker_apps, docker_proxy):
    """A cancel without effect would be taken for a successful one."""
    app_id = docker_apps.start(docker_apps.sh("sleep 60"))
    fault = docker_proxy.add(Fault(error(404, "No such image: gone"), "POST", "/containers/create", times=None))

    with pytest.raises(SchedulerRejectedError, match=r"cannot store the end of .* \(No such image: gone\); pull any"):
        docker_apps.scheduler.cancel(app_id)

    assert fault.hits > 1
    docker_proxy.clear()
    docker_apps.scheduler.cancel(app_id)
    assert docker_apps.end(app_id).state is AppState.CANCELLED
