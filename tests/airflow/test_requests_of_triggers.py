"""Requests of triggers to Airflow 3.1, whose triggerer ends if another thread than one of asgiref sends one."""

from __future__ import annotations

import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from asgiref.sync import async_to_sync

from airflow_provider_launch import _airflow
from tests.airflow.versions import TriggerRunner


class Comms:
    """As the connection of that triggerer to its supervisor: answers come in the order of the requests."""

    _async_writer = None

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.answered = 0

    def send(self, message: str) -> str:
        return async_to_sync(self.asend)(message)

    async def asend(self, message: str) -> str:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.05)
        self.answered += 1
        return f"answer to {message}"


class NewComms(Comms):
    """As from Airflow 3.2 on."""

    def start_reader(self) -> None: ...


@pytest.fixture
def comms(monkeypatch) -> Comms:
    found = Comms()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", found, raising=False)
    return found


def in_triggerer(work: Any) -> Any:
    """Return the result of a call in another thread of a triggerer."""

    async def main() -> Any:
        _airflow.enter_triggerer()
        return await asyncio.to_thread(work), asyncio.get_running_loop()

    return asyncio.run(main())


def test_a_thread_sends_its_request_on_the_event_loop(comms) -> None:
    answer, loop = in_triggerer(lambda: _airflow.ask(lambda: comms.send("a")))

    assert answer == "answer to a"
    assert comms.loops == [loop]


def test_many_threads_and_requests_within_requests_do_not_wait_for_each_other(comms) -> None:
    count = 4 * _airflow._THREADS
    answers: list[str] = []

    def work() -> None:
        threads = [
            threading.Thread(target=lambda: answers.append(_airflow.ask(lambda: _airflow.ask(lambda: comms.send("b")))))
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    _, loop = in_triggerer(work)

    assert answers == ["answer to b"] * count
    assert {*comms.loops} == {loop}


def test_an_error_reaches_the_caller(comms) -> None:
    def fail() -> None:
        raise LookupError("no such run")

    with pytest.raises(LookupError, match="no such run"):
        in_triggerer(lambda: _airflow.ask(fail))


def test_newer_triggerers_and_workers_are_asked_in_the_same_thread(monkeypatch, comms) -> None:
    assert _airflow.ask(threading.get_ident) == threading.get_ident()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", NewComms(), raising=False)
    (same, asked), _ = in_triggerer(lambda: (threading.get_ident(), _airflow.ask(threading.get_ident)))

    assert same == asked


def test_a_cancelled_trigger_leaves_no_unread_answer(comms) -> None:
    """An unread answer is taken for that of the next request, which ends the triggerer."""

    async def main() -> None:
        _airflow.enter_triggerer()
        asking = asyncio.ensure_future(_airflow.ask_from_loop(lambda: comms.send("c")))
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert comms.answered == 0
        await asyncio.sleep(0.5)

    asyncio.run(main())
    assert comms.answered == len(comms.loops) == 1


def test_the_position_is_on_its_way_at_once_when_a_triggerer_ends(monkeypatch) -> None:
    """Before Airflow 3.3; through a thread it would be too late, and the next triggerer would repeat lines."""
    monkeypatch.delattr(BaseXCom, "aset", raising=False)

    async def main() -> bytes:
        found: list[bytes] = []
        comms = SimpleNamespace(id_counter=itertools.count(), _async_writer=SimpleNamespace(write=found.append))
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        where = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, "key": "k"}
        saving = asyncio.ensure_future(_airflow.set_xcom_at_shutdown(value="position", **where))
        await asyncio.sleep(0)
        assert saving.done()
        return b"".join(found)

    sent = asyncio.run(main())
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    number, body = msgspec.msgpack.decode(sent[4:])[:2]
    assert number == 0
    assert (body["type"], body["key"], body["value"]) == ("SetXCom", "k", "position")


@pytest.mark.parametrize("is_stopping", [False, True])
def test_without_a_reason_only_a_triggerer_that_goes_on_has_ended_a_trigger(monkeypatch, is_stopping) -> None:
    """Airflow 3.1 and 3.2 cancel a trigger without a message when its task is ended, and when the triggerer stops."""
    monkeypatch.setattr(_airflow, "_message_of_user", lambda: None)

    async def main() -> tuple[bool, bool]:
        running = None if is_stopping else asyncio.ensure_future(TriggerRunner().arun())
        await asyncio.sleep(0)
        error = asyncio.CancelledError()
        try:
            return _airflow.is_ended_by_user(error), _airflow.is_left_to_another(error)
        finally:
            if running is not None:
                running.cancel()

    assert asyncio.run(main()) == (not is_stopping, True)


def test_the_main_task_of_a_triggerer_has_the_expected_name() -> None:
    from airflow.jobs.triggerer_job_runner import TriggerRunner as OfAirflow

    assert OfAirflow.arun.__qualname__ == TriggerRunner.arun.__qualname__ == "TriggerRunner.arun"
