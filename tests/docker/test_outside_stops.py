"""Events of engines of all versions: outside stops of containers, and end times."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop, add_event


def event(action: str, at: int, *, old: bool, **attributes: str) -> dict[str, Any]:
    """Return an event; engines with an API before 1.52 repeat the id of the container at the top."""
    document = {"Type": "container", "Action": action, "Actor": {"ID": "c1", "Attributes": attributes}, "time": at}
    return {**document, "id": "c1", "status": action, "from": "image"} if old else document


@pytest.mark.parametrize("old", [True, False], ids=["API 1.41", "API 1.52"])
def test_a_stop_and_an_end_are_seen_on_each_version(old: bool) -> None:
    stopped: dict[str, OutsideStop] = {}
    assert add_event(stopped, event("kill", 10, old=old, signal="15")) == ""
    assert add_event(stopped, event("die", 11, old=old, exitCode="0")) == ""
    assert stopped == {"c1": OutsideStop("SIGTERM", 0, 11)}

    restarted: dict[str, OutsideStop] = {}
    for one in ("kill", "die", "restart"):
        add_event(restarted, event(one, 10, old=old, signal="15"))
    assert add_event(restarted, event("die", 20, old=old, exitCode="0")) == "c1"
    assert restarted == {"c1": OutsideStop("", 1, 20)}

    ended: dict[str, OutsideStop] = {}
    assert add_event(ended, event("die", 30, old=old, exitCode="0")) == "c1"
    assert ended == {"c1": OutsideStop("", 0, 30)}


@pytest.mark.parametrize("document", [{}, {"Actor": None, "Action": "die"}, {"Action": "die", "time": "soon"}])
def test_an_event_of_nothing_ends_nothing(document: dict[str, Any]) -> None:
    assert add_event({}, document) == ""
