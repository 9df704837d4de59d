"""Events of engines of all versions: outside stops of containers, and end times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.observer import Observer
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop, add_event, signal_number
from airflow_provider_launch.specs import AppState
from tests.docker import test_status as listed


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
    for one, number in (("kill", "10"), ("kill", "15"), ("die", "15"), ("restart", "15")):
        add_event(restarted, event(one, 10, old=old, signal=number))
    assert add_event(restarted, event("die", 20, old=old, exitCode="0")) == "c1"
    assert restarted == {"c1": OutsideStop("", 1, 20)}

    ended: dict[str, OutsideStop] = {}
    assert add_event(ended, event("die", 30, old=old, exitCode="0")) == "c1"
    assert ended == {"c1": OutsideStop("", 0, 30)}


@pytest.mark.parametrize("document", [{}, {"Actor": None, "Action": "die"}, {"Action": "die", "time": "soon"}])
def test_an_event_of_nothing_ends_nothing(document: dict[str, Any]) -> None:
    assert add_event({}, document) == ""


class Replay:
    """Answers of an engine: events in pieces of a few bytes, after which it waits, and an inspection."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = "".join(f"{json.dumps(one)}\n" for one in events).encode()
        self.waited = False

    @contextmanager
    def request(self, _method: str, path: str, *_args: object) -> Iterator[Any]:
        yield SimpleNamespace(iter_content=self._of_events if path == "/events" else self._of_inspection)

    def _of_events(self, _size: int) -> Iterator[bytes]:
        for at in range(0, len(self._events), 7):
            yield self._events[at : at + 7]
        self.waited = True

    def _of_inspection(self, _size: int) -> Iterator[bytes]:
        at = "1970-01-01T00:16:39.5Z"
        state = {"StartedAt": at, "FinishedAt": at, "ExitCode": 0, "Error": "", "Status": "exited"}
        yield json.dumps({"Created": at, "State": state}).encode()


@pytest.mark.parametrize("old", [True, False], ids=["API 1.41", "API 1.52"])
@pytest.mark.parametrize(
    ("actions", "state", "detail", "waits"),
    [
        (["kill", "die"], AppState.FAILED, ("SIGTERM", 0), True),
        (["kill", "die", "restart", "die"], AppState.SUCCEEDED, ("", 1), False),
        (["die"], AppState.SUCCEEDED, None, False),
    ],
    ids=["stopped", "restarted", "ended"],
)
def test_an_observer_learns_of_them(
    old: bool, actions: list[str], state: AppState, detail: tuple[str, int] | None, waits: bool
) -> None:
    """The container has exited with 0. An end without a signal is certain before the engine ends its answer."""
    rows = listed.Engine(("main", 1, "REPLICA", 0))
    rows.replica("main", 0, "exited", 0)
    (container,) = rows.app().replicas()
    replay = Replay([on(container.id, event(one, 999, old=old, signal="15")) for one in actions])
    engine = Engine(DockerConnection(host="unix:///none"))
    engine.wire = replay  # type: ignore[assignment]
    observer = Observer(engine, None, None)  # type: ignore[arg-type]
    found = observer.assess(rows.app(), listed.NOW)
    known = observer.details.get(container.id)

    assert (found.state, replay.waited) == (state, waits)
    assert (known and (known.outside, known.restarts)) == detail
    assert observer.ended_at[container.id] == 999


@pytest.mark.parametrize(("state", "code"), [("exited", 3), ("exited", 137), ("dead", 0), ("running", None)])
def test_only_programs_that_ended_with_0_need_events(state: str, code: int | None) -> None:
    """A failure has its own cause. An app that fails and is retried would cost a request for events at each attempt."""
    rows = listed.Engine(("main", 1, "REPLICA", 0))
    rows.replica("main", 0, state, code)
    replay = Replay([])
    engine = Engine(DockerConnection(host="unix:///none"))
    engine.wire = replay  # type: ignore[assignment]
    Observer(engine, None, None).find_outside_stops([rows.app()], listed.NOW)  # type: ignore[arg-type]

    assert not replay.waited


def on(container: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the event for this container."""
    top = {"id": container} if "id" in document else {}
    return {**document, **top, "Actor": {**document["Actor"], "ID": container}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SIGUSR1", "10"), ("usr1", "10"), ("28", "28"), ("SIGRTMIN+3", "37"), ("", ""), ("SIGX", ""),
        ("SIGUSR1+x", ""), ("_BLOCK", ""), ("SIG_IGN", ""), ("²", ""),
    ],
)  # fmt: skip
def test_the_number_of_a_signal_of_an_image(text: str, number: str) -> None:
    assert signal_number(text) == number
