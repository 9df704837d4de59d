"""The policy of the docs grants exactly the actions that are used."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch.scheduler import create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from tests.aws_batch.conftest import described

UNASKED = {
    "iam:PassRole",
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:GetDownloadUrlForLayer",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
}
"""Not calls of the launcher: AWS checks the first one within RegisterJobDefinition, the others while Docker pushes."""


def policy(checkout) -> set[str]:
    text = (checkout / "docs" / "aws_batch.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    return {action for statement in json.loads(block)["Statement"] for action in statement["Action"]}


@pytest.mark.engine("aws_batch")
def test_the_policy_equals_the_calls(batch_server, batch_params, batch_queue, docker_engine, checkout) -> None:
    names = {
        "tags": "batch:TagResource",
        "GetLogEvents": "logs:GetLogEvents",
        "FilterLogEvents": "logs:FilterLogEvents",
        "GetAuthorizationToken": "ecr:GetAuthorizationToken",
    }
    granted = policy(checkout)
    known = {action.partition(":")[2].lower(): action for action in granted if action.startswith("batch:")} | names
    before = batch_server.control()["calls"]
    scheduler = create_scheduler("policy", **batch_params)
    room = Resource(1, 0, 64)
    role = Role("main", docker_engine.image, entrypoint="sh", args=["-c", "echo hi"], resource=room)

    def launch(*roles: Role, **cfg: Any) -> str:
        app_id = make_unique("policy")
        info = scheduler.submit_dryrun(
            AppDef("policy", [*roles]), {"queue": batch_queue, "linger_s": 1, **cfg}, app_id=app_id
        )
        for _ in range(2):
            assert create_scheduler("policy", **batch_params).schedule(info) == app_id
        return app_id

    for app_id in (launch(role), launch(role, Role(**{**vars(role), "name": "other", "max_retries": 1}))):
        described(scheduler, app_id)
        scheduler.read_logs(app_id, "main", 0)
        scheduler.result(app_id)
        scheduler.list()
        scheduler.delete(app_id)
    # Many logs at once are read by another call.
    slow = Role(
        "main", docker_engine.image, entrypoint="sh", args=["-c", "echo hi; sleep 60"], num_replicas=3, resource=room
    )
    app_id = launch(slow)
    cursors: dict[int, Any] = {}
    deadline = time.monotonic() + 60
    while not batch_server.control()["calls"].get("FilterLogEvents", 0) - before.get("FilterLogEvents", 0):
        assert time.monotonic() < deadline
        scheduler.describe(app_id)
        for k in range(3):
            cursors[k] = scheduler.read_logs(app_id, "main", k, cursors.get(k)).cursor
        time.sleep(0.5)
    scheduler.delete(app_id)
    scheduler.aws.registry_login("eu-west-1")  # for workspaces
    assert scheduler.missing_permissions(batch_queue) == []
    scheduler.close()
    after: dict[str, Any] = batch_server.control()["calls"]
    called = {known.get(name, name) for name, count in after.items() if count > before.get(name, 0)}

    assert called == granted - UNASKED
