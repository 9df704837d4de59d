"""Defects in what runs and what it is given."""

from __future__ import annotations

from typing import Any

from tests.contract.broken.defects import caught_by
from tests.support.threads_scheduler import ThreadsScheduler


@caught_by("test_one_role_runs_to_its_end")
class StartsEachReplicaTwice(ThreadsScheduler):
    def schedule(self, dryrun_info: Any) -> str:
        dryrun_info.request["replicas"] *= 2
        return super().schedule(dryrun_info)
