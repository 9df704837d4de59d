"""A root that is away for a while, as a mount that is taken off: what apps do meanwhile is told when it is back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppState, RetryPolicy, SchedulerUnavailableError
from tests.support.local import Apps, command_lines_below, processes_below, sh, until


class Root:
    """A root that can be taken away and brought back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take_away(self) -> None:
        self.path.rename(self.path.with_name("away"))

    def bring_back(self) -> None:
        self.path.with_name("away").rename(self.path)


class Mount(Root):
    """The same by a mount: nothing but an empty directory is left in its place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.device = path.with_name("device")
        for directory in (self.device, path):
            directory.mkdir()
        self.bring_back()

    def take_away(self) -> None:
        # Lazily: as long as an app lives, it has files open there.
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)

    def bring_back(self) -> None:
        subprocess.run(["mount", "--bind", str(self.device), str(self.path)], check=True, capture_output=True)


@pytest.fixture(params=["renamed", "mounted"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    path = tmp_path / "root"
    if request.param == "renamed":
        yield Root(path)
        return
    try:
        mount = Mount(path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"only root can mount a directory: {error}")
    yield mount
    mount.take_away()


@pytest.fixture
def apps(root: Root) -> Iterator[Apps]:
    apps = Apps(create_scheduler("tests", root=str(root.path)), root.path)
    yield apps
    for row in apps.another().list():
        apps.another().cancel(row.app_id)
    until(lambda: not processes_below(root.path), 30)


def commands(apps: Apps) -> list[int]:
    return [pid for pid, line in command_lines_below(apps.root).items() if b"bare.py" not in line]


def kill_supervisor(apps: Apps, app_id: str) -> None:
    shim = layout.read_json(str(next(apps.dir(app_id).rglob("pid"))))["shim"]
    supervisor = int(Path(f"/proc/{shim}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not processes.is_locked(str(apps.dir(app_id) / layout.LOCK)))


def is_running(apps: Apps, app_id: str) -> Callable[[], bool]:
    return lambda: apps.lines(app_id) == ["up\n"]


@pytest.mark.parametrize("killed", [False, True])
def test_success_meanwhile_is_told(apps: Apps, root: Root, tmp_path: Path, killed: bool) -> None:
    """Also if nobody but the shim was there to see it; and it does not run once more."""
    app_id = apps.start(sh(f"echo up; sleep 1; echo ran >> {tmp_path}/ran; echo out", max_retries=1))
    until(is_running(apps, app_id))
    if killed:
        kill_supervisor(apps, app_id)
    root.take_away()
    until(lambda: not commands(apps))
    time.sleep(0.5)
    root.bring_back()
    found = apps.end(app_id)

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 0)
    assert found.roles_statuses[0].replicas[0].exit_code == 0
    assert apps.lines(app_id) == ["up\n", "out\n"]
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("killed", [False, True])
def test_exit_code_is_told(apps: Apps, root: Root, killed: bool) -> None:
    app_id = apps.start(sh("echo up; sleep 1; exit 3"), sh("exec sleep 330", "other"), grace_s=0.3)
    until(is_running(apps, app_id))
    if killed:
        kill_supervisor(apps, app_id)
    root.take_away()
    # Without a supervisor nobody stops the other one until somebody looks at the app.
    until(lambda: len(commands(apps)) == killed, 10)
    root.bring_back()
    found = apps.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "main/0 failed: exit code 3")


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
def test_retry_waits_until_the_root_is_back(apps: Apps, root: Root, policy: RetryPolicy) -> None:
    """Its command is told where to leave its result, and that place must be there; nothing is made in its stead."""
    script = 'echo $LAUNCH_ATTEMPT; sleep 1; [ $LAUNCH_ATTEMPT = 1 ] && echo 5 > "$LAUNCH_RESULT_PATH"'
    app_id = apps.start(sh(script, max_retries=1, retry_policy=policy))
    until(lambda: apps.lines(app_id) == ["0\n"])
    root.take_away()
    until(lambda: not commands(apps))
    time.sleep(1)
    assert not commands(apps)
    assert not root.path.exists() or not [*root.path.iterdir()]
    root.bring_back()
    until(lambda: apps.scheduler.describe(app_id).num_restarts == 1)
    found = apps.end(app_id)

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert apps.lines(app_id) == ["0\n", "1\n"]
    assert apps.scheduler.result(app_id) == 5


def test_log_is_not_over_and_the_app_not_unknown(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower would stop, and the lines that come later would be lost."""
    app_id = apps.start(sh("echo up; sleep 0.5; echo out"))
    until(is_running(apps, app_id))
    cursor = apps.scheduler.read_logs(app_id, "main", 0).cursor
    root.take_away()
    with pytest.raises(SchedulerUnavailableError, match="is missing"):
        apps.scheduler.read_logs(app_id, "main", 0, cursor)
    root.bring_back()
    apps.end(app_id)

    def look_and_lose(app_id: str) -> bool:
        root.take_away()
        return True

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(apps.scheduler._records, "has_ended", look_and_lose)
        with pytest.raises(SchedulerUnavailableError, match="is missing"):
            apps.scheduler.read_logs(app_id, "main", 0, cursor)
    root.bring_back()
    assert [line.text for line in apps.scheduler.read_logs(app_id, "main", 0, cursor).lines] == ["out\n"]


def test_time_limit_is_kept(apps: Apps, root: Root) -> None:
    app_id = apps.start(sh("echo up; sleep 331"), grace_s=0.3, time_limit_s=2)
    until(is_running(apps, app_id))
    root.take_away()
    until(lambda: not commands(apps), 10)
    root.bring_back()
    found = apps.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "time limit of 2 s reached")


def test_another_root_in_its_place_is_left_alone(apps: Apps, root: Root) -> None:
    app_id = apps.start(sh("echo up; sleep 1; exit 5", max_retries=1))
    until(is_running(apps, app_id))
    root.take_away()
    intruder = create_scheduler("other", root=str(root.path))
    other = Apps(intruder, root.path)
    assert other.run(sh("true")).state is AppState.SUCCEEDED
    until(lambda: not commands(apps))
    time.sleep(0.5)

    assert [row.app_id for row in intruder.list()] != [app_id]
    assert app_id not in (root.path / layout.JOURNAL).read_text()
    subprocess.run(f"rm -rf {root.path}/*", shell=True, check=True)
    if not isinstance(root, Mount):
        root.path.rmdir()
    root.bring_back()
    assert apps.end(app_id).roles_statuses[0].replicas[0].exit_code == 5


def test_state_never_goes_back(apps: Apps, root: Root) -> None:
    """A look that finds the request, and then nothing more, has seen a root go away and not an app that waits."""
    app_id = apps.start(sh("echo up; sleep 3"))
    until(lambda: apps.scheduler.describe(app_id).state is AppState.RUNNING)
    seen = set()
    for _ in range(300):
        observer = apps.another()
        observer.list()
        root.take_away()
        try:
            seen.add(getattr(observer.describe(app_id), "state", "unknown"))
        except SchedulerUnavailableError:
            seen.add("unavailable")
        root.bring_back()

    assert seen <= {"unavailable", AppState.RUNNING, AppState.SUCCEEDED}
