"""Errors of the file system: which of them are reported, and what is left after them; no app runs here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.local import layout, leases, log_files, observed, processes, safe_files
from airflow_provider_launch.schedulers.local.log_times import LogTimes
from airflow_provider_launch.schedulers.local.records import Records
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.util.untrusted import UntrustedError
from tests.local.test_damaged import as_a_user
from tests.support.apps import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user here")
NOBODY = 65534
APP = {"app": {"name": "a", "roles": []}, "host": "h", "boot_id": "b", "created": 1.0,
       "request": {"name": "a", "metadata": {}, "roles": [], "spec_hash": "x"}}  # fmt: skip


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let each write of this process fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **_: Any) -> Any:
        raise OSError(code, os.strerror(code), str(args[0]) if args else None)

    return fail


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def no_reports() -> Iterator[None]:
    """Ignore the signal of the kernel's reports about files."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """A directory that all users may enter, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="launch-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path / "root"))


def launched(records: Records, app_id: str = "app") -> Path:
    records.commit(app_id, APP)
    assert records.app(app_id) is not None
    return Path(records.dir(app_id))


# ---- documents -------------------------------------------------------------------------------------------------------


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("1")
    with pytest.raises(OSError, match="File too large"), full_disk():
        layout.write_json(str(path), "x")

    assert path.read_text() == "1"
    assert [*tmp_path.iterdir()] == [path]


def test_the_error_of_a_write_and_not_of_its_clean_up_is_raised(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    replace = os.replace

    def replace_too_late(*paths: str) -> None:
        shutil.rmtree(folder)
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_too_late)
    with pytest.raises(FileNotFoundError) as raised:
        layout.write_json(f"{folder}/state.json", 1)
    assert raised.value.filename2 == f"{folder}/state.json"


@pytest.mark.parametrize("make", [lambda _path: None, os.mkfifo, lambda path: path.write_text("[")])
def test_a_document_that_does_not_exist_is_none(tmp_path: Path, make) -> None:
    make(tmp_path / "x")
    assert layout.read_json(str(tmp_path / "x")) is None
    assert layout.numbers_in(str(tmp_path / "missing")) == []


def test_only_a_file_that_certainly_does_not_exist_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")

    assert layout.is_gone(f"{tmp_path}/missing") is True
    assert layout.is_gone(f"{tmp_path}/file/below") is True
    assert layout.is_gone(f"{tmp_path}/link") is False
    assert layout.is_gone(f"{tmp_path}/file") is False


def test_without_an_id_of_the_boot_it_is_empty(monkeypatch) -> None:
    monkeypatch.setattr(layout, "open", failing(errno.ENOENT), raising=False)
    assert layout.boot_id() == ""


# ---- removals --------------------------------------------------------------------------------------------------------


def test_an_app_is_removed_once_and_creates_nothing(tmp_path: Path) -> None:
    app = tmp_path / "apps" / "a"
    assert layout.remove_app(str(tmp_path), str(app)) is False
    assert [*tmp_path.iterdir()] == []
    app.mkdir(parents=True)

    assert layout.remove_app(str(tmp_path), str(app)) is True
    assert layout.remove_app(str(tmp_path), str(app)) is False
    assert (tmp_path / "journal").read_text() == "a DELETED\n"


def test_an_app_is_removed_although_its_files_cannot_be_removed_now(tmp_path: Path, monkeypatch) -> None:
    """A later sweep removes them."""
    app = tmp_path / "apps" / "a"
    app.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))  # no shell

    assert layout.remove_app(str(tmp_path), str(app)) is True
    assert not app.exists()
    assert len([*(tmp_path / "building").iterdir()]) == 1


def test_an_app_is_removed_although_the_journal_cannot_be_written(tmp_path: Path) -> None:
    app = tmp_path / "apps" / "a"
    app.mkdir(parents=True)
    with full_disk():
        found = layout.discard_app(str(tmp_path), str(app))

    assert found is not None
    assert not app.exists()


