"""Files that a program has replaced in the directory of its app: they affect only that app."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.slurm import scheduler as slurm_scheduler
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.slurm.conftest import Place

pytestmark = pytest.mark.engine("slurm")


def directory(path: Path) -> None:
    path.mkdir()
    (path / "x").touch()


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(900 << 20)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\0{[\n" * 50)


def wrong_json(path: Path) -> None:
    path.write_text(json.dumps({"request": {"roles": [{"num_replicas": 10**9}]}, "instance": 5}))


ACTS = [directory, os.mkfifo, link, sparse, garbage]


def replace(path: Path, act: Callable[[Path], object]) -> None:
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    act(path)


@pytest.fixture
def way(slurm_cluster, request) -> dict[str, object]:
    """Options of a connection: commands of this host, or a login node."""
    sshd = slurm_cluster.sshd
    login = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "root"}
    login |= {"ssh_key_file": str(sshd.key), "ssh_host_key": sshd.host_key}
    return login if request.param == "ssh" else {}


WAYS = pytest.mark.parametrize("way", ["local", "ssh"], indirect=True)


@pytest.fixture
def make_place(slurm_cluster, slurm_root, way) -> Iterator[Callable[[], Place]]:
    places = []

    def make() -> Place:
        places.append(Place(slurm_cluster, slurm_root, **way))
        return places[-1]

    yield make
    for place in places:
        place.scheduler.close()


def shells_below(directory: Path) -> list[str]:
    """Return the processes of scripts whose working directory is this one or below it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(directory):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue
    return found


@WAYS
def test_a_damaged_record_is_an_error_of_its_app_alone(make_place, slurm_root) -> None:
    """The states of other apps, the list, the sweep and the connection test do not depend on it."""
    place = make_place()
    ids = [place.start(place.sh("exit 3")) for _ in range(3)]
    for app_id in ids:
        place.end(app_id)
    damaged, *sound = ids
    for act in [*ACTS, wrong_json]:
        replace(slurm_root / "apps" / damaged / "app.json", act)
        other = make_place()
        began = time.monotonic()
        answers = poll_many(other.scheduler, ids)
        rows = {row.app_id: row.state for row in other.scheduler.list()}

        assert isinstance(answers[damaged], AppUnavailableError), act
        assert "app.json" in str(answers[damaged])
        assert [answers[app_id].state for app_id in sound] == [AppState.FAILED] * 2
        assert rows == dict.fromkeys(ids, AppState.FAILED)
        with pytest.raises(AppUnavailableError, match=damaged):
            other.scheduler.read_logs(damaged, "main", 0)
        assert "slurm" in other.scheduler.probe()
        assert time.monotonic() - began < 20
    assert shells_below(slurm_root) == []
    place.scheduler.cancel(damaged)
    place.scheduler.delete(damaged)
    assert not (slurm_root / "apps" / damaged).exists()


@WAYS
def test_replaced_files_of_an_attempt_do_not_stop_the_reader(make_place, slurm_root) -> None:
    """Links are not followed: they may lead to files that the program in its container cannot read."""
    place = make_place()
    app_id, other = place.start(place.sh("echo up; exit 3")), place.start(place.sh("echo fine"))
    place.end(app_id), place.end(other)
    at = slurm_root / "apps" / app_id / "run/0/0-main/0/0"
    for act in ACTS:
        for name in ("error.json", "result", "stdout", "times"):
            replace(at / name, act)
        reader = make_place().scheduler
        answers = poll_many(reader, [app_id, other])
        lines = list(reader.log_iter(app_id, "main")) if act is not sparse else []

        assert [answers[app_id].state, answers[other].state] == [AppState.FAILED, AppState.SUCCEEDED], act
        assert "root:" not in answers[app_id].structured_error_msg + "".join(lines)
        assert "\0" not in answers[app_id].structured_error_msg[:100] or act is not garbage
        with pytest.raises(InvalidAppError, match="result"):
            reader.result(app_id)
        assert list(reader.log_iter(other, "main")) == ["fine\n"]
    assert shells_below(slurm_root) == []


