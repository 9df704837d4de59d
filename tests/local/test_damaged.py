"""A program may replace the records of its own app; other apps of the root are not affected."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
import time
import traceback
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import processes
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.support.apps import until
from tests.support.local import lock_holder

pytestmark = pytest.mark.engine("local")


def write(name: str, text: str):
    return lambda app_dir: (app_dir / name).write_text(text)


def replace(name: str, make):
    def damage(app_dir: Path) -> None:
        (app_dir / name).unlink()
        make(app_dir / name)

    return damage


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 900_000_000)


DAMAGES = {
    "state is a list": write("state.json", "[]"),
    "state is another object": write("state.json", '{"final": 1}'),
    "state has no replicas": write("state.json", '{"final": true}'),
    "state is deep": write("state.json", "[" * 100_000),
    "state is a directory": replace("state.json", Path.mkdir),
    "state is a pipe": replace("state.json", os.mkfifo),
    "state is sparse": replace("state.json", sparse),
    "request is a list": write("app.json", "[]"),
    "request is empty": write("app.json", "{}"),
    "request has wrong fields": write("app.json", '{"app": {"x": 1}, "request": {}, "host": "", "boot_id": ""}'),
    "request is deep": write("app.json", "[" * 100_000),
    "request is open to others": lambda app_dir: (app_dir / "app.json").chmod(0o666),
    "directory is open to others": lambda app_dir: app_dir.chmod(0o777),
}


@pytest.fixture
def apps(tmp_path):
    """A scheduler, and two apps that have ended."""
    scheduler = create_scheduler("test", root=str(tmp_path / "root"))
    role = Role("main", str(tmp_path), entrypoint="sh", args=["-c", "echo line"])
    ids = [scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {})) for _ in range(2)]
    until(lambda: all(is_terminal(found.state) for found in scheduler.describe_many(ids).values() if found), 60, 0.1)
    yield scheduler, *ids
    scheduler.close()
    shutil.rmtree(tmp_path / "root", ignore_errors=True)


def without_damaged(scheduler, damaged: str, other: str):
    """Poll both, and again only the other one if the error names just the damaged one."""
    try:
        return scheduler.describe_many([damaged, other])
    except AppUnavailableError as error:
        if set(error.texts) != {damaged}:
            raise
    return scheduler.describe_many([other])


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_an_error_of_its_app(apps, tmp_path, damage, request):
    """Connection test, sweep and clean-up recipes use the list."""
    scheduler, damaged, other = apps
    damage(tmp_path / "root" / "apps" / damaged)

    rows = {row.app_id: row.state for row in scheduler.list()}
    assert rows.keys() == {damaged, other}
    assert rows[other] is AppState.SUCCEEDED
    # The next supervisor replaces a state that is not a valid document.
    is_lost = "request" in request.node.callspec.id or "open" in request.node.callspec.id
    assert not is_lost or rows[damaged] is AppState.UNKNOWN
    found = without_damaged(scheduler, damaged, other)
    assert found[other].state is AppState.SUCCEEDED
    assert [line.text for line in scheduler.read_logs(other, "main", 0).lines] == ["line\n"]


def test_a_damaged_record_names_its_cure(apps, tmp_path):
    scheduler, damaged, _ = apps
    write("app.json", "[]")(tmp_path / "root" / "apps" / damaged)

    for call in (scheduler.describe, scheduler.result, scheduler.cancel):
        with pytest.raises(AppUnavailableError, match=r"is damaged: .*; delete the app; its files are in '/"):
            call(damaged)


def as_a_user(call, uid: int = 65534) -> None:
    """Call it in a process without the rights of root, which may read everything."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            call()
            code = 0
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user here")
def test_a_directory_that_its_program_has_closed_concerns_no_other_app(apps, tmp_path):
    """Root can read everything; other users cannot."""
    _, damaged, other = apps
    root = tmp_path / "root"
    for path in [root, *root.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    (root / "apps" / damaged).chmod(0)
    for path in [tmp_path, *tmp_path.parents]:
        path.chmod(path.stat().st_mode | 0o711) if path.stat().st_uid == 0 and not path.stat().st_mode & 1 else None

    def check() -> None:
        scheduler = create_scheduler("test", root=str(root))
        assert {row.app_id: row.state for row in scheduler.list()} == {
            damaged: AppState.UNKNOWN,
            other: AppState.SUCCEEDED,
        }
        assert without_damaged(scheduler, damaged, other)[other].state is AppState.SUCCEEDED

    try:
        as_a_user(check)
    finally:
        (root / "apps" / damaged).chmod(0o700)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/full")])
@pytest.mark.parametrize("name", ["journal", "swept"])
def test_what_stands_in_place_of_a_file_of_the_root_stops_no_launch(apps, tmp_path, name, make):
    """Programs run as the same user, and a file that they put there could block a launch for ever."""
    scheduler, app_id, _ = apps
    path = tmp_path / "root" / name
    if path.exists():
        path.unlink()
    make(path)
    role = Role("main", str(tmp_path), entrypoint="true")
    found: list[object] = []

    def launch() -> None:
        found.append(scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {})))
        scheduler.delete(app_id)

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive(), "it hangs"
    until(lambda: is_terminal(scheduler.describe(found[0]).state), 60, 0.1)
    assert scheduler.describe(app_id) is None


