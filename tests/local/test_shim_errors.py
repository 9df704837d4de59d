"""Errors in a shim or a supervisor: each runs in this process or a fork of it, without an app."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.local import layout, processes, safe_files, shim, supervisor
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.schedulers.retry import Phase
from tests.local.test_records import on_record, with_request


def forked(act: Callable[[], object], output: str) -> int:
    """Return the exit code of a process that acts, with `output` as its stderr; 77 if it returns."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # a shim that waits for itself would never end
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            act()
            code = 77
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


# ---- shims -----------------------------------------------------------------------------------------------------------


def command_of(*argv: str, cwd: str = "/") -> dict[str, Any]:
    return {"argv": argv, "env": {"PATH": os.defpath}, "cwd": cwd, "logs": None}


def test_a_shim_that_cannot_start_writes_why_and_ends(tmp_path: Path) -> None:
    """The fork must never continue as a second supervisor."""
    code = forked(lambda: shim.run(f"{tmp_path}/missing", command_of("true"), 1.0), f"{tmp_path}/log")

    assert code == 1
    assert "FileNotFoundError: " in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (
            command_of("no-such-program"),
            127,
            "launch: cannot run 'no-such-program' in '/': No such file or directory\n",
        ),
        (
            command_of("true", cwd="/missing"),
            127,
            "launch: cannot run 'true' in '/missing': No such file or directory\n",
        ),
        (command_of("/etc/hostname"), 126, "launch: cannot run '/etc/hostname' in '/': "),
        (command_of("sh", "-c", "exit 3"), 3, ""),
    ],
    ids=["program", "directory", "text file", "sound"],
)
def test_a_command_that_cannot_run_is_an_exit_code_and_a_line_of_its_log(
    tmp_path: Path, command: dict[str, Any], code: int, text: str
) -> None:
    assert forked(lambda: shim.run(str(tmp_path), command, 1.0), f"{tmp_path}/log") == 0

    assert json.loads((tmp_path / "exit").read_text())["code"] == code
    assert (tmp_path / "stderr").read_text().startswith(text)
    assert bool((tmp_path / "stderr").read_text()) is bool(text)
    assert (tmp_path / "log").read_text() == ""


def test_an_attempt_is_started_once(tmp_path: Path) -> None:
    assert forked(lambda: shim.run(str(tmp_path), command_of("touch", f"{tmp_path}/one"), 1.0), "/dev/null") == 0
    assert forked(lambda: shim.run(str(tmp_path), command_of("touch", f"{tmp_path}/two"), 1.0), "/dev/null") == 0
    before = open_files()

    assert shim._Shim(str(tmp_path), {}, 1.0)._claim() is False
    (tmp_path / "started").unlink()
    assert shim._Shim(str(tmp_path), {}, 1.0)._claim() is True
    assert open_files() == before
    assert (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()


def test_logs_are_linked_into_a_directory_in_any_way(tmp_path: Path, capfd) -> None:
    """A hard link, a soft one where that is impossible, or a line of the log about the reason."""
    attempt, logs = tmp_path / "attempt", tmp_path / "logs"
    attempt.mkdir()
    (attempt / "stdout").write_text("out")
    for _ in range(2):  # the second attempt replaces the links
        shim._Shim(str(attempt), {}, 1.0)._publish_logs(str(logs))

    assert capfd.readouterr().err == ""
    assert (logs / "stdout.log").samefile(attempt / "stdout")
    assert not (logs / "stdout.log").is_symlink()
    assert (logs / "stderr.log").readlink() == attempt / "stderr"

    shim._Shim(str(attempt), {}, 1.0)._publish_logs(f"{attempt}/stdout")
    assert capfd.readouterr().err == f"launch: logs are not in '{attempt}/stdout': File exists\n"


@pytest.mark.parametrize("kind", ["stopped", "removed", "kept"])
def test_an_exit_code_is_written_later_only_if_it_is_needed(tmp_path: Path, monkeypatch, kind: str) -> None:
    if kind != "removed":
        (tmp_path / "started").touch()
    one = shim._Shim(str(tmp_path), {}, 1.0)
    one.stopped = kind == "stopped"
    write, tries = layout.write_json, []

    def fail_twice(path: str, document: object, *, durable: bool) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "full", path)
        write(path, document, durable=durable)

    monkeypatch.setattr(layout, "write_json", fail_twice)
    wake, ring = shim.pipe()
    os.write(ring, b"xx")
    if kind == "kept":
        one._keep_exit({"code": 3}, wake)
        assert json.loads((tmp_path / "exit").read_text()) == {"code": 3}
    else:
        with pytest.raises(OSError, match="full"):
            one._keep_exit({"code": 3}, wake)
        assert len(tries) == 1
    os.close(wake)
    os.close(ring)


# ---- supervisors -----------------------------------------------------------------------------------------------------


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    """The directory of an app that has not started."""
    path = on_record(create_scheduler("test", root=str(tmp_path / "root")))
    (path / layout.STATE).unlink()
    return path


@pytest.fixture
def started(app_dir: Path, monkeypatch: pytest.MonkeyPatch) -> supervisor._Supervisor:
    """Its supervisor, which has not done anything yet."""
    monkeypatch.chdir(app_dir)
    found = supervisor._Supervisor(str(app_dir), -1, in_job=False)
    found._load_attempt(0)
    return found


def test_a_job_of_a_deleted_app_ends_without_an_error(tmp_path: Path) -> None:
    assert supervisor.run_job(f"{tmp_path}/missing", keeps_deleted=False) is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("output", ["log", "/dev/full"])
