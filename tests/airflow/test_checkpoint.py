"""The last words of a triggerer that is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import _RequestFrame

from airflow_provider_launch._task.progress import FollowProgress, unpack
from airflow_provider_launch.triggers.checkpoint import Checkpoint, create_checkpoint, delete_checkpoint

TRIGGERS = 20


class SlowSupervisor:
    """Takes a request each 20 ms, as Airflow's does that asks its API for each, and answers none."""

    def __init__(self) -> None:
        self.socket, self._socket = socket.socketpair()
        self.places: dict[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._socket, self._socket.makefile("rb") as file:
            while header := file.raw.read(4):  # type: ignore[attr-defined] # buffered data would count as read
                body = b""
                while len(body) < (length := int.from_bytes(header, "big")):
                    body += file.raw.read(length - len(body))  # type: ignore[attr-defined]
                request = msgspec.msgpack.decode(body, type=_RequestFrame).body
                assert request is not None
                self.places[request["run_id"]] = FollowProgress.from_json(unpack(request["value"])).cursors["main/0"]
                time.sleep(0.02)


async def _trigger(number: int) -> None:
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id=str(number), map_index=-1, try_number=1)
    checkpoint = Checkpoint(ti)
    try:
        await checkpoint.save(FollowProgress({"main/0": "first"}))
        raise AssertionError("nobody answers")
    except asyncio.CancelledError:
        await checkpoint.save_on_shutdown(FollowProgress({"main/0": "last"}))
        raise


def test_a_stop_during_a_checkpoint_loses_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The triggerer drops its open requests first, so that some triggers are cancelled twice."""
    supervisor = SlowSupervisor()

    async def run() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(sock=supervisor.socket)
        comms = TriggerCommsDecoder(socket=supervisor.socket, async_writer=writer, async_reader=reader)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        await comms.start_reader()
        tasks = [asyncio.create_task(_trigger(number)) for number in range(TRIGGERS)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        # As `TriggerRunner.arun` ends.
        assert comms._reader_task is not None
        comms._reader_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await comms._reader_task
        # Its watchdog takes as long to notice.
        await asyncio.sleep(0.1)
        return writer

    loop = asyncio.new_event_loop()
    writer = loop.run_until_complete(run())
    # As `asyncio.run` ends; then the process is gone, and what was not read is lost.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    places = dict(supervisor.places)
    writer.transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    assert places == {str(number): "last" for number in range(TRIGGERS)}


TI = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)


def test_a_store_that_fails_costs_a_worker_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(*what: Any) -> None:
        asked.append(type(what[0]).__name__)
        raise OSError("no values today")

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=refuse), raising=False)
    create_checkpoint(SimpleNamespace(xcom_push=refuse, try_number=1))
    delete_checkpoint(TI)

    assert asked == ["str", "DeleteXCom"]


def test_a_store_that_fails_costs_a_trigger_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated lines are better than a task that fails; a later save may succeed."""
    asked: list[str] = []

    async def refuse(**what: Any) -> None:
        asked.append("set" if "value" in what else "get")
        raise OSError("no values today")

    async def run() -> FollowProgress | None:
        checkpoint = Checkpoint(TI)
        for _ in range(2):
            await checkpoint.save(FollowProgress({"main/0": "here"}))
        return await checkpoint.load()

    monkeypatch.setattr("airflow_provider_launch.triggers.checkpoint.get_xcom", refuse)
    monkeypatch.setattr("airflow_provider_launch.triggers.checkpoint.set_xcom", refuse)

    assert asyncio.run(run()) is None
    assert asked == ["set", "set", "get"]


def test_a_save_that_is_not_answered_ends_with_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a triggerer stops, replies no longer arrive."""
    ended: list[str] = []

    async def hang(**what: Any) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append(what["key"])
            raise

    async def run() -> list[str]:
        await Checkpoint(TI).save_on_shutdown(FollowProgress({"main/0": "last"}))
        for _ in range(10):
            await asyncio.sleep(0)
        return [*ended]  # the end of the loop would cancel it, too

    monkeypatch.setattr("airflow_provider_launch.triggers.checkpoint.set_xcom_at_shutdown", hang)

    assert asyncio.run(run()) == ["launch_cursor_1"]
