"""Checks which actions the credentials allow, with requests that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_provider_launch.schedulers.aws_batch.client import Aws, DeniedError, NotFoundError, RefusedError
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup, definition_name

_MISSING_NAME = "launch-permission-check"
_GROUP = LogGroup("/aws/batch/job")

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "submit": ("batch:RegisterJobDefinition", "batch:SubmitJob", "batch:TagResource"),
    "adopt": (
        "batch:DescribeJobDefinitions",
        "batch:ListJobs",
        "batch:DescribeJobs",
        "batch:DeregisterJobDefinition",
    ),
    "follow": ("batch:DescribeJobs", "batch:DescribeJobDefinitions", "batch:ListJobs", "batch:DescribeJobQueues"),
    "why an app waits": ("batch:DescribeJobQueues", "batch:GetJobQueueSnapshot"),
    "logs and results": ("logs:GetLogEvents", "logs:FilterLogEvents"),
    "workspaces in ECR": ("ecr:GetAuthorizationToken",),
    "end and delete": (
        "batch:TerminateJob",
        "batch:TagResource",
        "batch:DescribeJobDefinitions",
        "batch:DeregisterJobDefinition",
        "batch:RegisterJobDefinition",
    ),
}
"""Feature to the actions that it needs; the policy of the docs grants them, and roles of jobs need `iam:PassRole`."""


def missing_permissions(aws: Aws, queue: str | None) -> list[str]:
    """Return the actions that are not allowed, as far as this can be checked without changes.

    Raises:
        SchedulerUnavailableError: AWS is unreachable.
    """
    asked: dict[str, Callable[[], object]] = {
        "batch:DescribeJobQueues": lambda: aws.queue(queue or _MISSING_NAME),
        "batch:DescribeJobs": lambda: aws.describe([_MISSING_NAME]),
        "batch:DescribeJobDefinitions": lambda: aws.active(definition_name(_MISSING_NAME)),
        "batch:ListJobs": lambda: [*aws.jobs_named(queue or _MISSING_NAME, _MISSING_NAME)],
        "batch:GetJobQueueSnapshot": lambda: aws.front_of_queue(queue or _MISSING_NAME),
        # AWS checks the permission first, then refuses the missing definition.
        "batch:SubmitJob": lambda: aws.submit_nothing(queue or _MISSING_NAME, f"{definition_name(_MISSING_NAME)}:1"),
        "batch:DeregisterJobDefinition": lambda: aws.deregister(definition_name(_MISSING_NAME), 1),
        "batch:TerminateJob": lambda: aws.terminate(_MISSING_NAME, "launch: permission check"),
        "logs:GetLogEvents": lambda: aws.log_events(_GROUP, _MISSING_NAME),
        "logs:FilterLogEvents": lambda: aws.filter_events(_GROUP, [_MISSING_NAME]),
    }
    return [action for action, ask in asked.items() if not _allows(ask)]


def _allows(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except DeniedError:
        return False
    except (RefusedError, NotFoundError):
        return True
    return True
