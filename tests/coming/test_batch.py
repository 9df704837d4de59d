"""DAGs with BatchOperator do the same after the move, on the AWS Batch of the tests."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import boto3
import pytest
from docker.errors import APIError

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role, VolumeMount
from tests.airflow.support import a_dag
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import REGION
from tests.support.apps import until

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(300)]

pytest.importorskip("airflow.providers.amazon")

KEYS = {"aws_access_key_id": "key-of-the-tests", "aws_secret_access_key": "no-secret-of-the-tests"}


@pytest.fixture
def client(batch_server, batch_queue, monkeypatch):
    extra = {**params_for(batch_server.url), "queue": batch_queue}
    known = {"conn_type": "launch_aws_batch", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_AWS_BATCH_DEFAULT", json.dumps(known))
    url = extra["endpoint_url"]
    aws = {"conn_type": "aws", "extra": {"endpoint_url": url, "region_name": REGION, **KEYS}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(aws))
    return boto3.client("batch", endpoint_url=url, region_name=REGION, **KEYS)


@pytest.fixture
def definition(client, docker_engine) -> str:
    return register(client, docker_engine.image)


def register(client, image: str, **more: Any) -> str:
    name = make_unique("users")
    client.register_job_definition(
        jobDefinitionName=name,
        type="container",
        containerProperties={
            "image": image,
            "command": [],
            "environment": [{"name": "PLACE", "value": "the moon"}],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}],
            **more,
        },
    )
    return name


def lines_of(client, server_url: str, job_id: str) -> list[str]:
    """Return the lines of a job as CloudWatch has them."""
    (job,) = client.describe_jobs(jobs=[job_id])["jobs"]
    logs = boto3.client("logs", endpoint_url=client.meta.endpoint_url, region_name=REGION, **KEYS)
    stream = job["container"]["logStreamName"]
    found = logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream, startFromHead=True)
    return [event["message"].strip() for event in found["events"]]


def test_the_dag_of_the_page_with_a_definition_and_a_result(
    moves, client, definition, batch_queue, batch_server, unique
):
    replaced = {"research": batch_queue, "train-definition": definition, "train": unique}
    before, after = moves.of_page("batch-operator", replaced)

    first, job_id = moves.run(before)
    assert first.state == "success", first.error
    second, outcome = moves.run(after)
    assert second.state == "success", second.error
    assert lines_of(client, batch_server.url, job_id) == ["the moon has 7"]
    assert "[trainer/0] the moon has 7" in second.lines
    assert outcome["result"] == {"size": 7}


def both(unique: str, queue: str, definition: str, role: Role, cfg: dict, **theirs):
    """Return the task before and the task after."""
    from airflow.providers.amazon.aws.operators.batch import BatchOperator

    with a_dag():
        before = BatchOperator(
            task_id="before",
            job_name=unique,
            job_queue=queue,
            job_definition=definition,
            aws_conn_id="aws_default",
            **theirs,
        )
    with a_dag():
        after = LaunchAppOperator(
            task_id=unique, launch_conn_id="launch_aws_batch_default", app=AppDef(unique, [role]), cfg=cfg
        )
    return before, after


def test_a_job_that_fails_fails_its_task(moves, client, definition, batch_queue, docker_engine, unique):
    role = Role("main", docker_engine.image, entrypoint="sh", args=["-c", "exit 3"], resource=Resource(1, 0, 64))
    overrides = {"command": ["sh", "-c", "exit 3"]}
    before, after = both(unique, batch_queue, definition, role, {}, container_overrides=overrides)

    first, second = (moves.run(task)[0] for task in (before, after))
    assert [first.state, second.state] == ["failed", "failed"]
    assert "exited with code 3" in str(second.error)


@pytest.fixture
def secret(client, unique) -> str:
    """The ARN of a secret."""
    manager = boto3.client("secretsmanager", endpoint_url=client.meta.endpoint_url, region_name=REGION, **KEYS)
    return str(manager.create_secret(Name=unique, SecretString="s3cr3t")["ARN"])


@pytest.fixture
def volume(docker_engine, unique):
    """A volume, as which the tests mount a file system of EFS."""
    made = docker_engine.client.volumes.create(unique)
    yield unique

    def is_removed() -> bool:
        # The server of the tests removes its containers, too, so one may be gone or about to go.
        for row in docker_engine.client.api.containers(all=True, filters={"volume": unique}):
            with contextlib.suppress(APIError):
                docker_engine.client.api.remove_container(row["Id"], force=True)
        with contextlib.suppress(APIError):
            made.remove(force=True)
            return True
        return False

    until(is_removed)


@pytest.mark.parametrize("has_definition", [True, False], ids=["of-the-definition", "of-the-role"])
def test_a_volume_a_secret_and_a_result(
    moves, client, batch_queue, docker_engine, secret, volume, unique, has_definition
):
    """The definition has them, or role and options do, which need no definition."""
    data = {"name": "data", "efsVolumeConfiguration": {"fileSystemId": volume}}
    definition = register(
        client,
        docker_engine.image,
        secrets=[{"name": "TOKEN", "valueFrom": secret}],
        volumes=[data],
        mountPoints=[{"sourceVolume": "data", "containerPath": "/data"}],
    )
    script = 'cat /data/size 2>/dev/null; printf %s "$TOKEN" | wc -c > /data/size'
    role = Role("main", "", entrypoint="sh", args=["-c", f'{script}; cp /data/size "$LAUNCH_RESULT_PATH"'])
    cfg: dict[str, Any] = {"job_definition": definition}
    if not has_definition:
        role.image, role.resource = docker_engine.image, Resource(1, 0, 64)
        role.mounts = [VolumeMount(volume, "/data")]
        cfg = {"secrets": {"TOKEN": secret}}
    overrides = {"command": ["sh", "-c", script]}
    before, after = both(unique, batch_queue, definition, role, cfg, container_overrides=overrides)

    assert moves.run(before)[0].state == "success"
    ran, outcome = moves.run(after)
    assert ran.state == "success", ran.error
    assert "[main/0] 6" in ran.lines  # the file of the first task is on the volume
    assert outcome["result"] == 6
    assert not [line for line in ran.lines if "s3cr3t" in line]


def test_an_image_with_an_entrypoint(moves, client, batch_queue, docker_engine, batch_server, unique):
    made = docker_engine.client.containers.create(docker_engine.image, "true")
    image = made.commit(unique, "1", changes='ENTRYPOINT ["echo", "from the image"]')
    made.remove()
    try:
        definition = register(client, f"{unique}:1")
        role = Role("main", "", entrypoint=None, args=["and the task"])
        before, after = both(
            unique,
            batch_queue,
            definition,
            role,
            {"job_definition": definition},
            container_overrides={"command": ["and the task"]},
        )
        _, job_id = moves.run(before)
        ran, _ = moves.run(after)
        assert lines_of(client, batch_server.url, job_id) == ["from the image and the task"]
        assert "[main/0] from the image and the task" in ran.lines
    finally:
        docker_engine.client.images.remove(image.id, force=True)
