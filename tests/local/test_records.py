"""Reads of apps whose programs have replaced their records; no process runs here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.local import layout, log_files, observed, processes, records, safe_files, status
from airflow_provider_launch.schedulers.local import scheduler as local
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler, create_scheduler
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs import AppDef, AppState, Role, Workspace
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.support.apps import until
from tests.support.bombs import nested

REPLICA = {
    "role": "main", "id": 0, "phase": "SUCCEEDED", "attempt": 0, "code": 0, "signal": None, "start": 1.0, "end": 2.0,
    "lost": None, "outside": None,
}  # fmt: skip
STATE = {
    "state": "SUCCEEDED", "final": True, "msg": "", "app_attempt": 0, "host": "h", "boot_id": "b", "ports": {},
    "replicas": [REPLICA],
}  # fmt: skip


def on_record(scheduler: LocalScheduler, **app: object) -> Path:
    """Create the record of an app that has ended; return its directory."""
    info = scheduler.submit_dryrun(AppDef("app", [Role("main", "/", entrypoint="true", **app)]), {})
    request = info.request
    scheduler._records.commit(request.app_id, scheduler._document(request, info._app))
    path = Path(scheduler._records.dir(request.app_id))
    (path / "state.json").write_text(json.dumps(STATE))
    return path


@pytest.fixture
def scheduler(tmp_path: Path) -> LocalScheduler:
    return create_scheduler("test", root=str(tmp_path / "root"))


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def with_app(**fields: object):
    def damage(path: Path) -> None:
        document = json.loads((path / "app.json").read_text())
        (path / "app.json").write_text(json.dumps({**document, **fields}))

    return damage


def with_request(**fields: object):
    def damage(path: Path) -> None:
        document = json.loads((path / "app.json").read_text())
        document["request"].update(fields)
        (path / "app.json").write_text(json.dumps(document))

    return damage


def with_role(**fields: object):
    def damage(path: Path) -> None:
        document = json.loads((path / "app.json").read_text())
        document["app"]["roles"][0].update(fields)
        (path / "app.json").write_text(json.dumps(document))

    return damage


def with_state(text: str = "", **fields: object):
    return lambda path: (path / "state.json").write_text(text or json.dumps({**STATE, **fields}))


def with_replica(**fields: object):
    return with_state(replicas=[{**REPLICA, **fields}])


DAMAGES = {
    "a time of launch that is a word": with_app(created="x"),
    "a time of launch without end": with_app(created=1e300),
    "a host that is a list": with_app(host=[]),
    "a deep app": lambda path: (path / "app.json").write_text(deep(900)),
    "a name that is a number": with_request(name=5),
    "metadata of numbers": with_request(metadata=[1]),
    "many parts": lambda path: (path / "app.json").write_text("[" + "1," * 600_000 + "1]"),
    "a start that is a word": with_replica(start="x"),
    "a start without end": with_replica(start=1e300),
    "a code that is a list": with_replica(code=[]),
    "an unknown role": with_replica(role="other"),
    "a large number": with_state(app_attempt=2**70 - 1, text=json.dumps({**STATE, "app_attempt": 2**50})),
    "an unknown state": with_state(state="x"),
    "more replicas than an app can have": with_role(num_replicas=1_000_000),
    "fewer replicas than none": with_role(num_replicas=-1),
    "a large state": with_state(msg="x" * 300_000),
    "a state of many parts": with_state(ports=[0] * 10_000),
    "more replicas than there are": with_state(replicas=[REPLICA] * 5000),
    "replicas of numbers": with_state(replicas=[1]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_record_with_wrong_fields_concerns_its_app_only(scheduler: LocalScheduler, damage) -> None:
    damaged, other = on_record(scheduler), on_record(scheduler)
    damage(damaged)

    assert {row.app_id: row.state for row in scheduler.list()} == {
        damaged.name: AppState.UNKNOWN,
        other.name: AppState.SUCCEEDED,
    }
    answers = poll_many(scheduler, [damaged.name, other.name])
    assert answers[other.name].state is AppState.SUCCEEDED
    assert isinstance(answers[damaged.name], AppUnavailableError)
    # Neither of them is old enough.
    assert scheduler.sweep(3600) == []


@pytest.mark.parametrize("text", ['{"final": true, "start": Infinity}', deep(900), "[" * 100_000, "[1," * 700_000])
def test_an_invalid_document_is_read_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)

    assert layout.read_json(str(path)) is None


def test_a_large_document_takes_little_memory(tmp_path: Path) -> None:
    """It took a hundred bytes of memory for four of text, in each poll."""
    path = tmp_path / "app.json"
    path.write_text("[" + "[],{}," * 2_000_000 + "1]")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert layout.read_json(str(path)) is None
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 100 * 2**20


def test_the_record_of_a_large_app_is_read() -> None:
    replicas = [
        {"args": ["--rank", str(k), "x" * 200], "env": {f"NAME_{n}": "v" * 20 for n in range(20)}}
        for k in range(10_000)
    ]

    assert layout.parse_record(json.dumps({"request": {"roles": [{"replicas": replicas}]}}))


def test_an_app_that_could_not_be_read_again_is_refused(scheduler: LocalScheduler) -> None:
    app = AppDef("app", [Role("main", "/", entrypoint="true")], metadata={"note": "x" * 20_000_000})

    with pytest.raises(InvalidAppError, match=r"cannot be stored: .* make its arguments"):
        scheduler.schedule(scheduler.submit_dryrun(app, {}))


def test_a_damaged_record_is_read_again_when_it_has_changed(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    whole = (path / "app.json").read_text()
    (path / "app.json").write_text("[" * 100)
    reads: list[str] = []
    read = layout.read_json
    monkeypatch.setattr(records.layout, "read_json", lambda name: reads.append(name) or read(name))
    for _ in range(5):
        with pytest.raises(AppUnavailableError, match="is not a valid document"):
            scheduler.describe(path.name)
    assert len(reads) == 2  # a second check, in case it was launched or removed at that moment

    (path / "app.json").write_text(whole)
    assert scheduler.describe(path.name).state is AppState.SUCCEEDED


@pytest.mark.parametrize("size", [0, layout.LARGEST_RECORD - 10_000])
def test_a_request_that_has_not_changed_is_read_once(scheduler: LocalScheduler, monkeypatch, size: int) -> None:
    """A program makes its own request large, so that each poll of all apps would parse it again."""
    path = on_record(scheduler)
    with_request(metadata={"x": "y" * size})(path)
    reads: list[str] = []
    read = layout.read_json
    monkeypatch.setattr(records.layout, "read_json", lambda name: reads.append(Path(name).name) or read(name))
    for _ in range(5):
        assert scheduler.describe(path.name).state is AppState.SUCCEEDED
        scheduler.list()

    assert reads.count("app.json") == 1
    native = scheduler.describe_native(path.name)
    native.request.roles.clear()
    assert scheduler.describe_native(path.name).request.roles, "a caller has changed what is cached"


def test_a_large_request_that_is_replaced_again_and_again_is_not_read(scheduler: LocalScheduler) -> None:
    damaged, other = on_record(scheduler), on_record(scheduler)
    answers = {}
    for number in range(4):
        with_request(metadata={"x": f"{number}" * 700_000})(damaged)
        answers = poll_many(scheduler, [damaged.name, other.name])
        assert answers[other.name].state is AppState.SUCCEEDED

    assert isinstance(answers[damaged.name], AppUnavailableError)
    assert "replaced too often" in str(answers[damaged.name])


def test_the_largest_app_is_read(scheduler: LocalScheduler) -> None:
    path = on_record(scheduler, num_replicas=10_000)
    with_state(replicas=[{**REPLICA, "id": k, "start": time.time(), "end": time.time()} for k in range(10_000)])(path)

    assert len(scheduler.describe(path.name).roles_statuses[0].replicas) == 10_000
    assert scheduler._records.has_ended(path.name) is True


@pytest.mark.parametrize("roles", [
    [Role("x" * 1000, "/", entrypoint="true", num_replicas=1000)],
    [Role("main", "/", entrypoint="true", port_map={"x" * 300_000: 0})],
])  # fmt: skip
def test_an_app_whose_state_could_not_be_read_is_refused(scheduler: LocalScheduler, roles) -> None:
    """The supervisor would write the end of the app, and every observer would refuse to read it."""
    with pytest.raises(InvalidAppError, match="shorten the names"):
        scheduler.submit_dryrun(AppDef("app", roles), {})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the documents and error files that were read."""
    found: list[str] = []
    read, read_reply = layout.read_record, log_files.read_reply
    monkeypatch.setattr(layout, "read_record", lambda path, *a: found.append(Path(path).name) or read(path, *a))
    monkeypatch.setattr(log_files, "read_reply", lambda *a: found.append("error.json") or read_reply(*a))
    return found