def test_trees_are_removed_where_ended_children_are_not_waited_for(tmp_path: Path) -> None:
    """A program that embeds the launcher may ignore SIGCHLD."""
    (tmp_path / "old").mkdir()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        layout.remove_trees([f"{tmp_path}/old"])
    finally:
        signal.signal(signal.SIGCHLD, before)
    until(lambda: not (tmp_path / "old").exists())


# ---- the journal -----------------------------------------------------------------------------------------------------


def test_a_journal_that_cannot_be_replaced_is_an_error_after_some_tries(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "journal").mkdir()
    tries: list[str] = []

    def fail(path: str, _to: str) -> None:
        tries.append(path)
        assert len(tries) < 10
        raise OSError(errno.EBUSY, "busy", path)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(safe_files.NotRegularError, match="not a regular file"):
        layout.append_journal(str(tmp_path), "a", "RUNNING")
    assert len(tries) == 3


def test_another_process_may_start_the_new_journal_first(tmp_path: Path, monkeypatch) -> None:
    assert layout._inode(f"{tmp_path}/journal") is None
    monkeypatch.setattr(layout, "_inode", lambda _path: 5)

    layout._start_new_journal(f"{tmp_path}/journal", 5)
    assert [*tmp_path.iterdir()] == []


def observing(tmp_path: Path) -> observed.Observed:
    """Return an observer that has cached an app and its roles."""
    found = observed.Observed(str(tmp_path), lambda _: True)
    (tmp_path / "journal").write_text("one RUNNING\n")
    found.forget_changed()
    found.keep("one", DescribeAppResponse("one"))
    found.keep_roles("one", [])
    found.forget_changed()
    assert (found.get("one") is not None, found.roles("one")) == (True, [])
    return found


def replaced(path: Path) -> None:
    path.unlink()
    path.with_name("other").write_text("x\n")
    path.with_name("other").rename(path)


@pytest.mark.parametrize("act", [Path.unlink, lambda path: [path.unlink(), os.mkfifo(path)], replaced])
def test_without_the_journal_no_cached_response_is_valid(tmp_path: Path, act) -> None:
    found = observing(tmp_path)
    act(tmp_path / "journal")
    found.forget_changed()

    assert found.get("one") is None
    assert (found.roles("one") is None) is (act is replaced)


@as_root
def test_a_closed_journal_is_a_missing_one(shared_path: Path) -> None:
    found = observing(shared_path)
    (shared_path / "journal").chmod(0)

    def check() -> None:
        found.forget_changed()
        assert found.get("one") is None

    as_a_user(check)


def test_a_response_that_is_larger_than_the_cache_is_not_cached(monkeypatch) -> None:
    monkeypatch.setattr(observed, "_KEPT_BYTES", 10)
    files = ((1, 1, 1), None)
    cache = observed.KeptResponses()
    cache.keep("a", observed.Kept(files, DescribeAppResponse("a")))

    assert cache.get("a", files) is None


# ---- opened files ----------------------------------------------------------------------------------------------------


def a_file(path: Path) -> None:
    path.write_text("mine")


def of_another_user(path: Path) -> None:
    os.mkfifo(path)
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("make", [a_file, os.mkfifo, pytest.param(of_another_user, marks=as_root)])
def test_a_bell_is_a_pipe_of_this_user(tmp_path: Path, make) -> None:
    make(tmp_path / "bell")
    before = (tmp_path / "bell").lstat()
    os.close(safe_files.open_fifo(str(tmp_path / "bell")))
    after = (tmp_path / "bell").lstat()

    assert stat.S_ISFIFO(after.st_mode)
    assert after.st_uid == os.geteuid()
    assert (after.st_ino == before.st_ino and after.st_ctime_ns == before.st_ctime_ns) is (make is os.mkfifo)


