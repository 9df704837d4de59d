"""Killed at any moment: supervisor, launcher, shim. No exit code is lost, nothing runs twice, nothing is left alive."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    AppUnavailableError,
    RetryPolicy,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.support.apps import until
from tests.support.local import Apps, lock_holder, processes_below, sh
from tests.support.repeats import often


def supervisors(apps: Apps, app_id: str) -> list[int]:
    """Return the processes that have, or try to take, the lock: bare interpreters with the app as argument."""
    found = []
    shims = {read["shim"] for path in apps.dir(app_id).rglob("pid") if (read := layout.read_json(str(path)))}
    for pid in processes_below(apps.dir(app_id)):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        # Shims are forked from a supervisor and share its command line; they lead a session and have a `pid` file.
        if b"bare.py" in command and pid not in shims and parent not in shims:
            found.append(pid)
    return found


@pytest.mark.parametrize("seed", range(often(8, 50)))
def test_supervisor_killed_at_a_random_moment(apps: Apps, tmp_path: Path, seed: int) -> None:
    """Crash-only: every attempt leaves one line, and every exit code is right."""
    dice = random.Random(seed)
    record = tmp_path / "ran"
    script = f"echo $LAUNCH_ROLE $LAUNCH_REPLICA_ID $LAUNCH_ATTEMPT >> {record}; sleep 0.{dice.randrange(1, 4)}; "
    retried = dice.random() < 0.5
    roles = [
        sh(script + "exit 0", "good", num_replicas=2),
        sh(
            script + f"test $LAUNCH_ATTEMPT = {int(retried)} || exit 9",
            "flaky",
            max_retries=int(retried),
            retry_policy=RetryPolicy.REPLICA,
        ),
    ]
    app_id = apps.start(*roles)
    for _ in range(dice.randrange(1, 4)):
        time.sleep(dice.random() * 0.25)
        lock = apps.dir(app_id) / layout.LOCK
        pid = lock_holder(lock)
        if pid:
            os.kill(pid, signal.SIGKILL)
        apps.another().describe(app_id)
    found = apps.end(app_id)

    assert found.state is AppState.SUCCEEDED, found
    ran = sorted(record.read_text().splitlines())
    expected = ["flaky 0 0", *(["flaky 0 1"] if retried else []), "good 0 0", "good 1 0"]
    assert ran == sorted(expected)


def test_twenty_racing_submits_start_one_app(apps: Apps, tmp_path: Path) -> None:
    role = sh(f"echo ran >> {tmp_path}/ran; sleep 0.3")
    gate = threading.Barrier(20)

    def submit(_: int) -> str:
        scheduler = apps.another()
        info = scheduler.submit_dryrun(AppDef("app", [role]), {}, app_id="the-one")
        gate.wait()
        return scheduler.schedule(info)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(submit, range(20))) == {"the-one"}
    assert apps.end("the-one").state is AppState.SUCCEEDED
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert len(apps.scheduler.list()) == 1
    assert not list((apps.root / "building").iterdir())


LAUNCHER = """
import sys
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, Role
s = create_scheduler("l", root=sys.argv[1])
role = Role("main", "", entrypoint="sh", args=["-c", "sleep 1; echo survived"])
print(s.schedule(s.submit_dryrun(AppDef("app", [role]), {}, app_id="kept")), flush=True)
import time; time.sleep(60)
"""


def test_app_outlives_the_process_group_of_its_launcher(apps: Apps, checkout: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(apps.root)], stdout=subprocess.PIPE, text=True,
        start_new_session=True, cwd=checkout,
    )  # fmt: skip
    with launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "kept\n"
        os.killpg(launcher.pid, signal.SIGKILL)

    assert apps.end("kept").state is AppState.SUCCEEDED
    assert apps.lines("kept") == ["survived\n"]


def test_cancel_works_after_the_supervisor_was_killed(apps: Apps) -> None:
    app_id = apps.start(sh("trap '' TERM; setsid sleep 306 & sleep 307"), grace_s=0.3)
    until(lambda: list(apps.dir(app_id).rglob("stdout")))
    pid = lock_holder(apps.dir(app_id) / layout.LOCK)
    assert pid
    os.kill(pid, signal.SIGKILL)
    apps.another().cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    until(lambda: not processes_below(apps.root), 5)


@pytest.mark.parametrize("ask", ["list", "describe"])
def test_a_missing_root_is_an_error(apps: Apps, ask: str) -> None:
    """A missing mount that existed before does not mean that its apps do not exist."""
    app_id = apps.start(sh("true"))
    apps.end(app_id)
    calls = {"list": apps.scheduler.list, "describe": lambda: apps.scheduler.describe(app_id)}
    away = apps.root.rename(apps.root.with_name("away"))
    with pytest.raises(SchedulerUnavailableError, match="mount it again"):
        calls[ask]()
    away.rename(apps.root)

    assert [row.app_id for row in apps.scheduler.list()] == [app_id]


def test_list_refuses_a_root_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SchedulerRejectedError, match="choose another root"):
        create_scheduler("tests", root=str(tmp_path / "file" / "root")).list()


@pytest.mark.parametrize("with_supervisor", [False, True])
def test_killed_shim_ends_its_tree_and_fails_the_app(apps: Apps, with_supervisor: bool) -> None:
    """The out-of-memory killer may kill any process; its descendants must not continue to run."""
    app_id = apps.start(sh("setsid sleep 308 & echo up; sleep 309"))
    until(lambda: apps.lines(app_id) == ["up\n"])
    shim = layout.read_json(str(next(apps.dir(app_id).rglob("pid"))))["shim"]
    supervisor = lock_holder(apps.dir(app_id) / layout.LOCK)
    if with_supervisor:
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert (found.roles_statuses[0].replicas[0].exit_code, found.roles_statuses[0].replicas[0].reason) == (
        137,
        "killed from outside",
    )
    until(lambda: not processes_below(apps.root), 5)


@pytest.mark.parametrize("policy", [None, RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
@pytest.mark.parametrize("with_supervisor", [False, True])
def test_term_from_outside_is_a_failure(apps: Apps, policy: RetryPolicy | None, with_supervisor: bool) -> None:
    """A restart of the worker's service sends it to all; the app must not look alive with nothing left to end it."""
    retried = {"max_retries": 1, "retry_policy": policy} if policy else {}
    app_id = apps.start(sh("echo up; test $LAUNCH_ATTEMPT = 1 || sleep 310", **retried), grace_s=0.5)
    until(lambda: apps.lines(app_id) == ["up\n"])
    shim = layout.read_json(str(next(apps.dir(app_id).rglob("pid"))))["shim"]
    supervisor = lock_holder(apps.dir(app_id) / layout.LOCK)
    assert supervisor
    if with_supervisor:
        os.kill(supervisor, signal.SIGTERM)
    os.kill(shim, signal.SIGTERM)
    found = apps.end(app_id)

    if policy:
        assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    else:
        assert (found.state, found.msg) == (AppState.FAILED, "main/0 failed: ended from outside (SIGTERM)")
        assert found.roles_statuses[0].replicas[0].reason == "ended from outside"