@pytest.mark.parametrize("text", ["", "[1,"], ids=["sound", "not a document"])
def test_a_state_that_has_not_changed_is_read_once(scheduler: LocalScheduler, monkeypatch, reads, text: str) -> None:
    """Each read of a log parsed it, ten times a second for each replica."""
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: None)
    path = on_record(scheduler)
    with_state(text=text, state="RUNNING", final=False)(path)
    for _ in range(5):
        scheduler.read_logs(path.name, "main", 0)
        scheduler._records.has_ended(path.name)
    assert reads.count("state.json") == 1
    assert scheduler._records.has_ended(path.name) is False

    layout.write_json(str(path / "state.json"), STATE)
    assert scheduler._records.has_ended(path.name) is True


def test_a_line_in_the_journal_makes_no_poll_parse_the_same_state(
    scheduler: LocalScheduler, monkeypatch, reads
) -> None:
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: None)
    path = on_record(scheduler)
    with_state(state="RUNNING", final=False)(path)
    assert scheduler.describe(path.name).state is AppState.RUNNING
    reads.clear()
    for _ in range(5):
        layout.append_journal(scheduler.root, path.name, "RUNNING")
        assert scheduler.describe(path.name).state is AppState.RUNNING
    assert reads == []


@pytest.mark.parametrize(
    "damage",
    [
        with_replica(start="x"), with_replica(role="other"), with_replica(id=7), with_state(msg="x" * 300_000),
        with_state(final=1),
    ],
)  # fmt: skip
def test_a_damaged_state_is_read_once(scheduler: LocalScheduler, reads, damage) -> None:
    path = on_record(scheduler)
    damage(path)
    for _ in range(5):
        with pytest.raises(AppUnavailableError, match="is damaged"):
            scheduler.describe(path.name)
    assert reads.count("state.json") <= 2  # whether it is final, and the rest

    with_state()(path)
    assert scheduler.describe(path.name).state is AppState.SUCCEEDED


