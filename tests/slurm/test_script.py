"""The script of a job, when what it relies on goes away."""

from __future__ import annotations

import shutil
import time

import pytest

pytestmark = pytest.mark.engine("slurm")


def test_a_job_whose_directory_is_removed_ends(place) -> None:
    """It has no place for its records any more, and must not wait for one."""
    app_id = place.start(place.role("echo up; sleep 2; exit 3", num_replicas=2, max_retries=5))
    place.until(app_id, "up", k=1)
    shutil.rmtree(place.root / "apps" / app_id)
    deadline = time.monotonic() + 30
    while place.cluster.run("squeue", "-h", f"--name={app_id}"):
        assert time.monotonic() < deadline, "its job still runs"
        time.sleep(0.2)

    assert not (place.root / "apps" / app_id).exists()
