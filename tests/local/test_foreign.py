"""Files that another user may have written are refused before they are read or started; our own are accepted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import bare, layout
from airflow_provider_launch.specs import AppDef, AppState, InvalidAppError, SchedulerRejectedError
from tests.support.apps import until
from tests.support.local import Apps, processes_below, sh

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def planted(apps: Apps, app_id: str = "evil") -> Path:
    """Put an app into the root like a user with write access, and return the file that it would write when it runs."""
    made = apps.root / "it-ran"
    donor = apps.start(sh("true"))
    apps.end(donor)
    shutil.copytree(apps.dir(donor), apps.dir(app_id))
    shutil.rmtree(apps.dir(app_id) / "run")
    (apps.dir(app_id) / layout.STATE).unlink()
    document = json.loads((apps.dir(app_id) / layout.APP).read_text())
    document["request"]["app_id"] = app_id
    document["request"]["roles"][0]["replicas"][0]["args"] = ["-c", f"touch {made}"]
    (apps.dir(app_id) / layout.APP).write_text(json.dumps(document))
    return made


PLACES = [
    pytest.param(".", id="root"),
    pytest.param("apps", id="apps"),
    pytest.param("apps/evil", id="directory"),
    pytest.param("apps/evil/app.json", id="request"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", [pytest.param("owner", marks=as_root), "mode"])
def test_what_another_user_may_write_is_never_run(apps: Apps, place: str, how: str) -> None:
    """The creator of a shared root, or a user who may write it, could run programs as the worker's user."""
    made = planted(apps)
    path = apps.root / place
    before = path.stat()
    os.chown(path, NOBODY, NOBODY) if how == "owner" else path.chmod(before.st_mode | stat.S_IWOTH)
    try:
        other = apps.another()
        wanted = "belongs to uid 65534" if how == "owner" else "other users may write"
        if place not in {".", "apps"}:
            # An untrusted app is not an error of the others.
            rows = [(row.state, row.name) for row in other.list() if row.app_id == "evil"]
            assert rows == [(AppState.UNKNOWN, "")]
        for ask in (
            # An app can be deleted, because nothing in it is read.
            *([other.list, lambda: other.delete("evil")] if place in {".", "apps"} else []),
            lambda: other.describe("evil"),
            lambda: other.cancel("evil"),
            lambda: other.result("evil"),
            lambda: other.read_logs("evil", "main", 0),
        ):
            with pytest.raises(SchedulerRejectedError, match=wanted):
                ask()
        if place in {".", "apps"}:
            with pytest.raises(SchedulerRejectedError, match=wanted):
                other.schedule(other.submit_dryrun(AppDef("new", [sh("true")]), {}))

        # Also if an older launcher, or a script of a user, starts it.
        command = [sys.executable, "-I", "-S", bare.__file__, str(apps.dir("evil"))]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        until(lambda: not processes_below(apps.root))
        assert not (apps.dir("evil") / "run").exists()
    finally:
        os.chown(path, before.st_uid, before.st_gid)
        path.chmod(before.st_mode)
    assert not made.exists()
    shutil.rmtree(apps.dir("evil"))


def test_an_app_that_is_followed_is_refused_once_another_user_may_write_it(apps: Apps) -> None:
    """Its roles are cached, so that its request is not read again."""
    app_id = apps.start(sh("echo fine; sleep 300"))
    until(lambda: apps.scheduler.read_logs(app_id, "main", 0).lines)
    apps.dir(app_id).chmod(0o777)

    with pytest.raises(SchedulerRejectedError, match="other users may write"):
        apps.scheduler.read_logs(app_id, "main", 0)
    apps.dir(app_id).chmod(0o700)


@pytest.mark.parametrize("place", ["apps/evil", "apps/evil/app.json"])
def test_what_lies_behind_a_link_is_never_run(apps: Apps, tmp_path: Path, place: str) -> None:
    planted(apps)
    path = apps.root / place
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SchedulerRejectedError, match="is a link"):
        apps.another().describe("evil")
    path.unlink()
    shutil.rmtree(apps.dir("evil"), ignore_errors=True)


@as_root
def test_a_root_behind_the_link_of_another_user_is_refused(apps: Apps, tmp_path: Path) -> None:
    apps.end(apps.start(sh("true")))
    link = tmp_path / "link"
    link.symlink_to(apps.root)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    from airflow_provider_launch.schedulers.local.scheduler import create_scheduler

    with pytest.raises(SchedulerRejectedError, match=r"the link .* belongs to uid 65534"):
        create_scheduler("x", root=str(link)).list()
    os.chown(link, 0, 0, follow_symlinks=False)
    assert len(create_scheduler("x", root=str(link)).list()) == 1


def test_nobody_else_can_read_what_an_app_leaves_whatever_the_umask(tmp_path: Path) -> None:
    """The supervisor inherits the umask of the worker; app.json has the values of variables."""
    script = (
        "import os, sys, time; os.umask(0)\n"
        "from airflow_provider_launch.schedulers.local.scheduler import create_scheduler\n"
        "from airflow_provider_launch.specs import AppDef, Role, is_terminal\n"
        "s = create_scheduler('x', root=sys.argv[1])\n"
        "role = Role('r', '', entrypoint='sh', args=['-c', 'echo 1 >$LAUNCH_RESULT_PATH; exit 3'], max_retries=1,\n"
        "            port_map={'p': 0})\n"
        "a = s.schedule(s.submit_dryrun(AppDef('a', [role]), {}))\n"
        "while not is_terminal(s.describe(a).state): time.sleep(0.1)\n"
    )
    root = tmp_path / "made" / "on" / "the" / "way"
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, timeout=60)

    wide = {
        str(path.relative_to(root)): oct(path.lstat().st_mode)
        for path in [root, *root.rglob("*")]
        if not path.is_symlink() and path.lstat().st_mode & 0o077 and path.name != "result"
    }
    assert wide == {}, "only the app's own files follow its umask"
    assert not (tmp_path / "made").stat().st_mode & 0o022
    assert {path.name for path in root.rglob("*")} >= {"app.json", "state.json", "stdout", "swept", "journal"}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    # A name of at most 108 bytes.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def link_to_a_secret(path: Path) -> None:
    secret = path.parent / "secret"
    secret.write_text('"hunter2"\n')
    path.symlink_to(secret)


@pytest.mark.parametrize("make", [fifo, unix_socket, link_to_a_secret])
@pytest.mark.parametrize("name", ["stdout", "stderr", "times", "result", "error.json"])
def test_no_file_of_an_app_stops_its_observers(apps: Apps, name: str, make: Callable[[Path], None]) -> None:
    """One open() that blocks under the scheduler's lock would stop all apps of the connection."""
    app_id = apps.start(sh("echo fine; echo bad >&2; exit 1"))
    apps.end(app_id)
    path = Path(layout.attempt_dir(str(apps.dir(app_id)), 0, layout.role_dir(0, "main"), 0, 0)) / name
    path.unlink(missing_ok=True)
    make(path)

    def too_long(*_: object) -> None:
        raise AssertionError("an observer waits for a file")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    try:
        other = apps.another()
        found = other.describe(app_id)
        assert found is not None
        assert found.state is AppState.FAILED
        lines = [line.text for line in other.read_logs(app_id, "main", 0).lines]
        assert [*other.list()] != []
        if name == "result":
            with pytest.raises(InvalidAppError, match="not a regular file"):
                other.result(app_id)
        else:
            assert other.result(app_id) is None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "hunter2" not in str(found) + str(lines)
    assert lines == {"stdout": ["bad\n"], "stderr": ["fine\n"]}.get(name, ["fine\n", "bad\n"])
