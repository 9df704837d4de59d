"""Guarantee 8: a log that stalls, floods, or has invalid content, and another task at the same time."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_launch.triggers import hub as hub_module
from airflow_provider_launch.triggers.feed import RECORD_BYTES
from tests.airflow.guarantees import (
    WAIT,
    Heard,
    LocalPlace,
    Place,
    deferred,
    in_modes,
    launch,
    meanwhile,
    on_places,
    resumed,
)
from tests.airflow.support import FakeExecutionApi, run_to_end, run_triggers
from tests.support.apps import until

FLOOD = 60_000
"""Lines that are written as fast as the replica can: more than a million in a minute."""
TICKS = "i=0; while test ! -e $GO; do i=$((i + 1)); echo tick $i; sleep 0.1; done"


@pytest.fixture(autouse=True)
def triggerer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A triggerer that has just started."""
    monkeypatch.setattr(hub_module, "_hub", None)
    return


def skip_where_nothing_stalls(place: Place) -> None:
    if isinstance(place, LocalPlace):
        pytest.skip("a regular file does not stall, and nothing else in its place is read")


@on_places
@in_modes
def test_a_stalled_log_does_not_delay_the_end(place: Place, deferrable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 8: the end is known in time, and the log says what may be missing."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__LOG_DRAIN_S", "1")
    how = {"deferrable": deferrable, "poll_interval_s": 0.05, "cfg": place.cfg_without_result}
    task = launch(place, place.role(WAIT), **how)
    is_over, began = threading.Event(), []
    skip_where_nothing_stalls(place)

    def act() -> None:
        heard.until("[main/0] begun")
        with place.stalled_logs():
            place.go()
            began.append(time.monotonic())
            is_over.wait(60)

    with Heard() as heard, meanwhile(act, place):
        ran, events = run_to_end(task, FakeExecutionApi())
        took = time.monotonic() - began[0]
        is_over.set()

    assert ran.state == "success", (ran.error, ran.lines)
    assert [event["why"] for event in events] == ["ended"] * deferrable
    assert took < 8 + place.lag_s
    known = heard.when("-> SUCCEEDED")
    assert known is not None
    assert known - began[0] < 4 + place.lag_s
    assert ran.logged("log of main/0: the end of the log may be missing")