@pytest.mark.parametrize("bell", ["bell", "no bell"])
def test_an_app_whose_request_is_damaged_is_ended(app_dir: Path, tmp_path: Path, output: str, bell: str) -> None:
    """Its log may be on a full disk."""
    with_request(roles=[1])(app_dir)
    if bell == "bell":
        os.mkfifo(app_dir / layout.BELL)

    assert forked(lambda: supervisor._supervise(str(app_dir), in_job=False), str(tmp_path / output)) == 77

    state = json.loads((app_dir / layout.STATE).read_text())
    assert (state["state"], state["final"]) == ("FAILED", True)
    assert "are damaged (TypeError: " in state["msg"]
    assert not (app_dir / layout.BELL).exists()
    assert (app_dir.parent.parent / layout.JOURNAL).read_text() == f"{app_dir.name} FAILED\n"
    assert output == "/dev/full" or "TypeError: " in (tmp_path / output).read_text()


def test_the_text_about_a_damaged_request_is_short(app_dir: Path, tmp_path: Path) -> None:
    def end() -> None:
        os.chdir(app_dir)
        supervisor._end_damaged(str(app_dir), ValueError("x" * 5000))

    assert forked(end, f"{tmp_path}/log") == 77
    message = json.loads((app_dir / layout.STATE).read_text())["msg"]
    assert "x" * 200 in message
    assert "x" * 201 not in message


def test_an_error_of_a_file_is_repeated_and_reported_once(
    started: supervisor._Supervisor, app_dir: Path, capfd
) -> None:
    codes = [errno.ENOSPC, errno.ENOSPC, errno.EIO]
    for code in codes:
        started.is_behind = False
        with started._later():
            raise OSError(code, os.strerror(code))
        assert started.is_behind
    assert capfd.readouterr().err.splitlines() == [
        f"will try again: [Errno {code}] {os.strerror(code)}" for code in (errno.ENOSPC, errno.EIO)
    ]

    (app_dir / layout.APP).unlink()
    with pytest.raises(OSError, match="removed by hand"), started._later():
        raise OSError(errno.ENOSPC, "removed by hand")


def test_an_error_of_a_file_ends_no_supervisor_whose_log_is_full(started: supervisor._Supervisor) -> None:
    def fail() -> None:
        with started._later():
            raise OSError(errno.ENOSPC, "full")

    assert forked(fail, "/dev/full") == 77


def test_an_attempt_that_is_discarded_never_starts(started: supervisor._Supervisor, app_dir: Path) -> None:
    (replica,) = started.replicas
    before = open_files()
    started._discard(replica)
    assert open_files() == before
    assert (replica.phase, replica.exit["stopped"]) == (Phase.STOPPED, True)
    path = app_dir / "run/0/0-main/0/0"
    assert (path / "started").exists()
    (path / "exit").unlink()

    # A shim was faster.
    replica.phase, replica.exit = Phase.WAITING, {}
    started._discard(replica)
    assert (replica.phase, replica.exit) == (Phase.RUNNING, {})
    assert not (path / "exit").exists()


@pytest.mark.parametrize("bell", ["bell", "no bell"])
def test_the_record_of_an_ended_app_has_no_bell(started: supervisor._Supervisor, app_dir: Path, bell: str) -> None:
    """Tools that copy it cannot copy a pipe."""
    if bell == "bell":
        os.close(safe_files.open_fifo(layout.BELL))
    started._publish(None, "")
    assert (app_dir / layout.BELL).exists() is (bell == "bell")
    started._publish(("SUCCEEDED", ""), "")

    assert not (app_dir / layout.BELL).exists()
    assert json.loads((app_dir / layout.STATE).read_text())["final"] is True


def test_a_directory_in_place_of_the_bell_is_left_out(started: supervisor._Supervisor, app_dir: Path) -> None:
    (app_dir / layout.BELL).mkdir()

    def listen() -> None:
        started._listen()
        assert started.bell is None

    assert forked(listen, "/dev/null") == 77


def test_a_log_that_does_not_exist_is_not_too_large(started: supervisor._Supervisor, app_dir: Path) -> None:
    started.request["log_max_mb"] = 1
    assert started._limit() == ""
    path = app_dir / "run/0/0-main/0/0"
    path.mkdir(parents=True)
    (path / "stderr").write_text("x" * 1_000_001)
    assert started._limit().startswith("stderr of role 'main' replica 0 has more than 1 MB")


def test_a_directory_that_was_moved_is_not_in_place(started: supervisor._Supervisor, app_dir: Path) -> None:
    assert started._is_in_place() is True
    app_dir.rename(f"{app_dir}.moved")
    assert started._is_in_place() is False


def test_a_supervisor_without_children_reaps_none(started: supervisor._Supervisor) -> None:
    assert forked(started._reap, "/dev/null") == 77
    assert forked(lambda: os._exit(int(shim._Shim(".", {}, 1.0)._reap() is not False)), "/dev/null") == 0


def test_a_shim_does_not_keep_the_lock_of_its_supervisor(
    started: supervisor._Supervisor, app_dir: Path, monkeypatch
) -> None:
    """The next supervisor could not take it."""
    lock = processes.try_lock(layout.LOCK)
    assert lock is not None
    started.lock = lock
    monkeypatch.setattr(shim, "run", lambda *_args, **_options: os._exit(int(Path(f"/proc/self/fd/{lock}").exists())))

    started._fork_shim(started.replicas[0], str(app_dir))
    assert os.waitstatus_to_exitcode(os.waitpid(started.replicas[0].child, 0)[1]) == 0
    os.close(lock)
