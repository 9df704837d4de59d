"""Files as a power loss leaves them: the app they belong to is found out anew, and no other app is disturbed."""

from __future__ import annotations

import os
import time

import pytest

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.specs import AppState, SchedulerRejectedError
from tests.support.local import Apps, sh, until

DAMAGED = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\0" * 64, id="zeros"),
    pytest.param(b'{"state": "RUNN', id="half"),
    pytest.param(b"\xff\xfe", id="no text"),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_state_is_found_out_anew(apps: Apps, content: bytes) -> None:
    app_id, other = apps.start(sh("echo out; exit 3")), apps.start(sh("true"))
    apps.end(app_id), apps.end(other)
    (apps.dir(app_id) / layout.STATE).write_bytes(content)

    assert apps.lines(app_id) == ["out\n"]
    assert set(apps.scheduler.describe_many([app_id, other])) == {app_id, other}
    assert [row.app_id for row in apps.scheduler.list()] == sorted([app_id, other])
    found = apps.end(app_id)
    assert (found.state, found.msg) == (AppState.FAILED, "main/0 failed: exit code 3")


@pytest.mark.parametrize("content", DAMAGED)
def test_app_with_a_damaged_state_can_be_ended(apps: Apps, content: bytes) -> None:
    app_id = apps.start(sh("true"))
    apps.end(app_id)
    (apps.dir(app_id) / layout.STATE).write_bytes(content)
    apps.scheduler.cancel(app_id)
    (apps.dir(app_id) / layout.STATE).write_bytes(content)
    apps.scheduler.delete(app_id)

    until(lambda: apps.scheduler.describe(app_id) is None)


def test_damaged_journal_line_is_passed_over(apps: Apps) -> None:
    app_id = apps.start(sh("sleep 0.5"))
    apps.scheduler.describe(app_id)
    with (apps.root / layout.JOURNAL).open("ab") as file:
        file.write(b"\xff\xfe x\n")

    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_sweep_goes_on_past_broken_apps(apps: Apps) -> None:
    old, damaged = apps.start(sh("true")), apps.start(sh("true"))
    apps.end(old), apps.end(damaged)
    (apps.dir(damaged) / layout.STATE).write_bytes(b"")
    past = time.time() - 15 * 86400
    os.utime(apps.dir(old) / layout.STATE, (past, past))
    strangers = [apps.root / "apps" / f"file-{n}" for n in range(8)]
    for path in strangers:
        path.touch()
    (apps.root / "swept").unlink()
    started = apps.start(sh("true"))
    for path in strangers:
        path.unlink()

    assert apps.end(started).state is AppState.SUCCEEDED
    assert not apps.dir(old).exists()
    assert apps.dir(damaged).exists()


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_request_disturbs_no_other_app(apps: Apps, content: bytes) -> None:
    """It is on disk before the app begins, so only a broken disk or a hand does this."""
    app_id, other = apps.start(sh("true")), apps.start(sh("true"))
    apps.end(app_id), apps.end(other)
    (apps.dir(app_id) / layout.APP).write_bytes(content)

    answers = apps.another().describe_many([app_id, other])
    assert (answers[app_id], answers[other] is None) == (None, False)
    with pytest.raises(SchedulerRejectedError, match="damaged; remove that directory"):
        apps.start(sh("true"), app_id=app_id)
