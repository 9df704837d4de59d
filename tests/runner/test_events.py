"""One event per call."""

from __future__ import annotations

import json
import time

import pytest

from airflow_provider_launch.runner import events
from airflow_provider_launch.runner.events import LaunchEvent, SourceType, log_event, record


@pytest.fixture
def recorded(monkeypatch):
    seen = []
    monkeypatch.setattr(events, "record", lambda event, destination="null": seen.append(event))
    return seen


def test_a_call_is_measured_and_recorded(recorded):
    start = time.perf_counter(), time.process_time()
    with log_event("status", "local", "app-1") as logged:
        logged.event.app_image = "image"
    wall_s, cpu_s = time.perf_counter() - start[0], time.process_time() - start[1]

    (event,) = recorded
    assert (event.api, event.scheduler, event.app_id, event.app_image) == ("status", "local", "app-1", "image")
    assert 0 <= event.wall_time_usec <= wall_s * 1e6
    assert 0 <= event.cpu_time_usec <= cpu_s * 1e6
    assert event.start_epoch_time_usec > 0
    assert event.exception_type is None


def test_an_error_is_recorded_and_passes(recorded):
    with pytest.raises(ValueError, match="wrong"), log_event("run"):
        raise ValueError("wrong")

    (event,) = recorded
    assert (event.exception_type, event.exception_message) == ("ValueError", "wrong")
    assert "Traceback" in event.raw_exception
    assert json.loads(event.exception_source_location)["name"] == "test_an_error_is_recorded_and_passes"


def test_an_event_survives_json():
    event = LaunchEvent("s", "local", "run", app_metadata={"a": "b"}, source=SourceType.EXTERNAL)

    assert LaunchEvent.deserialize(event.serialize()) == event
    assert LaunchEvent.deserialize(str(event)) == event
    assert LaunchEvent.deserialize(event) is event
    with pytest.raises(TypeError):
        LaunchEvent.deserialize(3)


@pytest.mark.parametrize(("destination", "lines"), [("null", 0), ("console", 1)])
def test_an_event_is_one_line_of_the_console(capsys, monkeypatch, destination, lines):
    monkeypatch.setattr(events, "_loggers", {})  # they keep the stderr of an earlier test
    record(event := LaunchEvent("s", "local", "run"), destination)

    assert capsys.readouterr().err.splitlines() == [event.serialize()] * lines


@pytest.mark.parametrize("destination", ["null", "console", "no-such-destination"])
def test_record_never_raises(destination):
    record(LaunchEvent("s", "local", "run"), destination)