@WAYS
def test_a_link_in_place_of_a_directory_leads_nowhere(make_place, slurm_root, tmp_path) -> None:
    place = make_place()
    app_id = place.start(place.sh("echo up; exit 3"))
    place.end(app_id)
    for name in ("stdout", "error.json", "result"):
        (tmp_path / name).write_text('"secret"\n')
    at = slurm_root / "apps" / app_id / "run/0/0-main/0/0"
    replace(at, lambda path: path.symlink_to(tmp_path))
    reader, mounted = make_place(), Place(place.cluster, slurm_root, mount=str(slurm_root))

    assert "secret" not in reader.scheduler.describe(app_id).structured_error_msg
    assert list(reader.scheduler.log_iter(app_id, "main")) == []
    assert list(mounted.scheduler.log_iter(app_id, "main")) == []
    with pytest.raises(InvalidAppError, match="not a plain file"):
        reader.scheduler.result(app_id)


@WAYS
def test_damaged_states_are_errors_of_their_app_alone(make_place, slurm_root) -> None:
    """Names and targets of links can be any text: they cannot forge a record of another app or fail a poll."""
    place = make_place()
    damaged, other = place.start(place.sh("exit 3")), place.start(place.sh("sleep 300"))
    place.end(damaged)
    folder = slurm_root / "apps" / damaged
    forged = f"x\n{other}/end\t1\t2.0\tl\tFAILED,exit,1.0"
    for target in ("FAILED", "NO_STATE,exit,1", "FAILED,exit,nan", "FAILED,exit," + "9" * 4000, forged):
        replace(folder / "end", lambda path, target=target: path.symlink_to(target))
        answers = poll_many(make_place().scheduler, [damaged, other])
        assert isinstance(answers[damaged], AppUnavailableError), target
        assert answers[other].state in {AppState.PENDING, AppState.RUNNING, AppState.SUBMITTED}
        assert {row.app_id for row in make_place().scheduler.list()} == {damaged, other}
    for act in (directory, os.mkfifo, garbage):
        replace(folder / "end", act)
        assert isinstance(poll_many(make_place().scheduler, [damaged, other])[damaged], AppUnavailableError), act
    replace(folder / "end", lambda path: path.symlink_to(f"FAILED,exit,{time.time():.3f}"))
    for name in ("exit,0,0,0,0,1,0,nan", "start,²,0,0,0,h,1", "exit,0,9,9,0,1,0,5.0", "start,0,0", "x\ny,1"):
        (folder / "status" / name).touch()
    assert make_place().scheduler.describe(damaged).state is AppState.FAILED
    for act in (os.mkfifo, link, garbage):
        replace(folder / "status", act)
        assert make_place().scheduler.describe(damaged).state is AppState.FAILED
        assert list(make_place().scheduler.log_iter(damaged, "main")) == []
    for act in ACTS:
        replace(folder / "id", act)
        scheduler = make_place().scheduler
        assert {row.app_id for row in scheduler.list()} == {damaged, other}
        scheduler.cancel(damaged)
    scheduler.delete(damaged)
    scheduler.cancel(other)
    place.end(other)
    assert shells_below(slurm_root) == []


@WAYS
def test_an_endless_answer_is_cut(slurm_cluster, slurm_root, way, tmp_path) -> None:
    """Memory and time of a worker do not depend on what a login node writes."""
    find = tmp_path / "find"
    find.write_text('#!/bin/sh\ncase "$*" in *mindepth*) exec yes ;; esac\nexec /usr/bin/find "$@"\n')
    find.chmod(0o755)
    slurm_root.mkdir(mode=0o700)
    (slurm_root / "apps").mkdir(mode=0o700)
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(tmp_path), **way)
    (slurm_root / "apps" / "x").mkdir()
    with pytest.raises(SchedulerUnavailableError, match="MB"):
        place.scheduler.list()
    place.scheduler.close()


# ---- directories of other users --------------------------------------------------------------------------------------


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    path.chmod(0o770)


def foreign(path: Path) -> None:
    shutil.chown(path, "nobody")


@WAYS
@pytest.mark.parametrize("spoil", [open_to_all, open_to_a_group, foreign])
@pytest.mark.parametrize("where", ["", "apps", "building"])
def test_a_directory_that_others_can_write_is_refused(make_place, slurm_root, spoil, where) -> None:
    place = make_place()
    slurm_root.mkdir(mode=0o700)
    for name in ("apps", "building"):
        (slurm_root / name).mkdir(mode=0o700)
    spoil(slurm_root / where)
    with pytest.raises(SchedulerRejectedError, match=r"open to other users.*chmod go-w"):
        place.start(place.sh("true"))
    with pytest.raises(SchedulerRejectedError, match="open to other users"):
        place.scheduler.probe()
    if where != "building":
        with pytest.raises(SchedulerRejectedError, match="open to other users"):
            place.scheduler.list()
    shutil.chown(slurm_root / where, "root")
    (slurm_root / where).chmod(0o700)

    assert place.end(place.start(place.sh("true"))).state is AppState.SUCCEEDED


