"""Links to the pages of the AWS console about an app: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow_provider_launch.schedulers.aws_batch.jobs import log_group

_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def _console(region: str) -> str:
    host = next((host for prefix, host in _CONSOLES.items() if region.startswith(prefix)), "console.aws.amazon.com")
    return f"https://{host}"


def job_page(region: str, job: Mapping[str, Any]) -> str:
    """Return the address of a job's page."""
    return f"{_console(region)}/batch/home?region={region}#jobs/detail/{job['jobId']}"


def other_pages(region: str, job: Mapping[str, Any]) -> dict[str, str]:
    """Return title to address of further pages: definition, queue, and the log of all replicas and attempts.

    Args:
        region: Region of the queue.
        job: the job, as DescribeJobs returns it.
    """
    batch = f"{_console(region)}/batch/home?region={region}"
    definition = str(job["jobDefinition"])
    group = log_group(job)
    # The console encodes the part after `#` twice, with `$` for `%`. Streams are named after their definition.
    name, stream = (quote(quote(text, safe=""), safe="").replace("%", "$") for text in (group.name, _name(definition)))
    logs = f"{_console(region)}/cloudwatch/home?region={group.region or region}"
    return {
        "job definition": f"{batch}#job-definition/detail/{definition}",
        "queue": f"{batch}#queues/detail/{job['jobQueue']}",
        "log": f"{logs}#logsV2:log-groups/log-group/{name}$3FlogStreamNameFilter$3D{stream}",
    }


def _name(definition: str) -> str:
    return definition.rpartition("/")[2].partition(":")[0]
