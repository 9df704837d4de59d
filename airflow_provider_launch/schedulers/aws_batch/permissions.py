"""Which actions the credentials allow: asked for by requests that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_provider_launch.schedulers.aws_batch.client import Aws, DeniedError, NotFoundError, RefusedError
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup, definition_name

_NOBODY = "launch-permission-check"
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
    "end and delete": (
        "batch:TerminateJob",
        "batch:TagResource",
        "batch:DescribeJobDefinitions",
        "batch:DeregisterJobDefinition",
        "batch:RegisterJobDefinition",
    ),
}
"""What is asked for, by feature; the policy of the docs grants it, and roles of jobs need `iam:PassRole`."""


def missing_permissions(aws: Aws, queue: str | None) -> list[str]:
    """Return the actions that are not allowed, as far as they can be asked for without a trace.

    Raises:
        SchedulerUnavailableError: not reached.
    """
    asked: dict[str, Callable[[], object]] = {
        "batch:DescribeJobQueues": lambda: aws.queue(queue or _NOBODY),
        "batch:DescribeJobs": lambda: aws.describe([_NOBODY]),
        "batch:DescribeJobDefinitions": lambda: aws.active(definition_name(_NOBODY)),
        "batch:ListJobs": lambda: [*aws.jobs_named(queue or _NOBODY, _NOBODY)],
        "batch:GetJobQueueSnapshot": lambda: aws.front_of_queue(queue or _NOBODY),
        # Refused because there is no such definition, and before that because it is not allowed.
        "batch:SubmitJob": lambda: aws.submit_nothing(queue or _NOBODY, f"{definition_name(_NOBODY)}:1"),
        "batch:DeregisterJobDefinition": lambda: aws.deregister(definition_name(_NOBODY), 1),
        "batch:TerminateJob": lambda: aws.terminate(_NOBODY, "launch: permission check"),
        "logs:GetLogEvents": lambda: aws.log_events(_GROUP, _NOBODY),
        "logs:FilterLogEvents": lambda: aws.filter_events(_GROUP, [_NOBODY]),
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
