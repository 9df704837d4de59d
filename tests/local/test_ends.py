"""Limits, cancel and sweep on this host: the ways in which an app may end, and that nothing is left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppState, SchedulerRejectedError
from tests.programs.signals import COUNTS, UP, terms
from tests.support.apps import until
from tests.support.local import Apps, processes_below, sh

TREE = """
trap '' TERM
setsid sh -c "trap '' TERM; sleep 86300" &
nohup sh -c 'sh -c "sleep 86301 & sleep 86302" &' >/dev/null 2>&1 &
env -i setsid sh -c 'trap "" TERM; sleep 86303' &
echo up
sleep 86304
"""


def test_cancel_kills_the_whole_tree(apps: Apps) -> None:
    """Also children that ignore TERM, left the session, or cleared their environment."""
    app_id = apps.start(sh(TREE), grace_s=0.5)
    until(lambda: apps.lines(app_id) == ["up\n"])
    apps.scheduler.cancel(app_id)
    found = apps.end(app_id)

    assert found.state is AppState.CANCELLED
    assert not [n for n in (86300, 86301, 86302, 86303, 86304) if _sleeps(n)]
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


def test_an_app_that_fills_the_disk_is_ended(apps: Apps) -> None:
    """Each replica and each stream has its own limit."""
    calm = sh("head -c 900000 /dev/zero; head -c 900000 /dev/zero >&2; sleep 86310", "calm")
    found = apps.end(apps.start(calm, sh("yes | head -c 1500000; sleep 86311", "loud"), grace_s=0.5, log_max_mb=1))

    assert found.state is AppState.FAILED
    assert found.msg == "stdout of role 'loud' replica 0 has more than 1 MB; write less, or raise log_max_mb"


def _sleeps(seconds: int) -> bool:
    wanted = f"sleep\0{seconds}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def test_what_a_command_left_in_the_background_ends_with_it(apps: Apps) -> None:
    found = apps.run(sh("setsid sleep 305 & exit 0"))

    assert found.state is AppState.SUCCEEDED
    assert not _sleeps(305)


def test_old_apps_are_swept(apps: Apps) -> None:
    old, young = apps.start(sh("true")), apps.start(sh("true"))
    apps.end(old), apps.end(young)
    past = time.time() - 15 * 86400
    os.utime(apps.dir(old) / layout.STATE, (past, past))
    (apps.root / "swept").unlink()
    apps.end(apps.start(sh("true")))

    assert apps.scheduler.describe(old) is None
    assert apps.scheduler.describe(young) is not None


def test_delete_in_the_moment_of_the_end_removes_the_app(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was seen running but ended before the mark was written: then no supervisor is left to handle it."""
    app_id = apps.start(sh("sleep 0.5"))
    read = apps.scheduler._records._state

    def read_and_wait_for_the_end(app_id: str) -> dict[str, Any] | None:
        seen = read(app_id)
        until(lambda: (read(app_id) or {}).get("final"))
        return seen

    with monkeypatch.context() as slowly:
        slowly.setattr(apps.scheduler._records, "_state", read_and_wait_for_the_end)
        # Not `delete`, which polls first, and so would find the end.
        apps.scheduler._delete_existing(app_id)

    assert apps.scheduler.describe(app_id) is None
    assert [row.app_id for row in apps.scheduler.list()] == []


def test_journal_is_bounded(apps: Apps, tmp_path: Path) -> None:
    app_id = apps.start(sh("sleep 2"))
    apps.scheduler.describe(app_id)
    journal = apps.root / layout.JOURNAL
    for _ in range(4):
        with journal.open("a") as file:
            file.write("x y\n" * 300_000)
        layout.append_journal(str(apps.root), "some-app", "RUNNING")
        assert not journal.exists() or journal.stat().st_size < layout.JOURNAL_LIMIT

    # The observer that followed the old journal still sees the end.
    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_record_of_an_earlier_boot_and_of_another_host_is_reported_as_such(apps: Apps) -> None:
    def planted(app_id: str, **changes: str) -> None:
        source = apps.dir(template)
        target = apps.dir(app_id)
        target.mkdir()
        document = json.loads((source / layout.APP).read_text())
        (target / layout.APP).write_text(json.dumps({**document, **changes}))

    template = apps.start(sh("true"))
    apps.end(template)
    planted("rebooted", boot_id="another-boot")
    planted("elsewhere", host="another-host")

    rebooted = apps.scheduler.describe("rebooted")
    assert rebooted is not None
    assert (rebooted.state, "rebooted" in rebooted.msg) == (AppState.FAILED, True)
    elsewhere = apps.scheduler.describe("elsewhere")
    assert elsewhere is not None
    assert "another-host" in elsewhere.msg
    with pytest.raises(SchedulerRejectedError, match="another-host"):
        apps.scheduler.cancel("elsewhere")
    assert not processes_below(apps.dir("elsewhere"))


def test_unwritable_root_shows_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scheduler = create_scheduler("x", root=str(tmp_path / "file" / "root"))

    with pytest.raises(SchedulerRejectedError, match="choose another root"):
        Apps(scheduler, tmp_path).start(sh("true"))


def test_cancel_sends_term_once_to_each_process(apps: Apps) -> None:
    """A second one would interrupt a program that writes its checkpoint after the first."""
    app_id = apps.start(sh(COUNTS), grace_s=60)
    until(lambda: {*apps.lines(app_id)} >= UP)
    apps.another().cancel(app_id)
    until(lambda: terms(apps.lines(app_id), "parent"))
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    lines = apps.lines(app_id)
    assert terms(lines, "parent") == ["parent TERM 1\n"]
    assert terms(lines, "child") == ["child TERM 1\n"]
