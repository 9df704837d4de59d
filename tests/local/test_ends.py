"""Retries, failures, limits, cancel and delete: how an app may end, and that nothing is left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppState, RetryPolicy, SchedulerRejectedError
from tests.support.local import Apps, processes_below, sh, until


def states(found) -> dict[str, list[str]]:
    return {role.role: [replica.state.name for replica in role.replicas] for role in found.roles_statuses}


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_replica_retries_are_counted_exactly(apps: Apps, tmp_path: Path, max_retries: int) -> None:
    role = sh(
        f"echo run >> {tmp_path}/$LAUNCH_REPLICA_ID; test $LAUNCH_REPLICA_ID = 0 || exit 5; sleep 0.3",
        num_replicas=2,
        max_retries=max_retries,
        retry_policy=RetryPolicy.REPLICA,
    )
    found = apps.run(role)

    assert found.state is AppState.FAILED
    assert (tmp_path / "1").read_text().count("run") == max_retries + 1
    assert (tmp_path / "0").read_text().count("run") == 1
    assert found.num_restarts == max_retries


@pytest.mark.parametrize("max_retries", [1, 2])
def test_application_retries_restart_all_roles(apps: Apps, tmp_path: Path, max_retries: int) -> None:
    bad = sh(f"echo run >> {tmp_path}/bad; exit 5", "bad", max_retries=max_retries)
    peer = sh(f"echo run >> {tmp_path}/peer; sleep 60", "peer")
    # Long enough for the peer to have started before the other fails.
    bad.args = ["-c", f"sleep 0.3; {bad.args[1]}"]
    found = apps.run(bad, peer)

    assert found.state is AppState.FAILED
    assert (tmp_path / "bad").read_text().count("run") == max_retries + 1
    assert (tmp_path / "peer").read_text().count("run") == max_retries + 1
    assert states(found) == {"bad": ["FAILED"], "peer": ["CANCELLED"]}


def test_a_retry_that_succeeds_makes_the_app_succeed(apps: Apps, tmp_path: Path) -> None:
    role = sh(f"echo try $LAUNCH_ATTEMPT; test -e {tmp_path}/x || {{ touch {tmp_path}/x; exit 1; }}", max_retries=1)
    app_id = apps.start(role)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id) == ["try 0\n", "try 1\n"]


def test_one_failed_role_ends_the_app_and_its_siblings(apps: Apps) -> None:
    began = time.monotonic()
    found = apps.run(sh("sleep 0.2; exit 3", "bad"), sh("trap '' TERM; sleep 60", "deaf"), grace_s=1)

    assert found.state is AppState.FAILED
    assert found.msg.startswith("bad/0 failed: exit code 3")
    assert states(found) == {"bad": ["FAILED"], "deaf": ["CANCELLED"]}
    assert time.monotonic() - began < 15


def test_time_limit_ends_the_app(apps: Apps) -> None:
    found = apps.run(sh("sleep 60"), time_limit_s=1)

    assert found.state is AppState.FAILED
    assert "time limit of 1 s" in found.msg


TREE = """
trap '' TERM
setsid sh -c "trap '' TERM; sleep 300" &
nohup sh -c 'sh -c "sleep 301 & sleep 302" &' >/dev/null 2>&1 &
env -i setsid sh -c 'trap "" TERM; sleep 303' &
echo up
sleep 304
"""


def test_cancel_kills_the_whole_tree(apps: Apps) -> None:
    """Also children that ignore TERM, left the session, or cleaned their environment."""
    app_id = apps.start(sh(TREE), grace_s=0.5)
    until(lambda: apps.lines(app_id) == ["up\n"])
    apps.scheduler.cancel(app_id)
    found = apps.end(app_id)

    assert found.state is AppState.CANCELLED
    assert not [n for n in (300, 301, 302, 303, 304) if _sleeps(n)]
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


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


def test_cancel_before_start_after_the_end_and_of_an_unknown_app(apps: Apps) -> None:
    early = apps.start(sh("sleep 60"))
    apps.scheduler.cancel(early)
    assert apps.end(early).state is AppState.CANCELLED

    done = apps.start(sh("true"))
    apps.end(done)
    apps.scheduler.cancel(done)
    assert apps.end(done).state is AppState.SUCCEEDED

    apps.scheduler.cancel("unknown")
    apps.scheduler.delete("unknown")


def test_delete_removes_a_finished_and_a_live_app(apps: Apps) -> None:
    done, live = apps.start(sh("true")), apps.start(sh("sleep 60"))
    apps.end(done)
    apps.scheduler.delete(done)
    apps.scheduler.delete(live)

    until(lambda: apps.scheduler.describe(done) is None and apps.scheduler.describe(live) is None)
    assert apps.scheduler.list() == []


def test_list_shows_each_app_once(apps: Apps) -> None:
    ids = {apps.start(sh("true")) for _ in range(3)}
    for app_id in ids:
        apps.end(app_id)

    assert {(row.app_id, row.state, row.name) for row in apps.scheduler.list()} == {
        (app_id, AppState.SUCCEEDED, "app") for app_id in ids
    }


def test_old_apps_are_swept(apps: Apps) -> None:
    old, young = apps.start(sh("true")), apps.start(sh("true"))
    apps.end(old), apps.end(young)
    past = time.time() - 15 * 86400
    os.utime(apps.dir(old) / layout.STATE, (past, past))
    (apps.root / "swept").unlink()
    apps.end(apps.start(sh("true")))

    assert apps.scheduler.describe(old) is None
    assert apps.scheduler.describe(young) is not None


def test_journal_is_bounded(apps: Apps, tmp_path: Path) -> None:
    app_id = apps.start(sh("sleep 2"))
    apps.scheduler.describe(app_id)
    journal = apps.root / layout.JOURNAL
    for _ in range(4):
        with journal.open("a") as file:
            file.write("x y\n" * 300_000)
        layout.append_journal(str(apps.root), "some-app", "RUNNING")
        assert not journal.exists() or journal.stat().st_size < layout.JOURNAL_LIMIT

    # The observer that followed the old journal still learns of the end.
    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_record_of_an_earlier_boot_and_of_another_host_is_said_to_be_so(apps: Apps) -> None:
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


def test_unwritable_root_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scheduler = create_scheduler("x", root=str(tmp_path / "file" / "root"))

    with pytest.raises(SchedulerRejectedError, match="choose another root"):
        Apps(scheduler, tmp_path).start(sh("true"))