def test_a_journal_that_grows_without_an_end_is_not_read(apps, tmp_path):
    """A program may write any amount into it."""
    scheduler, app_id, _ = apps
    scheduler.describe(app_id)
    journal = tmp_path / "root" / "journal"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.truncate(journal, 2**40)

    assert scheduler.describe(app_id).state is AppState.SUCCEEDED
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 100 * 2**20


LOST = {
    **DAMAGES,
    "request is missing": lambda app_dir: (app_dir / "app.json").unlink(),
    "request is a link": replace("app.json", lambda path: path.symlink_to("/etc/hostname")),
    "request is a directory": replace("app.json", Path.mkdir),
    "lock is a directory": lambda app_dir: (write("app.json", "[")(app_dir), replace("lock", Path.mkdir)(app_dir)),
    "directory is a link": lambda app_dir: (app_dir.rename(f"{app_dir}.moved"), app_dir.symlink_to("/etc")),
    "directory is a pipe": lambda app_dir: (app_dir.rename(f"{app_dir}.moved"), os.mkfifo(app_dir)),
}


def gone(path: Path) -> bool:
    deadline = time.monotonic() + 30
    while os.path.lexists(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not os.path.lexists(path)


@pytest.mark.parametrize("damage", LOST.values(), ids=LOST)
def test_a_damaged_app_can_be_deleted_by_its_id(apps, tmp_path, damage):
    scheduler, damaged, other = apps
    app_dir = tmp_path / "root" / "apps" / damaged
    damage(app_dir)

    scheduler.delete(damaged)

    assert gone(app_dir)
    assert scheduler.describe(damaged) is None
    assert scheduler.describe(other).state is AppState.SUCCEEDED
    assert Path("/etc/hostname").exists()


def replica_of(app_dir: Path) -> int:
    """Return the pid of the program of the first replica, once it runs."""
    deadline = time.monotonic() + 30
    marker = f"{processes.MARKER}={app_dir}/".encode()
    while not (found := processes.marked(marker)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found[0]


@pytest.mark.parametrize("has_supervisor", [True, False])
@pytest.mark.parametrize("damage", [write("app.json", "["), DAMAGES["directory is open to others"]], ids=["[", "777"])
def test_the_processes_of_a_damaged_app_end_when_it_is_deleted(apps, tmp_path, damage, has_supervisor):
    scheduler, *_ = apps
    role = Role("main", str(tmp_path), entrypoint="sleep", args=["300"])
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {}))
    app_dir = tmp_path / "root" / "apps" / app_id
    pid = replica_of(app_dir)
    if not has_supervisor:
        os.kill(lock_holder(app_dir / "lock") or 0, signal.SIGKILL)
        until(lambda: lock_holder(app_dir / "lock") is None)
    damage(app_dir)

    create_scheduler("test", root=str(tmp_path / "root")).delete(app_id)

    assert gone(app_dir)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_old_damaged_apps_are_swept(apps, tmp_path):
    """A program could otherwise keep its files for ever."""
    scheduler, damaged, other = apps
    root = tmp_path / "root"
    write("state.json", "[]")(root / "apps" / damaged)
    os.utime(root / "apps" / damaged / "state.json", (1, 1))
    (root / "swept").unlink(missing_ok=True)

    scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [Role("main", str(tmp_path), entrypoint="true")]), {}))

    assert gone(root / "apps" / damaged)
    assert scheduler.describe(other).state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    "roles", ["1", "[1]", "[{}]", '[{"replicas": 1}]', '[{"replicas": [{}]}]', '[{"replicas": [], "x": 1}]']
)
def test_a_damaged_request_is_an_error_of_its_app(apps, tmp_path, roles):
    """The trigger reads it for the secrets of the app."""
    scheduler, damaged, _ = apps
    path = tmp_path / "root" / "apps" / damaged / "app.json"
    document = json.loads(path.read_text())
    document["request"]["roles"] = json.loads(roles)
    path.write_text(json.dumps(document))

    with pytest.raises(AppUnavailableError, match="is damaged"):
        scheduler.describe_native(damaged)


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user here")
def test_a_directory_that_its_program_has_closed_can_be_deleted(apps, tmp_path):
    _, damaged, _ = apps
    root = tmp_path / "root"
    inner = root / "apps" / damaged / "run" / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for path in [root, *root.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    inner.parent.chmod(0)
    (root / "apps" / damaged).chmod(0)
    for path in [tmp_path, *tmp_path.parents]:
        path.chmod(path.stat().st_mode | 0o711) if path.stat().st_uid == 0 and not path.stat().st_mode & 1 else None

    as_a_user(lambda: create_scheduler("test", root=str(root)).delete(damaged))

    assert gone(root / "apps" / damaged)
    until(lambda: not list((root / "building").iterdir()))


FOR_SUPERVISOR = {
    "ports are a list": write("ports.json", "[1]"),
    "ports are texts": write("ports.json", '{"LAUNCH_PORT_MAIN_X": "../../apps/x/submit"}'),
    "ports are too many": write("ports.json", json.dumps({f"P{port}": port for port in range(20_000, 32_000)})),
    "gpus are a list": write("gpus.json", "[1]"),
    "gpus are others": write("gpus.json", '{"main/0": ["../ports/20000"]}'),
    "exit is a list": write("run/0/0-main/0/0/exit", "[1]"),
    "exit is another object": write("run/0/0-main/0/0/exit", '{"code": 0}'),
    "too many attempts": lambda app_dir: [(app_dir / f"run/{n}x").touch() for n in range(30_001)],
}


def without_supervisor(app_dir: Path) -> None:
    os.kill(lock_holder(app_dir / "lock") or 0, signal.SIGKILL)
    until(lambda: lock_holder(app_dir / "lock") is None)


@pytest.mark.parametrize("damage", FOR_SUPERVISOR.values(), ids=FOR_SUPERVISOR)
def test_an_app_whose_supervisor_cannot_use_its_files_is_ended(apps, tmp_path, damage):
    """Each poll would start another supervisor, and no limit or cancel would have an effect."""
    scheduler, _, other = apps
    role = Role("main", str(tmp_path), entrypoint="sleep", args=["300"], port_map={"x": 0})
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {}))
    app_dir = tmp_path / "root" / "apps" / app_id
    pid = replica_of(app_dir)
    without_supervisor(app_dir)
    damage(app_dir)

    until(lambda: is_terminal(scheduler.describe(app_id).state))

    assert scheduler.describe(app_id).state is AppState.FAILED
    assert "are damaged (" in scheduler.describe(app_id).msg
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert scheduler.describe(other).state is AppState.SUCCEEDED
    again = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {}))
    assert replica_of(tmp_path / "root" / "apps" / again), "its ports are free"
    for one in (again, app_id):
        scheduler.delete(one)
        until(lambda one=one: scheduler.describe(one) is None)


