"""Files that a program puts in place of files of its app, at paths that this launcher writes or locks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import LaunchError
from tests.support.local import Apps, sh


def directory(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(900 << 20)


def writable(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


REPLACED = [
    *(
        (name, act)
        for name in ("lock", "supervisor.log", "cancel", "state.json")
        for act in (os.mkfifo, directory, link)
    ),
    *(("state.json", text(content)) for content in (b"[]", b'{"final": 1}', b'{"final": true}', b"5")),
    *(("app.json", act) for act in (os.mkfifo, directory, link, writable, sparse)),
    *(("app.json", text(content)) for content in (b"[]", b"{}", b'{"app": 1, "host": 2}', b"[" * 100_000)),
    ("run/²", directory),
    ("run/1", os.mkfifo),
]


@pytest.mark.parametrize(("name", "act"), REPLACED, ids=lambda item: getattr(item, "__name__", item))
def test_what_an_app_puts_in_place_of_its_files_concerns_no_other_app(apps: Apps, name: str, act) -> None:
    """States, list, sweep, cancel and connection test of the others; a dead supervisor does not count."""
    damaged, other = apps.start(sh("exit 3")), apps.start(sh("sleep 300"))
    apps.end(damaged)
    path = apps.dir(damaged) / name
    if name in {"lock", "supervisor.log", "cancel"}:
        # Without its state another supervisor has to find it again.
        (apps.dir(damaged) / layout.STATE).unlink()
    path.unlink(missing_ok=True)
    act(path)
    scheduler = apps.another()
    failed: list[BaseException | None] = []

    def use() -> None:
        answers = poll_many(scheduler, [damaged, other])
        assert answers[other].state in {AppState.PENDING, AppState.RUNNING}
        assert other in {row.app_id for row in scheduler.list()}
        with contextlib.suppress(LaunchError):
            scheduler.cancel(damaged)
        (apps.root / "swept").unlink(missing_ok=True)
        apps.end(apps.start(sh("true")))
        scheduler.cancel(other)

    def note() -> None:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - of the test
            failed.append(error)
        else:
            failed.append(None)

    # A call that hangs would not fail the test, and would stop all later ones.
    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    thread.join(60)

    assert failed == [None]
    assert apps.end(other).state is AppState.CANCELLED


def test_a_pipe_in_place_of_the_next_log_is_not_waited_for(apps: Apps) -> None:
    """An attempt may create the files of the next one."""
    run = '"$(dirname "$TORCHELASTIC_ERROR_FILE")"/../../../..'
    make = "; ".join(f"mkdir -p {run}/{at}; mkfifo {run}/{at}/stdout" for at in ("0/0-main/0/1", "1/0-main/0/0"))
    app_id = apps.start(sh(f"{make}; exit 1", max_retries=1))

    assert apps.end(app_id).state is AppState.FAILED
