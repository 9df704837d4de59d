"""The table of capabilities in the docs is what the schedulers declare."""

from __future__ import annotations

import re

from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler


def test_the_table_is_what_the_schedulers_declare(checkout) -> None:
    page = (checkout / "docs" / "testing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| *(yes)? *\| *(yes)? *\| *(yes)? *\|$", page, re.MULTILINE)
    declared = [LocalScheduler.capabilities, DockerScheduler.capabilities, KubernetesScheduler.capabilities]

    assert rows == [
        (each.value, *("yes" if each in capabilities else "" for capabilities in declared)) for each in Capability
    ]
