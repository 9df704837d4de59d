"""A worker that is killed for good: a process of its own, SIGKILL, and the local scheduler on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh

WORKER = """
import json, os, signal, sys
from pathlib import Path
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh

record, store, step = sys.argv[1:]
api = FakeExecutionApi(retries=1)

def on_call(method, parts, body):
    if method != "PUT" or parts[-1] != "launch":
        return
    state = body["value"]["state"]
    if (step, state) == ("before the handle is stored", "scheduled"):
        os.kill(os.getpid(), signal.SIGKILL)
    Path(store).write_text(json.dumps(body["value"]))
    if (step, state) in {("before the submit", "intent"), ("while it follows", "scheduled")}:
        os.kill(os.getpid(), signal.SIGKILL)

api.on_call = on_call
run_task(launch(sh(f"echo ran >> {record}; sleep 0.5")), api)
"""


@pytest.mark.parametrize("step", ["before the submit", "before the handle is stored", "while it follows"])
def test_the_retry_ends_with_exactly_one_app(tmp_path: Path, checkout: Path, step: str) -> None:
    record, store = tmp_path / "ran", tmp_path / "store"
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", WORKER, str(record), str(store), step]
    died = subprocess.run(command, cwd=checkout, env=env, timeout=120, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    api = FakeExecutionApi(retries=1)
    api.store["launch"] = json.loads(store.read_text())

    second = run_task(launch(sh(f"echo ran >> {record}; sleep 0.5")), api, try_number=2)

    assert second.state == "success", second.lines
    assert record.read_text() == "ran\n"
    assert len(create_scheduler("s").list()) == 1


def test_a_cleared_task_cancels_the_old_app_and_starts_a_new_one(tmp_path: Path) -> None:
    """On real processes: the old app is dead before the new one begins."""
    record = tmp_path / "ran"
    api = FakeExecutionApi()
    script = f"echo $LAUNCH_APP_ID >> {record}; test $(wc -l < {record}) = 2 || sleep 60"
    run_task(launch(sh(script), wait=False), api)
    deadline = time.monotonic() + 20
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    api.clear_number = 1
    second = run_task(launch(sh(script)), api, try_number=2)

    assert second.state == "success", second.lines
    old, new = record.read_text().split()
    states = {row.app_id: row.state for row in create_scheduler("s").list()}
    assert states == {old: AppState.CANCELLED, new: AppState.SUCCEEDED}