def test_an_attempt_that_its_predecessor_has_made_ends_the_app(apps, tmp_path):
    scheduler, *_ = apps
    make = "d=${TORCHELASTIC_ERROR_FILE%/*}; mkdir ${d%/*}/1; touch ${d%/*}/1/started; echo [1] >${d%/*}/1/exit; exit 1"
    role = Role("main", str(tmp_path), entrypoint="sh", args=["-c", make], max_retries=1)
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {}))

    until(lambda: is_terminal(scheduler.describe(app_id).state))

    assert scheduler.describe(app_id).state is AppState.FAILED


def test_a_program_that_replaces_the_pid_of_its_shim_can_be_cancelled(apps, tmp_path):
    scheduler, *_ = apps
    role = Role("main", str(tmp_path), entrypoint="sleep", args=["300"])
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {"grace_s": 0}))
    app_dir = tmp_path / "root" / "apps" / app_id
    pid = replica_of(app_dir)
    without_supervisor(app_dir)
    write("run/0/0-main/0/0/pid", '{"shim": true, "start": "", "at": 1.0}')(app_dir)

    scheduler.cancel(app_id)

    until(lambda: is_terminal(scheduler.describe(app_id).state))
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes a user without other processes here")
@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_a_pid_that_means_many_processes_is_not_signalled(pid):
    """As a pid, -1 means all processes of the user, in all apps."""

    def call() -> None:
        victim = os.fork()
        if victim == 0:
            time.sleep(30)
            os._exit(0)
        os.setpgid(victim, os.getpgrp())
        is_sent = processes.send_if_same(pid, "", signal.SIGTERM)
        time.sleep(0.2)
        ended, _ = os.waitpid(victim, os.WNOHANG)
        os.kill(victim, signal.SIGKILL)
        assert (is_sent, ended) == (False, 0)

    as_a_user(call, 64_987)
