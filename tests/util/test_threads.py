"""A call without a timeout of its own ends at its limit."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from airflow_provider_launch.util.threads import limited


def timers() -> list[threading.Timer]:
    return [each for each in threading.enumerate() if isinstance(each, threading.Timer)]


def fails() -> None:
    raise OSError("no route")


@pytest.mark.parametrize("step", [lambda: None, fails], ids=["returns", "fails"])
def test_a_call_within_its_limit_is_not_ended_later(step) -> None:
    before, started = timers(), []

    def step_with_timer() -> None:
        started.extend(each for each in timers() if each not in before)
        step()

    with pytest.raises(OSError, match="no route") if step is fails else nullcontext():
        limited(3600, step_with_timer, pytest.fail)

    (timer,) = started
    timer.join(10)
    assert not timer.is_alive()


def test_a_call_that_is_ended_at_its_limit_is_a_timeout(monkeypatch) -> None:
    """Errors of the ended call, and of its end, are neither raised nor printed."""
    ended, printed, started = threading.Event(), [], []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    def step() -> None:
        started.extend(timers())
        assert ended.wait(30)
        raise EOFError

    def end() -> None:
        ended.set()
        raise ConnectionError("closed already")

    with pytest.raises(TimeoutError, match=r"within 0\.1 s") as raised:
        limited(0.1, step, end)
    for timer in started:
        timer.join(10)

    assert raised.value.__context__ is None
    assert not printed
