"""A root that is missing for a while, like an unmounted directory: later the state of the apps is correct."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.local import layout, log_files, scheduler
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppState, RetryPolicy, SchedulerUnavailableError, UnknownAppException
from tests.support.apps import until
from tests.support.local import Apps, commands, kill_supervisor, processes_below, sh


class Root:
    """A root that can be taken away and brought back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take_away(self) -> None:
        self.path.rename(self.path.with_name("away"))

    def bring_back(self) -> None:
        self.path.with_name("away").rename(self.path)

    def is_left_alone(self) -> bool:
        """Return whether nothing was created in its place."""
        return not self.path.exists() or not [*self.path.iterdir()]

    def remove_another(self) -> None:
        """Remove files that were created in its place."""
        shutil.rmtree(self.path)

    def files(self) -> Path:
        """Return where its files are while it is missing."""
        return self.path.with_name("away")


class Mount(Root):
    """The same with a mount: only an empty directory is left in its place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.device = path.with_name("device")
        for directory in (self.device, path):
            directory.mkdir()
        self.bring_back()

    def take_away(self) -> None:
        # A lazy unmount, because an app has open files there as long as it lives.
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)

    def bring_back(self) -> None:
        subprocess.run(["mount", "--bind", str(self.device), str(self.path)], check=True, capture_output=True)

    def remove_another(self) -> None:
        super().remove_another()
        self.path.mkdir()

    def files(self) -> Path:
        return self.device


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


def is_running(apps: Apps, app_id: str) -> Callable[[], bool]:
    return lambda: apps.lines(app_id) == ["up\n"]


@pytest.mark.parametrize("killed", [False, True])
def test_success_meanwhile_is_reported(apps: Apps, root: Root, tmp_path: Path, killed: bool) -> None:
    """Also if only the shim was there to see it; and it does not run again."""
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
def test_exit_code_is_shown(apps: Apps, root: Root, killed: bool) -> None:
    app_id = apps.start(sh("echo up; sleep 1; exit 3"), sh("exec sleep 330", "other"), grace_s=0.3)
    until(is_running(apps, app_id))
    if killed:
        kill_supervisor(apps, app_id)
    root.take_away()
    # Without a supervisor the other one is stopped only at the next poll of the app.
    until(lambda: len(commands(apps)) == killed, 10)
    root.bring_back()
    found = apps.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "main/0 failed: exit code 3")


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
def test_retry_waits_until_the_root_is_back(apps: Apps, root: Root, policy: RetryPolicy) -> None:
    """Its command gets the path of its result, and that directory must exist; nothing is created in its place."""
    script = 'echo $LAUNCH_ATTEMPT; sleep 1; [ $LAUNCH_ATTEMPT = 1 ] && echo 5 > "$LAUNCH_RESULT_PATH"'
    app_id = apps.start(sh(script, max_retries=1, retry_policy=policy))
    until(lambda: apps.lines(app_id) == ["0\n"])
    root.take_away()
    until(lambda: not commands(apps))
    time.sleep(1)
    assert not commands(apps)
    assert root.is_left_alone()
    root.bring_back()
    until(lambda: apps.scheduler.describe(app_id).num_restarts == 1)
    found = apps.end(app_id)

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert apps.lines(app_id) == ["0\n", "1\n"]
    assert apps.scheduler.result(app_id) == 5


def test_log_is_not_over_and_the_app_not_unknown(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower would stop, and later lines would be lost."""
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

    assert app_id not in [row.app_id for row in intruder.list()]
    assert app_id not in (root.path / layout.JOURNAL).read_text()
    root.remove_another()
    root.bring_back()
    assert apps.end(app_id).roles_statuses[0].replicas[0].exit_code == 5


def lose(owner: object, name: str, root: Root, meanwhile: pytest.MonkeyPatch) -> None:
    """Take the root away when `owner` is called next, and not again."""
    call = getattr(owner, name)

    def look_and_lose(*args: Any, **kwargs: Any) -> Any:
        meanwhile.setattr(owner, name, call)
        root.take_away()
        return call(*args, **kwargs)

    meanwhile.setattr(owner, name, look_and_lose)