def bell_that_becomes_a_file(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkfifo", lambda name, _mode: Path(name).touch())
        with pytest.raises(safe_files.NotRegularError, match="not a FIFO"):
            safe_files.open_fifo(f"{path}/bell")


def refused_pipe(path: Path) -> None:
    os.mkfifo(path / "pipe")
    with pytest.raises(safe_files.NotRegularError):
        safe_files.open_regular(f"{path}/pipe")


def rung_bell(path: Path) -> None:
    bell = safe_files.open_fifo(f"{path}/bell")
    safe_files.wake_reader(f"{path}/bell")
    os.close(bell)


def checked_lock(path: Path) -> None:
    (path / "free").touch()
    assert processes.is_locked(f"{path}/free") is False
    assert processes.is_locked(f"{path}/missing") is False
    lock = processes.try_lock(f"{path}/taken")
    assert lock is not None
    assert processes.is_locked(f"{path}/taken") is True
    assert processes.try_lock(f"{path}/taken") is None
    os.close(lock)


def journal(path: Path) -> None:
    layout.append_journal(str(path), "a", "RUNNING")


def signalled(_path: Path) -> None:
    assert processes.send_if_same(os.getpid(), processes.start_time(os.getpid()), 0) is True
    assert processes.send_if_same(os.getpid(), "other", 0) is False


def marked_and_swept(path: Path) -> None:
    records = Records(str(path / "root"))
    records.commit("app", APP)
    assert records.mark("app", layout.CANCEL) is True
    records.sweep(0)
    assert (path / "root" / "swept").exists()


@pytest.mark.parametrize(
    "act",
    [bell_that_becomes_a_file, refused_pipe, rung_bell, checked_lock, journal, signalled, marked_and_swept],
)
def test_each_file_is_closed_again(tmp_path: Path, act: Callable[[Path], None]) -> None:
    """A triggerer runs for months; each lost descriptor of a poll would count."""
    before = open_files()
    act(tmp_path)
    assert open_files() == before


def test_the_first_descriptor_is_closed_too() -> None:
    """A daemon may have closed its input, so that 0 is the next free descriptor."""
    kept = os.dup(0)
    os.close(0)
    try:
        assert processes.send_if_same(os.getpid(), "other", 0) is False
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.mark.parametrize("refuse", [safe_files.refuse_foreign, safe_files.refuse_foreign_root])
def test_a_path_that_does_not_exist_is_not_foreign(tmp_path: Path, refuse) -> None:
    (tmp_path / "file").touch()
    refuse(f"{tmp_path}/missing")
    refuse(f"{tmp_path}/file/below")


def error_of_make_dirs(path: str) -> object:
    try:
        safe_files.make_dirs(path)
    except OSError as error:
        return type(error), error.filename
    except RecursionError:
        return RecursionError  # its report would take minutes
    return None


def test_directories_that_cannot_be_created_are_an_error(tmp_path: Path, monkeypatch) -> None:
    for _ in range(2):
        assert error_of_make_dirs(f"{tmp_path}/a/b/c") is None
    assert (tmp_path / "a/b/c").is_dir()
    (tmp_path / "file").touch()
    assert error_of_make_dirs(f"{tmp_path}/file") == (FileExistsError, f"{tmp_path}/file")
    assert error_of_make_dirs("") == (FileNotFoundError, "")
    monkeypatch.chdir(tmp_path / "a/b/c")
    (tmp_path / "a/b/c").rmdir()
    assert error_of_make_dirs("here") == (FileNotFoundError, "here")


# ---- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_reports")
def test_the_owner_of_a_lease_without_a_name_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "ports" / "20000.lock"
    assert leases._owner_in(str(path)) == ""
    path.parent.mkdir()
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert leases._owner_in(str(path)) == ""
        assert leases.port_owner(str(tmp_path), 20000) == "(unknown)"
    finally:
        os.close(fd)


def test_leases_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "gpus").touch()
    with pytest.raises(NotADirectoryError):
        leases.free_gpus(str(tmp_path), ["GPU-a"])


