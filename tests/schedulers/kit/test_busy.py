"""Retries of a request to a busy server."""

from __future__ import annotations

import time

from airflow_provider_launch.schedulers._kit.http import BusyRetry


def test_a_request_is_repeated_until_its_limit():
    """A busy server gets time, and a caller does not wait longer than its limit."""
    began, retry, pauses = time.monotonic(), BusyRetry(0.01, 0.04), 0
    while retry.pause(0.3):
        pauses += 1

    assert time.monotonic() - began < 0.4
    assert 5 <= pauses <= 9


def test_a_pause_that_the_server_wants_is_kept():
    began, retry = time.monotonic(), BusyRetry(0.001, 0.001)

    assert retry.pause(5, 0.2)
    assert time.monotonic() - began >= 0.2


def test_a_pause_beyond_the_limit_is_not_waited_for():
    began, retry = time.monotonic(), BusyRetry(0.001, 0.001)

    assert not retry.pause(1, 60)
    assert time.monotonic() - began < 0.5
