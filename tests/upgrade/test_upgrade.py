"""This release reads everything that an earlier one has stored outside its process: docs/upgrading.md promises it.

Each folder here has what one release wrote, see `record.py`. A test that fails shows that an app which that release has
launched, or a task that it has deferred, would be lost: read both forms.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch._task.progress import FollowProgress, unpack
from airflow_provider_launch.operators._earlier import _counts_of
from airflow_provider_launch.operators._record import NextStep, Record, app_id_for, next_step
from airflow_provider_launch.schedulers.backends import BACKENDS as ALL_BACKENDS
from airflow_provider_launch.specs import Role
from airflow_provider_launch.specs.app_dict import app_from_dict
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.owner import OWNER, TRY, owner_of, task_of
from tests.upgrade import record
from tests.upgrade.backends import BACKENDS, LINES, request_of

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if path.is_dir() and not path.name.startswith("_"))


@pytest.fixture(params=[(release, backend) for release in RELEASES for backend in BACKENDS], ids="-".join)
def case(request) -> tuple[str, dict[str, Any]]:
    """A scheduler, and what a release has stored of an app of it."""
    release, backend = request.param
    path = HERE / release / f"{backend}.json"
    if not path.exists():
        pytest.skip(f"release {release} had no scheduler {backend}")
    return backend, json.loads(path.read_text(encoding="utf-8"))


def test_this_release_is_recorded():
    """Cure: `python -m tests.upgrade.record`, before the release."""
    assert {*BACKENDS} == {*ALL_BACKENDS}
    assert {path.stem for path in (HERE / record.version()).glob("*.json")} == {*BACKENDS}


def test_a_recorded_release_is_not_written_again(capsys):
    assert record.main() == 1
    assert "it is what the release has written" in capsys.readouterr().err


def test_an_app_is_found(case):
    backend, stored = case
    app = app_from_dict(stored["app"])

    found = BACKENDS[backend].find(stored["app_id"], stored["stored"])

    assert [as_given(role, app.roles[0].env) for role in found.app.roles] == app.roles
    assert found.spec_hash == stored["spec_hash"]
    assert found.owner == owner_of(app.metadata)
    assert task_of(found.owner) == record.TASK
    assert _counts_of(found.owner) == (record.CLEAR_NUMBER, record.MAX_TRIES, record.RETRIES, record.SINCE)


def as_given(role: Role, env: Mapping[str, str]) -> Role:
    """Return the role without the variables that the launcher has added."""
    return dataclasses.replace(role, env={name: value for name, value in role.env.items() if name in env})


def test_the_same_app_has_the_same_id_and_hash(case):
    """Otherwise a retry would launch a second app, or say that the DAG has changed."""
    backend, stored = case
    app = app_from_dict(stored["app"])
    app.metadata[OWNER] = {**app.metadata[OWNER], TRY: 5}

    assert request_of(backend, app, stored["app_id"]).spec_hash == stored["spec_hash"]
    assert stored["app_id"] == app_id_for(**record.TASK._asdict(), run_start=record.RUN_START, attempt=record.ATTEMPT)


def test_a_retry_resumes_from_the_record(case):
    _, stored = case
    found = Record.from_json(stored["record"])

    assert found is not None
    assert (found.app_id, found.spec_hash, found.since) == (stored["app_id"], stored["spec_hash"], record.SINCE)
    step = next_step(found, record.CLEAR_NUMBER, record.MAX_TRIES, record.RETRIES)
    assert step is NextStep.RESUME
    assert next_step(found, record.CLEAR_NUMBER + 1, record.MAX_TRIES + 1, record.RETRIES) is NextStep.REPLACE


def test_a_triggerer_starts_the_trigger_of_an_earlier_release(case):
    _, stored = case
    path, arguments = stored["trigger"]
    module, _, name = path.rpartition(".")

    trigger = getattr(importlib.import_module(module), name)(**arguments)

    again = json.loads(json.dumps(trigger.serialize()[1]))
    assert arguments.items() <= again.items()
    assert not trigger.options.launch_conn_id
    assert trigger.options.kill_policy == "leave"


def test_a_worker_continues_with_the_event_of_an_earlier_release(case):
    backend, stored = case
    event = stored["event"]

    found = FollowProgress.from_json(event)

    assert parse_app_handle(event["handle"]) == (backend, "cluster", stored["app_id"])
    assert found.cursors == {"trainer/0": stored["cursors"][1], "trainer/1": stored["cursors"][3]}
    assert (
        found.to_json().items()
        >= {name: event[name] for name in event.keys() - {"handle", "reason", "text", "cursors"}}.items()
    )
    for earlier in (unpack(stored["checkpoint"]), stored["trigger"][1]["progress"]):
        assert FollowProgress.from_json(earlier) == found


def test_a_log_continues_after_the_last_line_that_an_earlier_release_has_shown(case):
    backend, stored = case
    read = BACKENDS[backend].read_log

    assert read(stored["log"], None)[0] == LINES
    assert len(stored["cursors"]) == len(LINES)
    for number, cursor in enumerate(stored["cursors"], 1):
        assert read(stored["log"], cursor)[0] == LINES[number:], cursor