@pytest.mark.parametrize("spoil", [open_to_all, foreign])
@pytest.mark.parametrize("level", ["", "apps", "app"])
def test_a_job_runs_nothing_from_a_directory_that_others_can_write(place, slurm_root, spoil, level, tmp_path) -> None:
    """They may have changed it while the job waited."""
    app_id = place.start(place.sh("true"), overlay={"begin": "now+8"})
    folder = slurm_root / "apps" / app_id
    spoiled = {"": slurm_root, "apps": folder.parent, "app": folder}[level]
    with (folder / "plan").open("a") as file:
        file.write(f"\ntouch {tmp_path}/ran\n")
    spoil(spoiled)
    deadline = time.monotonic() + 90
    job = folder / "job.log"
    while "nothing in it is run" not in (job.read_text() if job.exists() else ""):
        assert time.monotonic() < deadline, "the job has not ended"
        time.sleep(0.3)

    assert not (tmp_path / "ran").exists()
    shutil.chown(spoiled, "root")
    spoiled.chmod(0o700)
    assert place.end(app_id).state is AppState.FAILED


def test_a_root_below_a_shared_directory_is_fine(slurm_cluster, slurm_root) -> None:
    shared = slurm_root.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    place = Place(slurm_cluster, shared / "launch")

    assert place.end(place.start(place.sh("true"))).state is AppState.SUCCEEDED
    assert (shared / "launch").stat().st_mode & 0o777 == 0o700


def test_a_link_of_another_user_is_no_root(slurm_cluster, slurm_root) -> None:
    slurm_root.mkdir(mode=0o700)
    link_ = slurm_root.parent / "link"
    link_.symlink_to(slurm_root)
    subprocess.run(["chown", "-h", "nobody", str(link_)], check=True)
    with pytest.raises(SchedulerRejectedError, match="link"):
        Place(slurm_cluster, link_).start(Place(slurm_cluster, link_).sh("true"))


def test_wrong_values_in_a_record_are_an_error_of_its_app_alone(place, slurm_root) -> None:
    """The list, which the connection test and sweeps use, showed no app at all."""
    damaged, sound = place.start(place.sh("exit 3")), place.start(place.sh("exit 4"))
    place.end(damaged), place.end(sound)
    folder = slurm_root / "apps" / damaged
    request = json.loads((folder / "app.json").read_text())
    (folder / "end").unlink()
    (folder / "end").symlink_to(f"FAILED,limit,{int(time.time())}")
    for name, value in [("time_limit_s", "x"), ("time_limit_s", [[]]), ("grace_s", {}), ("ports", {"A": []})]:
        changed = {**request, "request": {**request["request"], name: value}}
        (folder / "app.json").write_text(json.dumps(changed))
        scheduler = Place(place.cluster, slurm_root).scheduler

        rows = {row.app_id: row.state for row in scheduler.list()}
        answers = poll_many(scheduler, [damaged, sound])

        assert rows[sound] is AppState.FAILED
        assert damaged in rows
        assert answers[sound].state is AppState.FAILED
        assert isinstance(answers[damaged], AppUnavailableError), name
        scheduler.close()


def test_an_app_that_cannot_be_described_hides_no_other(place, slurm_root, monkeypatch) -> None:
    """Even if the checks of its record miss the damage."""
    damaged, sound = place.start(place.sh("exit 3")), place.start(place.sh("exit 4"))
    place.end(damaged), place.end(sound)
    original = slurm_scheduler.response_from

    def fails(record, *args):
        if record.app_id == damaged:
            raise TypeError("unsupported format")
        return original(record, *args)

    monkeypatch.setattr(slurm_scheduler, "response_from", fails)
    scheduler = Place(place.cluster, slurm_root).scheduler
    with pytest.raises(AppUnavailableError) as caught:
        scheduler.describe_many([damaged, sound])

    assert set(caught.value.texts) == {damaged}
    assert {row.app_id for row in scheduler.list()} >= {damaged, sound}
    scheduler.close()
