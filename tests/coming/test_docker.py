"""DAGs with DockerOperator do the same after the move, on a real engine."""

from __future__ import annotations

import contextlib
import json

import pytest
from docker.errors import APIError

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from tests.airflow.support import a_dag
from tests.support.apps import until

pytestmark = [pytest.mark.engine("docker"), pytest.mark.timeout(180)]

pytest.importorskip("airflow.providers.docker")


@pytest.fixture(autouse=True)
def connection(docker_engine, monkeypatch):
    extra = {"host": docker_engine.host, "pull": "never"}
    known = {"conn_type": "launch_docker", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_DOCKER_DEFAULT", json.dumps(known))
    monkeypatch.setenv("DOCKER_HOST", docker_engine.host)


@pytest.fixture
def volume(docker_engine, unique):
    made = docker_engine.client.volumes.create(unique)
    yield unique

    def is_removed() -> bool:
        # Docker may be removing such a container itself.
        with contextlib.suppress(APIError):
            for container in docker_engine.client.containers.list(all=True, filters={"volume": unique}):
                container.remove(force=True)
            made.remove(force=True)
            return True
        return False

    until(is_removed)


def both(unique: str, *, image: str, ours: Role, **theirs):
    """Return the task before and the task after."""
    from airflow.providers.docker.operators.docker import DockerOperator

    with a_dag():
        before = DockerOperator(task_id="before", image=image, auto_remove="force", mount_tmp_dir=False, **theirs)
    with a_dag():
        app = AppDef(unique, [ours])
        after = LaunchAppOperator(task_id=unique, launch_conn_id="launch_docker_default", app=app, on_finish="delete")
    return before, after


def test_the_dag_of_the_page_with_a_volume_a_secret_and_a_result(moves, docker_engine, volume, unique):
    before, after = moves.of_page(
        "docker-operator", {"busybox": docker_engine.image, "train-data": volume, "train": unique}
    )

    first, value = moves.run(before)
    assert first.state == "success"
    second, outcome = moves.run(after)
    assert second.state == "success", second.error
    assert json.loads(value) == outcome["result"] == {"size": 7}
    assert not [line for line in second.lines if "s3cr3t" in line]


def test_a_user_a_directory_limits_and_labels(moves, docker_engine, unique):
    script = "id -u; pwd; ulimit -n; df -m /dev/shm | tail -1 | awk '{print $2}'"
    before, after = both(
        unique,
        image=docker_engine.image,
        command=["sh", "-c", script],
        user="1000",
        working_dir="/tmp",
        shm_size=32 * 1024 * 1024,
        xcom_all=True,
        ours=Role("main", docker_engine.image, entrypoint="sh", args=["-c", script]),
    )
    from docker.types import Ulimit

    before.ulimits = [Ulimit(name="nofile", soft=512, hard=512)]
    after.cfg = {"user": "1000", "working_dir": "/tmp", "shm_size_mb": 32, "ulimits": {"nofile": "512"}}

    _, value = moves.run(before)
    ran, _ = moves.run(after)
    assert value == ["1000", "/tmp", "512", "32"]
    assert [line.removeprefix("[main/0] ") for line in ran.lines if line.startswith("[main/0]")] == value


def test_a_failure_is_skipped_by_its_exit_code(moves, docker_engine, unique):
    script = ["-c", "echo nothing to do; exit 99"]
    before, after = both(
        unique,
        image=docker_engine.image,
        command=["sh", *script],
        skip_on_exit_code=99,
        ours=Role("main", docker_engine.image, entrypoint="sh", args=script),
    )
    after.skip_on_exit_code = 99

    assert [moves.run(task)[0].state for task in (before, after)] == ["skipped", "skipped"]


def test_an_image_with_an_entrypoint(moves, docker_engine, unique):
    made = docker_engine.client.containers.create(docker_engine.image, "true")
    image = made.commit(unique, "1", changes='ENTRYPOINT ["echo", "from the image"]')
    made.remove()
    try:
        before, after = both(
            unique, image=f"{unique}:1", command=["and the task"], ours=Role("main", f"{unique}:1", entrypoint=None)
        )
        after.app.roles[0].args = ["and the task"]
        _, value = moves.run(before)
        ran, _ = moves.run(after)
        assert value == "from the image and the task"
        assert f"[main/0] {value}" in ran.lines
    finally:
        docker_engine.client.images.remove(image.id, force=True)