def test_state_never_goes_back(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that finds the request and then nothing has seen a root disappear, and not an app that waits."""
    app_id = apps.start(sh("echo up; sleep 3"))
    until(lambda: apps.scheduler.describe(app_id).state is AppState.RUNNING)
    observer = apps.another()
    lose(observer._records, "state", root, monkeypatch)
    with pytest.raises(SchedulerUnavailableError, match="is missing"):
        observer.describe(app_id)
    root.bring_back()

    assert observer.describe(app_id).state is AppState.RUNNING


def test_another_root_is_not_asked_for_the_apps_of_the_first(apps: Apps, root: Root) -> None:
    """It would report that the app does not exist, so the caller would start a second copy, or cancel nothing."""
    app_id = apps.start(sh("echo up; exec sleep 332"), grace_s=0.3, app_id="same")
    until(is_running(apps, app_id))
    cursor = apps.scheduler.read_logs(app_id, "main", 0).cursor
    root.take_away()
    newcomer = Apps(apps.another(), root.path)
    assert newcomer.run(sh("true")).state is AppState.SUCCEEDED
    for ask in (
        lambda: apps.scheduler.describe(app_id),
        lambda: apps.scheduler.read_logs(app_id, "main", 0, cursor),
        lambda: apps.scheduler.cancel(app_id),
        lambda: apps.scheduler.delete(app_id),
        lambda: apps.start(sh("echo up; exec sleep 332"), grace_s=0.3, app_id=app_id),
        apps.scheduler.list,
    ):
        # A response is cached for a second, and correct: the app lives.
        until(lambda: apps.scheduler._observed.get(app_id) is None)
        with pytest.raises(SchedulerUnavailableError, match="replaced by another directory"):
            ask()
    assert newcomer.scheduler.describe(app_id) is None
    assert len(commands(apps)) == 1
    root.remove_another()
    root.bring_back()
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED


@pytest.mark.parametrize("wish", ["cancel", "delete"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_request_is_not_dropped(
    apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch, wish: str, is_back: bool
) -> None:
    """Without an error the caller believes that the app ends."""
    app_id = apps.start(sh("echo up; sleep 333"), grace_s=0.3)
    until(is_running(apps, app_id))
    look = apps.scheduler._records.app

    def find_it_back(app_id: str) -> Any:
        if not (root.path / "apps").exists():
            root.bring_back()
        return look(app_id)

    with monkeypatch.context() as meanwhile:
        lose(apps.scheduler._records, "mark", root, meanwhile)
        if is_back:
            meanwhile.setattr(apps.scheduler._records, "app", find_it_back)
        with pytest.raises(SchedulerUnavailableError, match="was missing" if is_back else "is missing"):
            getattr(apps.scheduler, wish)(app_id)
    if not is_back:
        root.bring_back()
    getattr(apps.scheduler, wish)(app_id)

    until(lambda: not processes_below(root.path))


def test_result_is_not_lost(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = apps.start(sh('echo 5 > "$LAUNCH_RESULT_PATH"'))
    apps.end(app_id)
    lose(scheduler, "read_result", root, monkeypatch)
    with pytest.raises(SchedulerUnavailableError, match="is missing"):
        apps.scheduler.result(app_id)
    root.bring_back()

    assert apps.scheduler.result(app_id) == 5
    with pytest.raises(UnknownAppException):
        apps.scheduler.result("other")


def test_text_of_a_failure_is_not_lost(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = apps.start(sh('echo boom > "$TORCHELASTIC_ERROR_FILE"; exit 1'))
    apps.end(app_id)
    # Another one, which has used the root and not read the text.
    scheduler = create_scheduler("tests", root=apps.scheduler.root)
    scheduler.list()
    lose(log_files, "read_reply", root, monkeypatch)
    with pytest.raises(SchedulerUnavailableError, match="is missing"):
        scheduler.describe(app_id)
    root.bring_back()

    assert scheduler.describe(app_id).structured_error_msg == "boom\n"


@pytest.mark.parametrize("step", ["remove", "commit", "write_json"])
def test_nothing_is_made_in_its_place(apps: Apps, root: Root, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A new root would prevent the mount of the old one, and be used instead."""
    app_id = apps.start(sh("true"))
    apps.end(app_id)
    with monkeypatch.context() as meanwhile:
        lose(layout if step == "write_json" else apps.scheduler._records, step, root, meanwhile)
        with pytest.raises(SchedulerUnavailableError, match="is missing"):
            apps.scheduler.delete(app_id) if step == "remove" else apps.start(sh("true"))
    assert root.is_left_alone()
    root.bring_back()
    assert apps.run(sh("true")).state is AppState.SUCCEEDED
    apps.scheduler.delete(app_id)

    assert apps.scheduler.describe(app_id) is None


def test_supervisor_ends_where_the_root_is_removed_while_away(apps: Apps, root: Root) -> None:
    """Otherwise it would wait for ever to continue."""
    app_id = apps.start(sh("echo up; sleep 1; exit 3", max_retries=1))
    until(is_running(apps, app_id))
    root.take_away()
    state = root.files() / "apps" / app_id / layout.STATE
    until(lambda: "exists again" in layout.read_json(str(state))["msg"])
    shutil.rmtree(root.files() / "apps")
    until(lambda: not processes_below(root.path), 5)
    (root.files() / "apps").mkdir()
    root.bring_back()

    assert apps.another().describe(app_id) is None


def test_a_place_that_must_not_be_entered_is_a_missing_root(apps: Apps, root: Root) -> None:
    """An empty mount point is often closed; another root would not help the observers of the app."""
    app_id = apps.start(sh("true"))
    apps.end(app_id)
    root.take_away()
    root.path.mkdir(exist_ok=True)
    root.path.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may enter any directory
    try:
        with pytest.raises(SchedulerUnavailableError, match="is missing"):
            apps.scheduler.describe(app_id)
    finally:
        os.seteuid(user)
        root.remove_another()
    root.bring_back()

    assert apps.scheduler.describe(app_id).state is AppState.SUCCEEDED
