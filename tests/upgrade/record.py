"""Writes what this version stores outside its process: `python -m tests.upgrade.record`, once before each release.

A folder is never written again after its release, because later versions have to read what that release has written.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import airflow_provider_launch
from airflow_provider_launch._task.progress import FollowProgress, pack
from airflow_provider_launch.operators._record import Record, app_id_for
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.owner import COUNTS, DEPLOYMENT, OWNER, POLICY, TRY, TaskKey
from airflow_provider_launch.specs.roles import Resource
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.upgrade.backends import BACKENDS, LINES, request_of

HERE = Path(__file__).parent
TASK = TaskKey("etl", "manual__2026-11-28", "train", 3)
RUN_START = "2026-11-28 01:02:03+00:00"
ATTEMPT = 1
CLEAR_NUMBER, MAX_TRIES, RETRIES = 2, 3, 1
SINCE = 1_790_000_000.5


def version() -> str:
    """Return the version of this checkout."""
    return airflow_provider_launch.__version__


def an_app(image: str) -> AppDef:
    """Return an app with values in all fields that each scheduler supports."""
    owner = {
        **TASK._asdict(), TRY: 2, DEPLOYMENT: "0123@http://airflow", POLICY: "cancel",
        COUNTS: json.dumps([CLEAR_NUMBER, MAX_TRIES, RETRIES, SINCE]),
    }  # fmt: skip
    trainer = Role(
        name="trainer",
        image=image,
        entrypoint="sh",
        args=["-c", "echo $GREETING from ${replica_id} of ${app_id}"],
        env={"GREETING": "grüße", "API_TOKEN": "x y"},
        num_replicas=2,
        max_retries=1,
        resource=Resource(cpu=1, gpu=0, memMB=64),
        metadata={"team": "ml"},
    )
    return AppDef(name="train", roles=[trainer], metadata={"project": "demo", OWNER: owner})


def recorded(backend: str) -> dict[str, Any]:
    """Return all that this version stores of an app of this scheduler."""
    known = BACKENDS[backend]
    app = an_app(known.image)
    app_id = app_id_for(**TASK._asdict(), run_start=RUN_START, attempt=ATTEMPT)
    request = request_of(backend, app, app_id)
    handle = make_app_handle(backend, "cluster", app_id)
    log = known.write_log(LINES)
    cursors = [known.read_log(known.write_log(LINES[:number]), None)[1] for number in range(1, len(LINES) + 1)]
    progress = FollowProgress(
        cursors={"trainer/0": cursors[1], "trainer/1": cursors[3]},
        state="RUNNING",
        tails={"trainer/0": ["line 0", "line 1"]},
        shown_bytes={"trainer/0": 14},
        attempts={"trainer/1": 1},
        url="https://cluster/apps/1",
        began=SINCE + 3,
        deadline=SINCE + 3600,
        since=SINCE,
        roles={"trainer": 2},
        has_gap=True,
    )
    record = Record(
        ATTEMPT, app_id, request.spec_hash, f"{backend} here", CLEAR_NUMBER, "scheduled", handle,
        max_tries=MAX_TRIES, retries=RETRIES, since=SINCE,
    )  # fmt: skip
    trigger = AppStatusTrigger(
        handle,
        deadline=SINCE + 3600,
        cancels_at_deadline=False,
        scheduled=True,
        secret_places=[["trainer", "env", "API_TOKEN"]],
        progress=progress.to_json(),
        fire_after_s=10.0,
        poll_interval_s=5.0,
        log_roles=["trainer"],
        max_log_bytes=1_000_000,
        kill_policy="leave",
        start_limit_s=600,
    )
    path, arguments = trigger.serialize()
    return {
        "app": app_to_dict(app),
        "app_id": app_id,
        "spec_hash": request.spec_hash,
        "stored": known.store(app, request),
        "record": dataclasses.asdict(record),
        "trigger": [path, arguments],
        "event": {"handle": handle, "reason": "ended", "text": "", **progress.to_json()},
        "checkpoint": pack(progress.to_json()),
        "log": log,
        "cursors": cursors,
    }


def main() -> int:
    """Write the files of this version."""
    folder = HERE / version()
    for backend in BACKENDS:
        path = folder / f"{backend}.json"
        if path.exists():
            sys.stderr.write(f"{path} exists; it is what the release has written\n")
            return 1
    folder.mkdir(exist_ok=True)
    for backend in BACKENDS:
        text = json.dumps(recorded(backend), indent=1, ensure_ascii=False, sort_keys=True)
        (folder / f"{backend}.json").write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