@pytest.mark.engine("aws_batch")
@pytest.mark.parametrize("place", ["aws_batch"], indirect=True)
@in_modes
def test_a_result_in_a_stalled_log_is_waited_for(
    place: Place, deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 8: if the log contains the result, the task reports that it cannot be read, and does not lose it."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__LOG_DRAIN_S", "1")
    extra = {**place.connection["extra"], "timeout_s": 2}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({**place.connection, "extra": extra}))
    script = f"{WAIT}; echo 42 > $LAUNCH_RESULT_PATH"
    task = launch(place, place.role(script), deferrable=deferrable, poll_interval_s=0.05)

    def act() -> None:
        heard.until("[main/0] begun")
        with place.stalled_logs():
            place.go()
            heard.until("-> SUCCEEDED", 60)
            heard.until("the scheduler does not answer", 60)

    with Heard() as heard, meanwhile(act, place):
        ran, _ = run_to_end(task, api := FakeExecutionApi())

    assert ran.state == "success", (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"]["result"] == 42


@on_places
@pytest.mark.parametrize("stalled", [3, 6])
def test_stalled_logs_do_not_delay_the_log_of_another_app(place: Place, stalled: int) -> None:
    """Guarantee 8: an error of one app stays there."""
    skip_where_nothing_stalls(place)
    if place.connection["conn_type"] in {"launch_slurm", "launch_aws_batch"}:
        pytest.skip("one directory or service holds the logs of all apps, and stalls for all of them")
    places = [place.another() for _ in range(stalled)]
    triggers = [
        deferred(launch(one, one.role(TICKS), deferrable=True, poll_interval_s=0.05), FakeExecutionApi())[0]
        for one in places
    ]
    quiet_at = place.another()
    quiet, _ = deferred(
        launch(
            quiet_at, quiet_at.role("while test ! -e $GO; do sleep 0.05; done; echo spoken; sleep 60"), deferrable=True
        ),
        FakeExecutionApi(),
    )

    def during(cancel: Any) -> None:
        until(lambda: sum("tick 1" in line for _, line in heard.lines) >= stalled)
        try:
            with contextlib.ExitStack() as stack:
                for one in places:
                    stack.enter_context(one.stalled_logs())
                # Each reader has met a source that stalls, if it can.
                time.sleep(2)
                quiet_at.go()
                heard.until("[main/0] spoken", 6)
        finally:
            for number in range(stalled + 1):
                cancel(number, None)

    with Heard() as heard:
        run_triggers(*triggers, quiet, during=during)
    for one in places:
        one.go()

    assert heard.when("[main/0] spoken") is not None


def numbered(heard: Heard) -> list[tuple[float, str]]:
    """Return the lines of the flood, and when they came."""
    return [(moment, line) for moment, line in list(heard.lines) if re.fullmatch(r"\[main/0\] \d+", line)]


@on_places
def test_a_flood_keeps_the_budget_and_leaves_the_rest_to_the_worker(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 8: the budget holds, lines and end of the other app are shown, and each line is shown once."""
    rate = 100_000
    monkeypatch.setenv("AIRFLOW__LAUNCH__TRIGGER_LOG_BYTES_PER_S", str(rate))
    quiet_at = place.another()
    task = launch(place, place.role(f"seq 1 {FLOOD}; {WAIT}"), deferrable=True, poll_interval_s=0.05)
    flood, asked = deferred(task, api := FakeExecutionApi())
    quiet, _ = deferred(
        launch(quiet_at, quiet_at.role(TICKS), deferrable=True, poll_interval_s=0.05), FakeExecutionApi()
    )

    def during(_cancel: Any) -> None:
        until(lambda: len(numbered(heard)) > 1500, 60)
        quiet_at.go()
        # During a continuing flood.
        heard.until("Trigger fired event", 5 + place.lag_s)
        place.go()

    with Heard() as heard:
        events = run_triggers(flood, quiet, during=during)
        shown = numbered(heard)
        ran = resumed(task, api, asked, events[0][0].payload)

    assert [[event.payload["why"] for event in each] for each in events] == [["ended"], ["ended"]]
    size = sum(len(line) - len("[main/0] ") + 1 + RECORD_BYTES for _, line in shown)
    # Starts with a budget of a part of a second.
    assert size < rate * (shown[-1][0] - shown[0][0] + 1)
    ticks = [moment for moment, line in heard.lines if "tick" in line]
    assert max(later - earlier for earlier, later in itertools.pairwise(ticks)) < 2 + place.log_lag_s
    assert ran.state == "success", ran.error
    told = [line for _, line in numbered(heard)]
    assert len(shown) < FLOOD
    assert len(told) == FLOOD, (len(shown), len(told), ran.lines[:3], ran.lines[-5:])
    assert told == [f"[main/0] {number}" for number in range(1, FLOOD + 1)]


@on_places
def test_a_flood_on_a_worker_is_there_line_by_line(place: Place) -> None:
    """Guarantee 8."""
    script = f"seq 1 {FLOOD}; sleep {place.drain_s:g}"
    ran, _ = run_to_end(launch(place, place.role(script)), FakeExecutionApi())

    assert ran.state == "success", ran.error
    told = [line for line in ran.lines if re.fullmatch(r"\[main/0\] \d+", line)]
    assert len(told) == FLOOD, ran.lines[-8:]
    assert told == [f"[main/0] {number}" for number in range(1, FLOOD + 1)]


@on_places
@in_modes
def test_long_lines_and_broken_text_are_there_once(place: Place, deferrable: bool) -> None:
    """Guarantee 8: a line of 1 MB comes in pieces, and invalid UTF-8 is marked and hides no text."""
    script = (
        f"printf 'bad \\377 byte\\n'; head -c 1000000 /dev/zero | tr '\\0' x; echo; "
        f"printf '\\303\\50 \\355\\240\\200\\n'; {WAIT}; printf 'last \\303'"
    )
    task = launch(place, place.role(script), deferrable=deferrable, poll_interval_s=0.05)

    def act() -> None:
        heard.until("[main/0] begun")
        place.go()

    with Heard() as heard, meanwhile(act, place):
        ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.state == "success", ran.error
    lines = [line for line in ran.lines if line.startswith("[main/0") and "launch-start" not in line]
    pieces = [line for line in lines if re.match(r"\[main/0 \d+/\d+\] ", line)]
    assert "".join(piece.partition("] ")[2] for piece in pieces) == "x" * 1_000_000
    assert max(map(len, pieces)) < 33_000
    rest = [line for line in lines if line not in pieces]
    assert rest == [
        "[main/0] bad \ufffd byte",
        "[main/0] \ufffd( \ufffd\ufffd\ufffd",
        "[main/0] begun",
        "[main/0] done",
        "[main/0] last \ufffd",
    ]


# ---- secrets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def another_process() -> Any:
    """Return a function that forgets what is to be masked: each process learns that itself."""
    from airflow.sdk._shared.secrets_masker import reset_secrets_masker

    yield reset_secrets_masker
    reset_secrets_masker()


def masked(heard: Heard) -> str:
    """Return the lines so far as Airflow writes them, with the secrets registered since then."""
    from airflow.sdk.log import redact

    text = "\n".join(str(redact(line)) for _, line in heard.lines)
    heard.lines.clear()
    return text


@pytest.mark.engine("docker")
@pytest.mark.parametrize("place", ["docker"], indirect=True)
@in_modes
def test_secrets_of_the_connection_are_masked_in_every_text(
    place: Place, deferrable: bool, another_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 8: on the worker, in the triggerer, and on the worker that resumes."""
    extra = {**place.connection["extra"], "registry_username": "me", "registry_password": "hush-registry"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({**place.connection, "extra": extra}))
    check_masked(place, "echo it is hush-registry", deferrable, another_process)


@on_places
@in_modes
def test_secrets_in_the_environment_are_not_shown_with_the_request(
    place: Place, deferrable: bool, another_process: Any
) -> None:
    """Guarantee 8: the launcher hides values under names that look like secrets."""
    check_masked(place, "echo it is here", deferrable, another_process, env={"API_TOKEN": "hush-token"})


def check_masked(
    place: Place, script: str, deferrable: bool, another_process: Any, cfg: Any = None, **fields: Any
) -> None:
    task = launch(place, place.role(f"{script}; {WAIT}; {script}", **fields), deferrable=deferrable, cfg=cfg)
    api = FakeExecutionApi()
    another_process()

    def go(_cancel: Any = None) -> None:
        heard.until("[main/0] begun")
        place.go()

    with Heard() as heard:
        if deferrable:
            trigger, asked = deferred(task, api)
            texts = [masked(heard)]
            another_process()
            ((event,),) = run_triggers(trigger, during=go)
            texts.append(masked(heard))
            another_process()
            ran = resumed(task, api, asked, event.payload)
            texts.append(masked(heard))
        else:
            with meanwhile(go, place):
                ran, _ = run_to_end(task, api)
            texts = [masked(heard)]

    assert ran.state == "success", ran.error
    text = "\n".join(texts)
    assert len(re.findall(r"(?m)^\[main/0\] it is ", text)) == 2
    assert "hush" not in text
    assert "hush" not in str(api.rendered)
    assert "hush" not in str(api.xcoms)


@on_places
@in_modes
def test_secrets_of_the_app_are_masked_where_it_prints_them(
    place: Place, deferrable: bool, another_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 8: also in the triggerer, which has never fetched what a template of the worker has fetched."""
    monkeypatch.setenv("MY_TOKEN", "hush-copied")
    monkeypatch.setenv("AIRFLOW_VAR_DB_PASSWORD", "hush-variable")
    check_masked(
        place,
        "echo it is $API_TOKEN $MY_TOKEN $DB_PASS $X $PART",
        deferrable,
        another_process,
        env={
            "API_TOKEN": "hush-token",
            "DB_PASS": "hush-by-name",
            "X": "{{ var.value.db_password }}",
            "PART": "mysql://me:{{ var.value.db_password }}@db/{{ dag.dag_id }}?timeout=5",
        },
        cfg={"copy_env": ["MY_*"]},
    )