def test_error_files_of_an_ended_app_are_read_once(scheduler: LocalScheduler, reads) -> None:
    """The reconciler lists all apps each minute; each list read and cleaned up to 512 texts of each failed app."""
    path = on_record(scheduler)
    with_state(state="FAILED", replicas=[{**REPLICA, "phase": Phase.FAILED.value, "code": 1}])(path)
    error = path / "run/0/0-main/0/0/error.json"
    error.parent.mkdir(parents=True)
    error.write_text("why")
    for _ in range(3):
        assert [row.state for row in scheduler.list()] == [AppState.FAILED]
    assert reads.count("error.json") == 0

    for _ in range(3):
        found = scheduler.describe(path.name)
        assert found.structured_error_msg == found.roles_statuses[0].replicas[0].structured_error_msg == "why"
    assert reads.count("error.json") == 1

    with_state(state="FAILED", msg="again", replicas=[{**REPLICA, "phase": Phase.FAILED.value, "code": 1}])(path)
    error.write_text("other")
    assert scheduler.describe(path.name).structured_error_msg == "other"


def test_an_error_file_that_cannot_be_read_now_is_read_later(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    with_state(state="FAILED", replicas=[{**REPLICA, "phase": Phase.FAILED.value, "code": 1}])(path)
    error = path / "run/0/0-main/0/0/error.json"
    error.parent.mkdir(parents=True)
    error.write_text("why")

    def fail(path: str) -> object:
        raise OSError(errno.EMFILE, "Too many open files", path)

    with monkeypatch.context() as patch:
        patch.setattr(log_files, "open_regular", fail)
        assert scheduler.describe(path.name).state is AppState.FAILED
    assert scheduler.describe(path.name).structured_error_msg == "why"


def test_a_large_exit_is_not_read(scheduler: LocalScheduler) -> None:
    path = on_record(scheduler)
    attempt = path / "run/0/0-main/0/0"
    attempt.mkdir(parents=True)
    exit_file = {"code": 3, "signal": None, "lost": None}
    (attempt / "exit").write_text(json.dumps(exit_file))
    assert "3" in scheduler.attempt_ending(path.name, "main", 0, 0)

    (attempt / "exit").write_text(json.dumps({**exit_file, "x": "x" * 5000}))
    assert scheduler.attempt_ending(path.name, "main", 0, 0) == ""


def test_a_pipe_in_place_of_a_new_file_blocks_no_write(tmp_path: Path) -> None:
    """An observer writes the end of an app after a boot of the host; a program may know the pid of the observer."""
    path = tmp_path / "state.json"
    os.mkfifo(f"{path}.{os.getpid()}.tmp")
    thread = threading.Thread(target=layout.write_json, args=(str(path), STATE), daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive(), "it hangs"
    assert layout.read_json(str(path)) == STATE


def test_texts_of_a_state_are_short_lines(scheduler: LocalScheduler) -> None:
    """Each change of the message is a line of the task log, which all tasks of a triggerer share."""
    path = on_record(scheduler)
    long = "A\n" * 40_000
    with_state(state="FAILED", msg=long, host=long)(path)

    found = scheduler.describe(path.name)
    texts = [found.msg, *(replica.hostname for role in found.roles_statuses for replica in role.replicas)]
    assert len(texts) == 2
    assert all(0 < len(text) <= 4096 and len(text.splitlines()) == 1 for text in texts)


# ---- leased files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lease() -> Iterator[Callable[[Path], None]]:
    """Takes a write lease of a file, for which a program needs no rights; an open by others waits up to 45 s."""
    # The kernel sends it when another open breaks the lease.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    held: list[int] = []

    def take(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        held.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            fcntl.fcntl(held[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases in this file system: {error}")

    yield take
    for fd in held:
        os.close(fd)
    signal.signal(signal.SIGIO, before)


def soon(call: Callable[[], object]) -> object:
    """Call it in a thread; fail if it waits for the end of a lease."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(20)
    finally:
        pool.shutdown(wait=False)


LEASED = ["lock", "state.json", "app.json", "supervisor.log", "cancel", "run/0/0-main/0/0/stdout", "../../journal"]


@pytest.mark.parametrize("name", LEASED)
def test_a_leased_file_concerns_its_app_only(scheduler: LocalScheduler, lease, monkeypatch, name: str) -> None:
    """A program could lease its lock again and again, so that each poll of all apps took 45 s."""
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: None)
    leased, other = on_record(scheduler), on_record(scheduler)
    with_state(state="RUNNING", final=False)(leased)
    if name == "supervisor.log":
        (leased / "state.json").unlink()
    layout.append_journal(scheduler.root, leased.name, "RUNNING")
    assert scheduler.describe(other.name).state is AppState.SUCCEEDED
    lease(leased / name)

    def use() -> None:
        assert poll_many(scheduler, [leased.name, other.name])[other.name].state is AppState.SUCCEEDED
        rows = {row.app_id: row.state for row in scheduler.list()}
        assert rows.keys() == {leased.name, other.name}
        assert rows[other.name] is AppState.SUCCEEDED
        layout.append_journal(scheduler.root, other.name, "SUCCEEDED")
        scheduler._records.sweep(3600)
        assert scheduler.read_logs(other.name, "main", 0).lines == []
        # Not the error that means an outage for all apps.
        for call in (lambda: scheduler.read_logs(leased.name, "main", 0), lambda: scheduler.cancel(leased.name)):
            with contextlib.suppress(AppUnavailableError):
                call()

    soon(use)


def test_a_leased_lock_is_not_free(tmp_path: Path, lease) -> None:
    """The lock of a port or a GPU counts as taken, and the next one is tried."""
    lease(tmp_path / "20000.lock")

    assert soon(lambda: processes.try_lock(str(tmp_path / "20000.lock"))) is None
    assert soon(lambda: processes.is_locked(str(tmp_path / "20000.lock"))) is True


def test_a_pipe_that_nobody_reads_does_not_replace_the_journal(tmp_path: Path) -> None:
    """Once it was full, no supervisor of the root could note the end of its app."""
    journal = tmp_path / "journal"
    os.mkfifo(journal)
    reader = os.open(journal, os.O_RDONLY | os.O_NONBLOCK)
    try:
        layout.append_journal(str(tmp_path), "one", "SUCCEEDED")
    finally:
        os.close(reader)

    assert journal.is_file()
    assert journal.read_text() == "one SUCCEEDED\n"


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_stands_in_place_of_the_time_of_the_last_sweep_stops_no_sweep(scheduler: LocalScheduler, make) -> None:
    old = on_record(scheduler)
    os.utime(old / "state.json", (0, 0))
    make(Path(scheduler.root, "swept"))
    os.utime(Path(scheduler.root, "swept"), (0, 0))

    scheduler._records.sweep(3600)
    assert not old.exists()


def test_a_stamp_in_the_future_does_not_stop_the_removal(scheduler: LocalScheduler) -> None:
    old = on_record(scheduler)
    os.utime(old / "state.json", (0, 0))
    Path(scheduler.root, "swept").touch()
    os.utime(Path(scheduler.root, "swept"), (2**32, 2**32))

    scheduler._records.sweep(3600)
    assert not old.exists()


def test_a_large_state_that_changes_is_not_read_by_each_read_of_a_log(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    state = {**STATE, "final": False, "msg": "x" * 256 * 1024}
    (path / "state.json").write_text(json.dumps(state))
    read = layout.read_record
    reads: list[str] = []
    monkeypatch.setattr(records.layout, "read_record", lambda name, *a: reads.append(name) or read(name, *a))
    kept = scheduler._records
    kept.app_def(path.name, kept.app(path.name))
    reads.clear()
    for number in range(20):
        os.utime(path / "state.json", (number, number))
        assert not kept.has_ended(path.name)
    assert len(reads) == 1

    monkeypatch.setattr(records, "_LARGE_AGAIN_S", 0.0)
    (path / "state.json").write_text(json.dumps({**state, "final": True}))
    assert kept.has_ended(path.name)


def test_the_name_of_a_host_is_short_and_shared_by_the_replicas() -> None:
    app = AppDef("a", [Role("r", "x", num_replicas=2)])
    replica = {"role": "r", "phase": "RUNNING", "attempt": 0, "code": None, "signal": None, "start": 1, "end": None}
    replicas = [{**replica, "id": k, "lost": False} for k in range(2)]
    state = {**STATE, "host": "h" * 5000, "replicas": replicas, "app_attempt": 0}

    found = status.response_from("a", {"request": {"metadata": {}}}, state, app).roles_statuses[0].replicas

    assert len(found[0].hostname) == 255
    assert found[0].hostname is found[1].hostname


@pytest.mark.parametrize("how", ["sweep", "delete"])
def test_folders_of_any_depth_are_removed(scheduler: LocalScheduler, how: str) -> None:
    """Their removal failed, and with it the launch of another app that swept."""
    deep, other = on_record(scheduler), on_record(scheduler)
    for app_dir in (deep, other):
        nested(app_dir)
        os.utime(app_dir / "state.json", (0, 0))
    if how == "sweep":
        scheduler._records.sweep(3600)
    else:
        scheduler.delete(deep.name)
        scheduler.delete(other.name)

    assert not deep.exists()
    assert not other.exists()
    until(lambda: not [*Path(scheduler.root, "building").iterdir()], 60, 0.05)


def test_what_earlier_removals_have_left_is_removed(scheduler: LocalScheduler, monkeypatch) -> None:
    monkeypatch.setattr(records, "_LEFT_S", 0.5)
    on_record(scheduler)
    building = Path(scheduler.root, "building")
    building.mkdir(exist_ok=True)
    (building / "old").mkdir()
    time.sleep(0.6)
    (building / "new").mkdir()
    scheduler._records.sweep(3600)
    until(lambda: not (building / "old").exists(), 60, 0.05)
    assert (building / "new").exists()


def test_a_first_sweep_of_another_process_is_not_repeated(scheduler: LocalScheduler, monkeypatch) -> None:
    """The slower of two first launches warned that old apps are not removed."""
    old = on_record(scheduler)
    os.utime(old / "state.json", (0, 0))
    stamp = Path(scheduler.root, "swept")
    look = os.lstat

    def look_too_early(path: object) -> os.stat_result:
        try:
            return look(path)
        finally:
            stamp.touch()

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "lstat", look_too_early)
        scheduler._records.sweep(3600)
    assert old.exists()


# ---- errors of one app -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (with_role(num_replicas=-1), r"app.json: UntrustedError: it has -1 replicas"),
        (with_role(image=5), r"app.json: InvalidAppError: "),
        (with_role(name="x" * 5000), r"app.json: UntrustedError: the name of a role has 5000 characters"),
    ],
    ids=["count", "type", "long"],
)
def test_a_request_that_is_no_app_any_more_is_an_error_of_its_log_and_result(
    scheduler: LocalScheduler, damage, text: str
) -> None:
    path = on_record(scheduler)
    damage(path)
    for call in (lambda: scheduler.read_logs(path.name, "main", 0), lambda: scheduler.result(path.name)):
        with pytest.raises(AppUnavailableError, match=f"is damaged: {text}") as raised:
            call()
        assert len(str(raised.value)) < 800


def test_a_request_with_wrong_fields_is_read_once(scheduler: LocalScheduler, reads) -> None:
    path = on_record(scheduler)
    with_app(host=[])(path)
    for _ in range(5):
        with pytest.raises(AppUnavailableError, match="'host' has a wrong value"):
            scheduler.describe(path.name)
    assert reads.count("app.json") == 1


@pytest.mark.parametrize("host", ["elsewhere", None])
def test_a_state_with_a_long_wrong_name_is_a_short_error_of_its_app(
    scheduler: LocalScheduler, host: str | None
) -> None:
    damaged, other = on_record(scheduler), on_record(scheduler)
    if host:
        with_app(host=host)(damaged)
    with_state(final=host is None, replicas=[{**REPLICA, "role": "x" * 1000}])(damaged)

    with pytest.raises(AppUnavailableError, match=r"is damaged: KeyError: 'x{199}; delete the app") as raised:
        scheduler.describe_many([damaged.name, other.name])
    assert {*raised.value.texts} == {damaged.name}
    assert poll_many(scheduler, [other.name])[other.name].state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    ("role", "text"), [({}, "KeyError: 'replicas'"), (1, "TypeError: "), ({"replicas": 1}, "TypeE")]
)
def test_a_request_with_wrong_roles_is_an_error_of_its_app(scheduler: LocalScheduler, role: object, text: str) -> None:
    path = on_record(scheduler)
    with_request(roles=[role])(path)

    with pytest.raises(AppUnavailableError, match=f"is damaged: app.json: {text}"):
        scheduler.describe_native(path.name)


@pytest.mark.parametrize("code", [errno.ELOOP, errno.EMFILE], ids=["of its lock", "of the process"])
def test_an_error_of_the_lock_of_a_cached_app_concerns_its_app_only(
    scheduler: LocalScheduler, monkeypatch, code: int
) -> None:
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: None)
    damaged, other = on_record(scheduler), on_record(scheduler)
    with_state(state="RUNNING", final=False)(damaged)
    layout.append_journal(scheduler.root, damaged.name, "RUNNING")
    assert scheduler.describe(damaged.name).state is AppState.RUNNING
    monkeypatch.setattr(observed, "POLL_AGAIN_S", -1.0)
    if code == errno.ELOOP:
        (damaged / "lock").symlink_to("lock")
        with pytest.raises(AppUnavailableError, match=r"is damaged: .*; delete the app") as raised:
            scheduler.describe_many([damaged.name, other.name])
        assert {*raised.value.texts} == {damaged.name}
    else:

        def fail(path: str) -> bool:
            raise OSError(code, os.strerror(code), path)

        monkeypatch.setattr(processes, "is_locked", fail)
        with pytest.raises(SchedulerUnavailableError, match="Too many open files") as outage:
            scheduler.describe_many([damaged.name, other.name])
        assert type(outage.value) is SchedulerUnavailableError


def open_to_others(path: Path) -> None:
    path.chmod(0o777)


def not_a_document(path: Path) -> None:
    (path / "app.json").write_text("[")


def test_an_app_that_others_may_write_is_refused_alone(scheduler: LocalScheduler) -> None:
    damaged, other = on_record(scheduler), on_record(scheduler)
    open_to_others(damaged)

    with pytest.raises(SchedulerRejectedError, match="other users may write"):
        scheduler.describe_many([damaged.name])
    with pytest.raises(AppUnavailableError, match="other users may write") as raised:
        scheduler.describe_many([damaged.name, other.name])
    assert {*raised.value.texts} == {damaged.name}
    scheduler.delete(damaged.name)
    assert not damaged.exists()


@pytest.mark.parametrize("damage", [open_to_others, not_a_document])
def test_an_app_that_is_damaged_while_all_are_listed_is_listed(scheduler: LocalScheduler, monkeypatch, damage) -> None:
    damaged, other = on_record(scheduler), on_record(scheduler)
    describe = scheduler._describe_many

    def describe_and_damage(*args: object, **options: object) -> object:
        found = describe(*args, **options)
        damage(damaged)
        return found

    monkeypatch.setattr(scheduler, "_describe_many", describe_and_damage)
    assert {row.app_id: row.state for row in scheduler.list()} == {
        damaged.name: AppState.UNKNOWN,
        other.name: AppState.SUCCEEDED,
    }


def test_a_root_that_is_refused_is_an_error_of_each_call(scheduler: LocalScheduler, monkeypatch) -> None:
    paths = on_record(scheduler), on_record(scheduler)
    describe = scheduler._describe_many
    apps = Path(scheduler.root, "apps")

    def link() -> None:
        apps.rename(apps.with_name("other"))
        apps.symlink_to("other")

    def describe_and_link(*args: object, **options: object) -> object:
        found = describe(*args, **options)
        link()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "_describe_many", describe_and_link)
        with pytest.raises(SchedulerRejectedError, match="is a link; make the root a link instead"):
            scheduler.list()
    for call in (
        lambda: scheduler.describe_many([path.name for path in paths]),
        lambda: scheduler.delete(paths[0].name),
    ):
        with pytest.raises(SchedulerRejectedError, match="is a link; make the root a link instead"):
            call()


def test_a_launch_that_cannot_sweep_warns(scheduler: LocalScheduler, monkeypatch, caplog) -> None:
    """The files are of other apps."""
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: None)
    old = on_record(scheduler)
    os.utime(old / "state.json", (0, 0))
    monkeypatch.setenv("PATH", str(old))  # no shell, which removes them

    info = scheduler.submit_dryrun(AppDef("app", [Role("main", "/", entrypoint="true")]), {})
    assert scheduler.schedule(info) == info.request.app_id
    assert f"old apps in {scheduler.root!r} are not removed: " in caplog.text


def test_a_workspace_that_cannot_be_copied_launches_nothing(scheduler: LocalScheduler, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    role = Role("main", "/", entrypoint="true", workspace=Workspace({f"{tmp_path}/project": ""}))
    request = scheduler.submit_dryrun(AppDef("app", [role]), {}).request
    (tmp_path / "file").touch()

    with pytest.raises(InvalidAppError, match=r"cannot be copied: Not a directory .*correct its permissions or make"):
        request.copy_workspaces(str(tmp_path / "file"))


# ---- hosts that were rebooted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.json", "journal"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ENOENT])
def test_an_end_that_cannot_be_written_concerns_its_app_only(
    scheduler: LocalScheduler, monkeypatch, name: str, code: int
) -> None:
    """A program that replaces the id of the boot makes each poll write; with a full disk this was an outage."""
    damaged, other = on_record(scheduler), on_record(scheduler)
    with_app(boot_id="another")(damaged)
    with_state(state="RUNNING", final=False)(damaged)
    write = "write_json" if name == "state.json" else "append_journal"

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), f"{scheduler.root}/{name}")

    with monkeypatch.context() as patch:
        patch.setattr(layout, write, fail)
        answers = poll_many(scheduler, [damaged.name, other.name])
        assert isinstance(answers[damaged.name], AppUnavailableError)
        assert str(answers[damaged.name]).startswith("host ")
        assert "its end cannot be written" in str(answers[damaged.name])
        assert answers[other.name].state is AppState.SUCCEEDED

    assert scheduler.describe(damaged.name).state is AppState.FAILED
    assert "rebooted" in scheduler.describe(damaged.name).msg


def test_an_app_that_is_deleted_while_its_end_is_written_does_not_exist(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    with_app(boot_id="another")(path)
    with_state(state="RUNNING", final=False)(path)
    write_end = scheduler._records.write_end

    def delete_first(app_id: str, document: dict[str, object]) -> None:
        shutil.rmtree(path)
        write_end(app_id, document)

    monkeypatch.setattr(scheduler._records, "write_end", delete_first)

    assert scheduler.describe(path.name) is None


# ---- apps of another host --------------------------------------------------------------------------------------------


def test_an_app_of_another_host_keeps_its_state(scheduler: LocalScheduler) -> None:
    """The root may be a network disk; without processes the app would look as if its supervisor had died."""
    path = on_record(scheduler)
    with_app(host="elsewhere", boot_id="another")(path)
    with_state(state="RUNNING", final=False, replicas=[{**REPLICA, "phase": Phase.RUNNING.value}])(path)
    found = scheduler.describe(path.name)

    assert found.state is AppState.RUNNING
    assert found.msg.startswith("launched on host elsewhere, this is ")
    assert not (path / "supervisor.log").exists()


# ---- supervisors that cannot be started ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), AppUnavailableError),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), AppUnavailableError),
        (safe_files.NotRegularError(errno.EINVAL, "not a regular file"), AppUnavailableError),
        (subprocess.TimeoutExpired("python", 30), AppUnavailableError),
        (subprocess.CalledProcessError(1, "python"), AppUnavailableError),
        (BlockingIOError(errno.EAGAIN, "no more processes"), SchedulerUnavailableError),
        (OSError(errno.ENOSPC, "No space left on device"), SchedulerUnavailableError),
    ],
    ids=lambda item: item.__name__ if isinstance(item, type) else type(item).__name__,
)
def test_a_supervisor_that_cannot_start_for_its_files_concerns_its_app_only(
    scheduler: LocalScheduler, monkeypatch, error, expected
) -> None:
    """Its program may close the log of its supervisor, and end it: other apps are not affected."""
    damaged, other = on_record(scheduler), on_record(scheduler)
    (damaged / "state.json").unlink()
    if isinstance(error, OSError) and error.errno != errno.EAGAIN:
        error.filename = str(damaged / "supervisor.log")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(local.subprocess, "run", fail)
    answers = poll_many(scheduler, [damaged.name, other.name])

    assert type(answers[damaged.name]) is expected
    if expected is AppUnavailableError:
        assert answers[other.name].state is AppState.SUCCEEDED
        assert {row.app_id: row.state for row in scheduler.list()} == {
            damaged.name: AppState.UNKNOWN,
            other.name: AppState.SUCCEEDED,
        }


def test_an_app_that_is_deleted_before_its_supervisor_starts_is_not_an_error(
    scheduler: LocalScheduler, monkeypatch
) -> None:
    path = on_record(scheduler)
    (path / "state.json").unlink()

    def delete_first(*_: object, **__: object) -> None:
        shutil.rmtree(path)
        raise FileNotFoundError(errno.ENOENT, "gone", str(path))

    monkeypatch.setattr(local.subprocess, "run", delete_first)
    assert scheduler.describe(path.name) is None


def test_a_supervisor_that_hangs_is_not_waited_for_in_each_poll(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    (path / "state.json").unlink()
    starts: list[object] = []

    def hang(command: list[str], **_: object) -> None:
        starts.append(command)
        raise subprocess.TimeoutExpired(command, 30)

    monkeypatch.setattr(local.subprocess, "run", hang)
    for _ in range(3):
        with pytest.raises(AppUnavailableError, match="delete the app"):
            scheduler.describe(path.name)
    assert len(starts) == 1

    now = time.monotonic()
    monkeypatch.setattr(local.time, "monotonic", lambda: now + 3600)
    with pytest.raises(AppUnavailableError):
        scheduler.describe(path.name)
    assert len(starts) == 2


# ---- the journal -----------------------------------------------------------------------------------------------------


def test_a_journal_that_becomes_a_pipe_in_the_last_moment_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    """A program swaps two names again and again, until one swap happens between check and open."""
    journal = tmp_path / "journal"
    journal.write_text("one RUNNING\n")
    found = observed.Observed(str(tmp_path), lambda _: True)
    found.forget_changed()
    journal.write_text("one RUNNING\ntwo RUNNING\n")
    lstat, is_exchanged = os.lstat, []

    def exchange(path: object) -> None:
        if str(path) == str(journal) and not is_exchanged:
            is_exchanged.append(True)
            journal.unlink()
            os.mkfifo(journal)

    def exchanging(path, *args, **options):
        status = lstat(path, *args, **options)
        exchange(path)
        return status

    monkeypatch.setattr(os, "lstat", exchanging)
    opened = observed.open_regular if hasattr(observed, "open_regular") else open

    def exchanging_open(path: str):
        exchange(path)
        return opened(path)

    monkeypatch.setattr(observed, "open_regular", exchanging_open, raising=False)
    thread = threading.Thread(target=found.forget_changed, daemon=True)
    thread.start()
    thread.join(30)

    assert is_exchanged
    assert not thread.is_alive(), "it hangs"


def test_a_new_line_makes_only_the_app_that_it_names_out_of_date(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("one RUNNING\n")
    found = observed.Observed(str(tmp_path), lambda _: True)
    found.forget_changed()
    for app_id in ("one", "two"):
        found.keep(app_id, DescribeAppResponse(app_id))
    with journal.open("a") as file:
        file.write("two RUNNING\n")
    found.forget_changed()

    assert found.get("one") is not None
    assert found.get("two") is None


def test_a_journal_of_line_ends_is_not_read(tmp_path: Path, monkeypatch) -> None:
    """A program writes a million of them before each poll of all apps."""
    journal = tmp_path / "journal"
    journal.write_text("one RUNNING\n")
    found = observed.Observed(str(tmp_path), lambda _: True)
    found.forget_changed()
    found.keep("one", DescribeAppResponse("one"))
    read: list[int] = []

    class File(AbstractContextManager["File"]):
        def __init__(self, path: str) -> None:
            self._file = safe_files.open_regular(path)

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

        def read(self, size: int) -> bytes:
            read.append(size)
            return self._file.read(size)

    monkeypatch.setattr(observed, "open_regular", File)
    with journal.open("a") as file:
        file.write("\n" * 1_000_000)
    found.forget_changed()
    assert read == []
    assert found.get("one") is None  # whatever was missed
    with journal.open("a") as file:
        file.write("one RUNNING\n" * 100)
    found.forget_changed()

    assert read == [1200]


# ---- attempts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attempts", "entries"])
def test_more_attempts_than_there_can_be_are_an_error_of_the_app(
    scheduler: LocalScheduler, monkeypatch, kind: str
) -> None:
    """Its program can create any number of directories and files; each read would list them all."""
    path = on_record(scheduler)
    replica = path / "run" / "0" / layout.role_dir(0, "main") / "0"
    replica.mkdir(parents=True)
    if kind == "attempts":
        monkeypatch.setattr(layout, "MOST_ATTEMPTS", 100)
        for number in range(101):
            (replica / str(number)).mkdir()
    else:
        monkeypatch.setattr(layout, "_MOST_ENTRIES", 100)
        for number in range(101):
            (replica / f"x{number}").touch()

    for call in (scheduler.read_logs, scheduler.unfinished_line):
        with pytest.raises(AppUnavailableError, match="has more than 100"):
            call(path.name, "main", 0)
    with pytest.raises(AppUnavailableError, match="has more than 100"):
        scheduler.attempt_ending(path.name, "main", 0, 0)
    # The state names the last attempt, so that a result needs no list of them.
    assert scheduler.result(path.name) is None
    with_state(state="FAILED", replicas=[{**REPLICA, "phase": Phase.FAILED.value, "code": 1}])(path)
    assert scheduler.describe(path.name).state is AppState.FAILED


def test_links_do_not_multiply_the_files_that_are_listed(scheduler: LocalScheduler, monkeypatch) -> None:
    """5000 files and 300 links to their directory needed 3.3 s in each poll of all apps."""
    path = on_record(scheduler)
    replica = path / "other" / layout.role_dir(0, "main") / "0"
    replica.mkdir(parents=True)
    monkeypatch.setattr(layout, "_MOST_ENTRIES", 100)
    for number in range(50):
        (replica / f"x{number}").touch()
    (path / "run").mkdir()
    for number in range(20):
        (path / "run" / str(number)).symlink_to("../other")

    with pytest.raises(AppUnavailableError, match="more than 100"):
        scheduler.read_logs(path.name, "main", 0)


def test_errors_and_results_need_no_list_of_attempts(scheduler: LocalScheduler, monkeypatch) -> None:
    path = on_record(scheduler)
    attempt = Path(layout.attempt_dir(str(path), 2, layout.role_dir(0, "main"), 0, 3))
    attempt.mkdir(parents=True)
    (attempt / "error.json").write_text("it failed")
    (attempt / "result").write_text("5")
    failed = {**REPLICA, "phase": Phase.FAILED.value, "code": 1, "attempt": 3}
    with_state(state="FAILED", app_attempt=2, replicas=[failed])(path)
    monkeypatch.setattr(layout, "attempts_of", None)

    assert scheduler.describe(path.name).structured_error_msg == "it failed"
    assert scheduler.result(path.name) == 5


LONG_CODE = json.dumps({"code": "B" * 10**6})


def test_a_link_with_a_long_name_is_an_error_of_its_app(scheduler: LocalScheduler) -> None:
    """As an outage it would stop the logs of all apps of the connection."""
    path = on_record(scheduler)
    (path / "run").symlink_to("a" * 300)

    for call in (scheduler.read_logs, scheduler.unfinished_line):
        with pytest.raises(AppUnavailableError, match="was replaced: File name too long"):
            call(path.name, "main", 0)
    with pytest.raises(AppUnavailableError):
        scheduler.attempt_ending(path.name, "main", 0, 0)


@pytest.mark.parametrize("text", ["[]", "5", '{"code": []}', '{"signal": "x"}', '{"lost": 0}', "[" * 1000, LONG_CODE])
def test_an_end_that_a_program_wrote_is_no_error_of_its_log(scheduler: LocalScheduler, text: str) -> None:
    path = on_record(scheduler)
    attempt = path / "run" / "0" / layout.role_dir(0, "main") / "0" / "0"
    attempt.mkdir(parents=True)
    (attempt / "exit").write_text(text)

    ending = scheduler.attempt_ending(path.name, "main", 0, 0)
    assert isinstance(ending, str)
    assert len(ending) < 100
