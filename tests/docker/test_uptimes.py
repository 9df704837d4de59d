"""Outside restarts, detected from two lists of the engine."""

from __future__ import annotations

from airflow_provider_launch.schedulers.docker.outside_stops import Uptimes


def row(status: str) -> dict[str, str]:
    return {"Id": "c1", "Status": status}


def test_a_shorter_uptime_is_a_restart():
    uptimes = Uptimes()

    assert uptimes.restarts(row("Up 2 minutes"), 100) == 0
    assert uptimes.restarts(row("Up 2 seconds (healthy)"), 110) == 1
    assert uptimes.restarts(row("Exited (0) 1 second ago"), 120) == 1


def test_an_older_list_that_comes_later_is_none():
    """Two threads list the containers at the same time."""
    uptimes = Uptimes()

    assert uptimes.restarts(row("Up 11 seconds"), 101) == 0
    assert uptimes.restarts(row("Up 10 seconds"), 100) == 0
    assert uptimes.restarts(row("Up 12 seconds"), 102) == 0