def test_a_lease_that_cannot_be_opened_now_is_not_replaced(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "20000.lock"
    path.touch()
    lock, errors = processes.try_lock, [OSError(errno.EMFILE, "too many")]

    def once(path: str) -> int | None:
        if errors:
            raise errors.pop()
        return lock(path)

    monkeypatch.setattr(processes, "try_lock", once)
    with pytest.raises(OSError, match="too many"):
        leases.Leases(str(tmp_path), str(tmp_path))._reserve(str(path))
    assert [*tmp_path.iterdir()] == [path]


def test_another_supervisor_may_replace_what_is_in_place_of_a_lease(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "20000.lock"
    path.symlink_to("x")
    rename = os.rename

    def too_late(old: str, new: str) -> None:
        path.unlink()
        rename(old, new)

    monkeypatch.setattr(os, "rename", too_late)
    assert leases.Leases(str(tmp_path), str(tmp_path))._reserve(str(path)) is True


# ---- files of a replica ----------------------------------------------------------------------------------------------


def attempt_of(tmp_path: Path) -> Path:
    path = Path(layout.attempt_dir(str(tmp_path), 0, "0-main", 0, 0))
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda _path: None,
        os.mkfifo,
        lambda path: path.write_text("[1]"),
        lambda path: path.write_text('{"x": 1}'),
        lambda path: path.write_text("["),
    ],
    ids=["missing", "pipe", "list", "other", "text"],
)
def test_an_attempt_without_a_sound_end_has_no_text_of_its_end(tmp_path: Path, make) -> None:
    make(attempt_of(tmp_path) / "exit")
    assert log_files.read_ending(str(tmp_path), "0-main", 0, 0) == ""
    assert log_files.read_ending(str(tmp_path), "0-main", 0, 1) == ""


def test_a_reply_that_is_not_a_file_is_none(tmp_path: Path) -> None:
    path = attempt_of(tmp_path)
    read = lambda: log_files.read_reply(str(tmp_path), "0-main", 0, (0, 0))  # noqa: E731 - short
    assert read() is None
    os.mkfifo(path / "error.json")
    assert read() is None
    shutil.rmtree(path)
    path.touch()
    assert read() is None


@as_root
def test_a_closed_reply_is_none(shared_path: Path) -> None:
    path = attempt_of(shared_path) / "error.json"
    path.touch(mode=0o600)

    def check() -> None:
        assert log_files.read_reply(str(shared_path), "0-main", 0, (0, 0)) is None

    as_a_user(check)


def test_a_result_that_is_not_a_file_names_its_cure(tmp_path: Path) -> None:
    path = attempt_of(tmp_path)
    read = lambda: log_files.read_result(str(tmp_path), "0-main", 0, (0, 0))  # noqa: E731 - short
    assert read() is None
    os.mkfifo(path / "result")
    with pytest.raises(InvalidAppError, match=r"not a regular file; write one JSON document"):
        read()


@pytest.mark.usefixtures("no_reports")
def test_an_index_on_a_full_disk_costs_only_the_times(tmp_path: Path) -> None:
    times = LogTimes(str(tmp_path))
    (tmp_path / "stdout").write_text("x\n")
    with full_disk():
        assert times.write() is True

    assert (tmp_path / "times").read_text() == ""


@pytest.mark.usefixtures("no_reports")
def test_a_file_system_without_reports_is_polled(tmp_path: Path) -> None:
    times = LogTimes(str(tmp_path))
    assert times._ask() is True
    os.close(times._folder)
    times._folder = times._file  # no directory

    assert times._ask() is False


# ---- processes -------------------------------------------------------------------------------------------------------


def ended_process() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_a_group_that_has_ended_is_not_an_error() -> None:
    pid = ended_process()

    assert processes.kill_all(pid, signal.SIGKILL, group=pid) == 0
    processes.send(pid, signal.SIGKILL)


def test_a_process_that_ends_before_its_signal_is_not_an_error(monkeypatch) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    start = processes.start_time(pid)

    def look_and_end(_pid: int) -> str:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return start

    monkeypatch.setattr(processes, "start_time", look_and_end)
    assert processes.send_if_same(pid, start, signal.SIGTERM) is True
    monkeypatch.undo()
    assert processes.send_if_same(pid, start, signal.SIGTERM) is False


@as_root
def test_processes_of_other_users_are_left_alone() -> None:
    """Their environment cannot be read, and no signal may be sent."""
    pid, group = os.getpid(), os.getpgrp()

    def check() -> None:
        assert processes.marked(b"NO_SUCH_VARIABLE=1") == []
        processes.send(pid, 0)
        processes.kill_all(os.getpid(), 0, group=group)

    as_a_user(check, 64_988)


