"""The table of capabilities in the docs matches the schedulers."""

from __future__ import annotations

import re

from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.schedulers.capability import Capability


def test_the_table_is_what_the_schedulers_declare(checkout) -> None:
    page = (checkout / "docs" / "testing.md").read_text(encoding="utf-8")
    cells = r" *(yes)? *\|" * len(BACKENDS)
    rows = re.findall(rf"^\| `(\w+)` \| .+ \|{cells}$", page, re.MULTILINE)
    declared = [info.scheduler_class().capabilities for info in BACKENDS.values()]

    assert rows == [
        (each.value, *("yes" if each in capabilities else "" for capabilities in declared)) for each in Capability
    ]