def test_a_poll_that_fails_leaves_no_replica_out(apps: Apps) -> None:
    """Success would be reported for an app of which only a part ran again."""
    script = """
        echo $LAUNCH_ATTEMPT; test $LAUNCH_ATTEMPT = 1 && exec sleep 1
        test $LAUNCH_REPLICA_ID = 1 && exec sleep 311
        next=${LAUNCH_LOCAL_ATTEMPT%%/run/*}/run/1/0-main; mkdir -p $next; ln -s 1 $next/1; exit 1
    """
    role = sh(script, num_replicas=2, max_retries=1, retry_policy=RetryPolicy.APPLICATION)
    app_id = apps.start(role, grace_s=0.3)
    until(lambda: "will try again" in (apps.dir(app_id) / "supervisor.log").read_text())
    time.sleep(0.5)
    # A link to itself, which cannot be listed.
    (apps.dir(app_id) / "run/1/0-main/1").unlink()
    found = apps.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [replica.exit_code for replica in found.roles_statuses[0].replicas] == [0, 0]
    assert [apps.lines(app_id, k=k) for k in (0, 1)] == [["0\n", "1\n"]] * 2


def test_adopting_an_app_that_cannot_be_read_is_reported_as_unavailable(apps: Apps) -> None:
    app_id = apps.start(sh("sleep 0.5"), app_id="same")
    lock = apps.dir(app_id) / layout.LOCK
    until(lock.exists)
    kept = lock.rename(lock.with_name("kept"))
    lock.symlink_to(lock)
    # An error of this app, and not of the root.
    with pytest.raises(AppUnavailableError, match="was replaced"):
        apps.start(sh("sleep 0.5"), app_id="same")
    kept.replace(lock)

    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_apps_behind_a_link_are_refused(apps: Apps, tmp_path: Path) -> None:
    """A supervisor would find the leases in the directory that the link names, where no other app uses them."""
    (tmp_path / "big" / "apps").mkdir(parents=True)
    apps.root.mkdir()
    (apps.root / "apps").symlink_to(tmp_path / "big" / "apps")
    with pytest.raises(SchedulerRejectedError, match="make the root a link instead"):
        apps.start(sh("true"))
    shutil.rmtree(apps.root)
    apps.root.symlink_to(tmp_path / "big")

    assert apps.run(sh("true")).state is AppState.SUCCEEDED


def test_retry_does_not_cost_the_supervisor(apps: Apps) -> None:
    """Without a supervisor the time limit is not enforced until the next poll."""
    app_id = apps.start(sh("test $LAUNCH_ATTEMPT = 1", max_retries=1, retry_policy=RetryPolicy.REPLICA))

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert (apps.dir(app_id) / "supervisor.log").read_text() == ""


def test_a_process_is_not_taken_for_a_later_one_with_its_number() -> None:
    assert processes.start_time(os.getpid()) == processes.start_time(os.getpid()) != ""
    assert processes.start_time(2**22 + 1) == ""
