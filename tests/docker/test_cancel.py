"""Cancels of containers while other processes observe their app: each process gets TERM once."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from docker.errors import ImageNotFound

from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.specs import AppState, Role
from tests.docker.conftest import DockerApps
from tests.programs.signals import COUNTS, UP, terms
from tests.support.apps import described, until

pytestmark = pytest.mark.engine("docker")


def counting(apps: DockerApps, name: str = "main", **changes: Any) -> Role:
    return apps.sh(COUNTS, name, **changes)


def start(apps: DockerApps, *roles: Role) -> str:
    app_id = apps.start(*roles, grace_s=60)
    until(lambda: {*apps.lines(app_id)} >= UP)
    return app_id


def assert_one_term(lines: list[str]) -> None:
    """The engine signals only the first process of a container, and its shell does not forward the signal."""
    assert terms(lines, "parent") == ["parent TERM 1\n"]
    assert len(terms(lines, "child")) <= 1


def test_cancel_sends_term_once(docker_apps: DockerApps) -> None:
    """A second one would interrupt a program that writes its checkpoint after the first."""
    apps = docker_apps
    app_id = start(apps, counting(apps))
    apps.another().cancel(app_id)
    until(lambda: terms(apps.lines(app_id), "parent"))
    apps.scheduler.cancel(app_id)
    apps.another().describe(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    assert_one_term(apps.lines(app_id))


def test_delete_sends_term_once(docker_apps: DockerApps) -> None:
    apps = docker_apps
    app_id = start(apps, counting(apps))
    follow = apps.client.api.logs(apps.container(app_id)["Id"], stream=True, follow=True)
    apps.scheduler.delete(app_id)

    assert_one_term(b"".join(follow).decode().splitlines(keepends=True))
    assert apps.left(app_id) == []


def test_observers_of_a_failed_app_send_term_once(docker_apps: DockerApps) -> None:
    """Its other replicas are stopped by the process that stores the failure, and by none of those that find it."""
    apps = docker_apps
    app_id = start(apps, counting(apps), apps.sh("sleep 3; exit 5", "failing"))
    observers = [apps.another() for _ in range(3)]
    described(observers[0], app_id, lambda found: found.msg.startswith("failing/0 failed"))
    for observer in observers:
        observer.describe(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.FAILED
    assert_one_term(apps.lines(app_id))


def test_an_observer_waits_for_the_signals_of_the_process_that_decided(
    docker_apps: DockerApps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both poll in the moment of the cancel: the mark is stored, and the signal is on its way."""
    apps = docker_apps
    app_id = start(apps, counting(apps))
    slow = apps.another()
    stop = slow.engine.stop
    stopping = threading.Event()

    def stop_later(container: str, **how: Any) -> None:
        stopping.set()
        time.sleep(0.3)
        stop(container, **how)

    monkeypatch.setattr(slow.engine, "stop", stop_later)
    cancelling = threading.Thread(target=slow.cancel, args=(app_id,))
    cancelling.start()
    assert stopping.wait(60)
    apps.scheduler.describe(app_id)
    cancelling.join()

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    assert_one_term(apps.lines(app_id))


def test_another_process_sends_the_signals_of_one_that_died(
    docker_apps: DockerApps, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = docker_apps
    app_id = start(apps, counting(apps))
    dying = apps.another()
    monkeypatch.setattr(dying.engine, "stop", lambda *_args, **_how: None)
    dying.cancel(app_id)
    apps.scheduler.describe(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    assert_one_term(apps.lines(app_id))


def test_a_container_without_a_killer_is_stopped_again(
    docker_apps: DockerApps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine forgets the kill at the end of the grace when it is restarted."""
    from airflow_provider_launch.schedulers.docker import observer as module

    monkeypatch.setattr(module, "_STOP_AGAIN_S", 1.0)
    monkeypatch.setattr(module, "_AFTER_GRACE_S", 1.0)
    apps = docker_apps
    app_id = apps.start(apps.sh("trap : TERM; echo up; while :; do sleep 0.1; done"), grace_s=1)
    until(lambda: "up\n" in apps.lines(app_id))

    def signal_only(engine: Engine, container: str, **_how: object) -> None:
        apps.client.api.kill(container, "SIGTERM")

    with monkeypatch.context() as forgetting:
        forgetting.setattr(Engine, "stop", signal_only)
        apps.another().cancel(app_id)

    assert apps.end(app_id, timeout_s=60).state is AppState.CANCELLED


@pytest.fixture
def image_of_another_signal(docker_apps: DockerApps) -> Iterator[str]:
    """Return an image that names another signal than TERM for a stop, as those of web servers do."""
    name = f"launch-tests/signal:{uuid4().hex[:8]}"
    source = io.BytesIO(f"FROM {docker_apps.image}\nSTOPSIGNAL SIGUSR1\n".encode())
    docker_apps.client.images.build(fileobj=source, tag=name, rm=True)
    yield name
    with contextlib.suppress(ImageNotFound):
        docker_apps.client.images.remove(name, force=True)


def test_the_signal_of_an_image_is_sent_once(docker_apps: DockerApps, image_of_another_signal: str) -> None:
    """Each observer would wait a second for a TERM, in which it polls no other app, and send the signal once more."""
    apps = docker_apps
    program = "trap 'echo signal' USR1; echo up; i=0; while test $i -lt 600; do sleep 0.1; i=$((i + 1)); done"
    app_id = apps.start(apps.sh(program, image=image_of_another_signal), grace_s=5)
    until(lambda: "up\n" in apps.lines(app_id))
    apps.another().cancel(app_id)
    until(lambda: "signal\n" in apps.lines(app_id))
    apps.scheduler.describe(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    assert apps.lines(app_id) == ["up\n", "signal\n"]
