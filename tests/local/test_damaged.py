"""A program may replace the records of its own app; it harms no other app of the root."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.states import AppState, is_terminal

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
    deadline = time.monotonic() + 60
    while not all(is_terminal(found.state) for found in scheduler.describe_many(ids).values() if found):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield scheduler, *ids
    scheduler.close()
    shutil.rmtree(tmp_path / "root", ignore_errors=True)


def without_damaged(scheduler, damaged: str, other: str):
    """Ask for both, and once more for the other one if the error names the damaged one and nothing else."""
    try:
        return scheduler.describe_many([damaged, other])
    except AppUnavailableError as error:
        if set(error.texts) != {damaged}:
            raise
    return scheduler.describe_many([other])


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_an_error_of_its_app(apps, tmp_path, damage):
    """The list is what connection test, sweep and clean-up recipes read."""
    scheduler, damaged, other = apps
    damage(tmp_path / "root" / "apps" / damaged)

    assert {row.app_id: row.state for row in scheduler.list()}[other] is AppState.SUCCEEDED
    found = without_damaged(scheduler, damaged, other)
    assert found[other].state is AppState.SUCCEEDED
    assert [line.text for line in scheduler.read_logs(other, "main", 0).lines] == ["line\n"]


def test_a_damaged_record_names_its_cure(apps, tmp_path):
    scheduler, damaged, _ = apps
    write("app.json", "[]")(tmp_path / "root" / "apps" / damaged)

    for call in (scheduler.describe, scheduler.result, scheduler.cancel):
        with pytest.raises(AppUnavailableError, match=r"is damaged: .*; end its processes and remove '/"):
            call(damaged)