def test_without_proc_there_are_no_processes_to_be_found(monkeypatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(os, "listdir", failing(errno.ENOENT))
    assert processes.descendants(1) == processes.children(1) == processes.marked(b"x") == []


# ---- records ---------------------------------------------------------------------------------------------------------


def test_a_root_without_apps_has_no_ids(records: Records) -> None:
    assert records.ids() == []
    assert records._read_id() is None
    assert Records._version(f"{__file__}/below") is Records._version("/missing") is None


@pytest.mark.parametrize(
    ("is_used", "error", "expected", "text"),
    [
        (True, OSError(errno.ENOENT, "gone"), SchedulerUnavailableError, "was missing for a moment; try again"),
        (True, OSError(errno.ENOSPC, "full"), SchedulerRejectedError, "cannot write .*: full; free or choose another"),
        (False, OSError(errno.ENOENT, "gone"), SchedulerRejectedError, "cannot write .*: gone; free or choose another"),
        (False, InvalidAppError("too large"), InvalidAppError, "^too large$"),
    ],
    ids=["away", "full", "first", "app"],
)
def test_an_app_that_cannot_be_written_leaves_nothing(
    records: Records, is_used: bool, error: Exception, expected: type[Exception], text: str
) -> None:
    if is_used:
        launched(records, "first")

    def fail(directory: str) -> None:
        Path(directory, "file").touch()
        raise error

    with pytest.raises(LaunchError, match=text) as raised:
        records.commit("app", APP, fail)

    assert type(raised.value) is expected
    assert [*Path(records.root, "building").iterdir()] == []
    assert records.app("app") is None


def test_an_app_whose_root_is_unmounted_meanwhile_is_not_launched(records: Records) -> None:
    launched(records, "first")

    with pytest.raises(SchedulerUnavailableError, match="is missing; it existed before, mount it again"):
        records.commit("app", APP, lambda _directory: Path(records.root).rename(f"{records.root}.away"))
    assert not Path(records.root).exists()


def test_an_app_that_another_process_has_launched_is_left_as_it_is(records: Records) -> None:
    launched(records)
    for another in (records, Records(records.root)):
        another.commit("app", {**APP, "host": "other"})

    assert [*Path(records.root, "building").iterdir()] == []
    assert json.loads(Path(records.dir("app"), layout.APP).read_text())["host"] == "h"


def test_a_large_app_may_be_launched_again_and_again(records: Records) -> None:
    """Only a request that changes without a launch was replaced by its program."""
    for number in range(4):
        records.commit("app", {**APP, "boot_id": f"{number}" * 700_000})
        assert records.app("app") is not None
        records.remove("app")


def test_a_mark_is_written_or_an_error(records: Records) -> None:
    app = launched(records)
    (app / layout.CANCEL).mkdir()

    assert records.mark("app", layout.CANCEL) is True
    assert records.mark("missing", layout.CANCEL) is False
    with pytest.raises(AppUnavailableError, match="File name too long"):
        records.mark("app", "x" * 300)


@pytest.mark.parametrize("name", ["mark", "remove"])
def test_an_app_that_was_away_for_a_moment_is_neither_marked_nor_removed(
    records: Records, monkeypatch, name: str
) -> None:
    """Without an error the caller believes that the app ends."""
    launched(records)
    call, errors = getattr(os, "open" if name == "mark" else "stat"), [FileNotFoundError(errno.ENOENT, "away")]

    def once(path: Any, *args: Any, **options: Any) -> Any:
        if errors and str(path).startswith(records.dir("app")):
            raise errors.pop()
        return call(path, *args, **options)

    monkeypatch.setattr(os, call.__name__, once)
    with pytest.raises(SchedulerUnavailableError, match="was missing for a moment; try again"):
        records.mark("app", layout.CANCEL) if name == "mark" else records.remove("app")
    assert errors == []


def test_a_closed_place_of_a_root_that_was_used_is_a_missing_root(records: Records) -> None:
    launched(records)
    Path(records.root).rename(f"{records.root}.away")

    with pytest.raises(SchedulerUnavailableError, match="is missing; it existed before"), records.readable():
        raise PermissionError(errno.EACCES, "closed", records.root)


def test_a_missing_app_is_deleted_and_one_on_a_missing_root_is_not(records: Records) -> None:
    launched(records)
    records.delete_damaged("missing")
    Path(records.root).rename(f"{records.root}.away")

    with pytest.raises(SchedulerUnavailableError, match="is missing; it existed before"):
        records.delete_damaged("app")


@as_root
def test_a_directory_of_another_user_can_be_deleted(shared_path: Path) -> None:
    records = Records(str(shared_path / "root"))
    app = launched(records)
    for path in (shared_path / "root", shared_path / "root/apps", shared_path / "root/building"):
        os.chown(path, NOBODY, NOBODY)
    app.chmod(0o777)

    as_a_user(lambda: Records(records.root).delete_damaged("app"))
    assert not app.exists()


def test_an_app_without_a_lock_is_not_alive(records: Records, monkeypatch) -> None:
    app = launched(records)
    (app / layout.LOCK).symlink_to(layout.LOCK)
    assert records._is_alive("app") is False

    monkeypatch.setattr(processes, "is_locked", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        records._is_alive("app")


def test_a_sweep_skips_what_it_cannot_remove_with_a_warning(records: Records, caplog) -> None:
    launched(records, "running")
    old = launched(records, "old")
    for app_id, text in {"old": '{"final": true}', "damaged": '{"final": 1}', "foreign": '{"final": true}'}.items():
        app = launched(records, app_id) if app_id != "old" else old
        (app / layout.STATE).write_text(text)
        os.utime(app / layout.STATE, (1, 1))
    Path(records.dir("foreign")).chmod(0o777)
    Path(records.root, "apps", "file").touch()
    shutil.rmtree(f"{records.root}/building")

    records.sweep(3600)

    assert records.ids() == ["file", "running"]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert warnings[0].startswith("cannot remove app file, which may have ended: ")


def test_what_another_process_removes_during_a_sweep_is_not_an_error(records: Records) -> None:
    building = Path(records.root, "building")
    assert [*records._left_before(2.0**40)] == []
    for name in "abc":
        (building / name).mkdir(parents=True)
    with os.scandir(building) as entries:
        _, second, third = [entry.path for entry in entries]
    left = records._left_before(2.0**40)
    next(left)
    Path(second).rmdir()

    assert [*left] == [third]


def test_an_error_is_not_of_one_app_if_no_app_can_be_read(records: Records) -> None:
    error = OSError(errno.EACCES, "closed", f"{records.dir('app')}/state.json")
    assert records.is_of_one_app(error) is False
    launched(records)
    assert records.is_of_one_app(error) is True


def test_a_pipe_in_place_of_a_state_is_no_state(records: Records) -> None:
    app = launched(records)
    assert records.state("app") is None
    os.mkfifo(app / layout.STATE)
    assert records.state("app") is None
    assert records.has_ended("app") is False


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (UntrustedError("too many"), AppUnavailableError, "the files of the app were replaced: too many; delete the"),
        (PermissionError(errno.EACCES, "closed", "APP"), AppUnavailableError, "was replaced: closed; delete the app"),
        (PermissionError(errno.EACCES, "closed", "/x"), SchedulerRejectedError, "closed; choose another root"),
        (NotADirectoryError(errno.ENOTDIR, "a file", "/x"), SchedulerRejectedError, "a file; choose another root"),
        (OSError(errno.ELOOP, "a loop", "APP"), AppUnavailableError, "was replaced: a loop; delete the app"),
        (OSError(errno.EIO, "broken", "APP"), SchedulerUnavailableError, "cannot use .*: broken$"),
    ],
    ids=["untrusted", "closed", "closed root", "root below a file", "loop", "disk"],
)
def test_an_error_of_a_file_is_that_of_its_app_or_of_the_root(
    records: Records, error: Exception, expected: type[Exception], text: str
) -> None:
    app = launched(records)
    if isinstance(error, OSError) and error.filename == "APP":
        error.filename = str(app / "x")

    with pytest.raises(LaunchError, match=text) as raised, records.readable():
        raise error
    assert type(raised.value) is expected
