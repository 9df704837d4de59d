"""Pauses grow to their limit."""

from __future__ import annotations

from itertools import islice

from airflow_provider_launch.util.backoff import backoff


def test_pauses_double_up_to_the_limit() -> None:
    assert list(islice(backoff(0.5, 3), 5)) == [0.5, 1, 2, 3, 3]
    assert list(islice(backoff(5, 3), 2)) == [3, 3]
