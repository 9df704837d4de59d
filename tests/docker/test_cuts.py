"""The log stream of a real app is cut, or stalls, at any point: each line is shown once, from its stream."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass

import pytest

from airflow_provider_launch.follow.events import LogGap
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.api import JsonValue, LogLine, Scheduler, Stream
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.specs import AppState, SchedulerUnavailableError
from tests.docker.conftest import DockerApps
from tests.faults import Fault, cut, silence
from tests.faults.actions import Action
from tests.faults.frames import HEADER, frames
from tests.support.follow import collect, texts

pytestmark = pytest.mark.engine("docker")

LOGS = r"/logs$"
LINES = 1000
LONG = 40_000
"""Characters of a line that the engine stores in three frames."""
SCRIPT = f"""
    i=0
    while [ $i -lt {LINES} ]; do
        i=$((i+1))
        printf "out $i %0$((i % 90))d\\n" 0
        printf "err $i %0$((i % 70 * 5))d\\n" 0 >&2
        [ $((i % 250)) != 0 ] || {{ head -c {LONG} /dev/zero | tr '\\0' x; echo; echo >&2; }}
    done
    printf "out without an end"
"""


@dataclass
class Whole:
    """The log of an ended app as it is read without cuts."""

    app_id: str
    lines: list[tuple[str, Stream]]
    frames: list[bytes]
    places: list[tuple[int, JsonValue]]
    """Number of lines before a cursor, and the cursor."""


@pytest.fixture
def whole(docker_apps) -> Whole:
    app_id = docker_apps.start(docker_apps.sh(SCRIPT))
    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    api = docker_apps.client.api
    query = {"stdout": 1, "stderr": 1, "timestamps": 1}
    with api.get(api._url("/containers/{0}/logs", f"{app_id}-main-0"), params=query, stream=True) as answer:
        kept = list(frames(answer.iter_content(None)))
    lines: list[LogLine] = []
    places: list[tuple[int, JsonValue]] = [(0, None)]
    while (chunk := docker_apps.scheduler.read_logs(app_id, "main", 0, places[-1][1])).lines:
        lines += chunk.lines
        places.append((len(lines), chunk.cursor))
    told = Whole(app_id, told_of(lines), kept, places)
    assert len(told.lines) == 2 * LINES + 2 * (LINES // 250) + 1
    assert len(places) > 4
    return told


def told_of(lines: list[LogLine]) -> list[tuple[str, Stream]]:
    return [(line.text, line.stream) for line in lines]


def read_on(scheduler: DockerScheduler, app_id: str, cursor: JsonValue) -> tuple[list[LogLine], int]:
    """Read to the end with retries after outages; return the lines and the number of failed reads."""
    lines: list[LogLine] = []
    failed = 0
    while True:
        try:
            chunk = scheduler.read_logs(app_id, "main", 0, cursor)
        except SchedulerUnavailableError:
            failed += 1
            assert failed < 5
            continue
        if not chunk.lines:
            return lines, failed
        lines += chunk.lines
        cursor = chunk.cursor


def places_in(frame: bytes, dice: random.Random) -> list[int]:
    """Return where a frame is cut: before it, within its header, after that, in its time, its text, before its end."""
    return [0, dice.randrange(1, HEADER), HEADER, HEADER + dice.randrange(1, 30), len(frame) - 2, len(frame) - 1]


def test_the_streams_are_distinguished(whole) -> None:
    """The reference for the tests below: each stream is in order and has no mark of the other one."""
    for stream, word in ((Stream.STDOUT, "out"), (Stream.STDERR, "err")):
        told = [text for text, found in whole.lines if found is stream]
        numbers = [int(text.split()[1]) for text in told if text.startswith(word) and text.endswith("\n")]
        assert numbers == list(range(1, LINES + 1))
        others = {text for text in told if not text.startswith(word)}
        assert others == ({"x" * LONG + "\n"} if stream is Stream.STDOUT else {"\n"})


@pytest.mark.parametrize("resumed", [False, True], ids=["from-the-start", "from-a-cursor"])
def test_an_answer_that_is_cut_anywhere_costs_no_line(docker_apps, docker_proxy, whole, resumed) -> None:
    """A proxy or a daemon that ends may cut in the middle of a header as well as between two lines."""
    dice = random.Random(f"cut {resumed}")
    cuts = refused = 0
    for nth in [0, *(dice.randrange(len(whole.frames)) for _ in range(16))]:
        number, cursor = dice.choice(whole.places[1:-1]) if resumed else whole.places[0]
        for within in places_in(whole.frames[nth], dice):
            # Another process continues, without an open response.
            scheduler = docker_apps.another()
            scheduler.describe(whole.app_id)
            # A resumed response has fewer frames, and is then cut before the mark of its end.
            fault = docker_proxy.add(Fault(cut(within, frames=nth), "GET", LOGS))

            lines, failed = read_on(scheduler, whole.app_id, cursor)

            assert told_of(lines) == whole.lines[number:], (nth, within)
            scheduler.close()
            docker_proxy.clear()
            cuts += fault.hits
            refused += failed
    assert cuts == 17 * 6
    assert refused > 0


def cut_near_the_end(dice: random.Random, cuts: list[int]) -> Action:
    """Cut a response of a growing log at any byte of its new lines; record the cuts."""

    def act(exchange) -> None:
        answer = exchange.forward()
        data = b"".join(answer.body)
        at = max(0, len(data) - dice.randrange(1, 600))
        cuts.append(at)
        exchange.relay(answer, [data[:at]] if at else [], whole=False)
        exchange.drop()

    return act


@pytest.fixture
def no_streams(monkeypatch) -> None:
    """Logs are polled in turn, as if streams were not possible."""
    monkeypatch.setattr(DockerScheduler, "stream_log", Scheduler.stream_log)


@pytest.mark.usefixtures("no_streams")
def test_a_follower_of_answers_that_are_cut_shows_each_line_once(docker_apps, docker_proxy) -> None:
    """The cuts hit the new lines of a running app."""
    script = """
        i=0
        while [ $i -lt 400 ]; do
            i=$((i+1)); echo $i; echo e$i >&2
            [ $((i % 4)) != 0 ] || sleep 0.04
        done
    """
    cuts: list[int] = []
    act = cut_near_the_end(random.Random("follow"), cuts)
    for nth in itertools.chain.from_iterable((n, n + 1) for n in range(1, 300, 3)):
        docker_proxy.add(Fault(act, "GET", LOGS, nth=nth, may_miss=True))
    app_id = docker_apps.start(docker_apps.sh(script))

    with Follower(docker_apps.another(), app_id, poll_interval_s=0.2, log_drain_s=60) as follower:
        events = collect(follower, 120)

    told = texts(events, "main")
    numbers = [str(number) for number in range(1, 401)]
    assert [text for text in told if text[0] != "e"] == [f"{number}\n" for number in numbers]
    assert [text for text in told if text[0] == "e"] == [f"e{number}\n" for number in numbers]
    assert len(cuts) >= 8
    assert all("retrying" in event.message for event in events if isinstance(event, LogGap))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (silence(), "does not answer: "),
        (silence(0), "was cut off: "),
        (silence(3), "was cut off: "),
        (silence(HEADER + 5), "was cut off: "),
        (silence(3, frames=100), ""),
        (silence(HEADER + 5, frames=100), ""),
        (silence(0, frames=100), ""),
    ],
    ids=["no-answer", "no-frame", "header", "text", "later-header", "later-text", "between"],
)
def test_silence_ends_with_the_time_limit_of_the_connection(docker_apps, docker_proxy, whole, action, words) -> None:
    """A host without power closes no connection. Lines before that count, and the next read continues."""
    scheduler = docker_apps.another(timeout_s=1)
    scheduler.describe(whole.app_id)
    docker_proxy.add(Fault(action, "GET", LOGS))
    before: list[LogLine] = []
    cursor: JsonValue = None
    began = time.monotonic()

    if words:
        with pytest.raises(SchedulerUnavailableError, match=f"{words}.*[Tt]imed out"):
            scheduler.read_logs(whole.app_id, "main", 0)
    else:
        chunk = scheduler.read_logs(whole.app_id, "main", 0)
        before, cursor = chunk.lines, chunk.cursor
        assert 90 < len(before) <= 100

    assert 0.9 < time.monotonic() - began < 8
    rest, failed = read_on(scheduler, whole.app_id, cursor)
    assert told_of(before + rest) == whole.lines
    assert failed == 0


@pytest.mark.usefixtures("no_streams")
def test_a_follower_survives_silence(docker_apps: DockerApps, docker_proxy) -> None:
    """It reports that it waits, and continues at its position: neither the app nor a later line is affected."""
    app_id = docker_apps.start(docker_apps.sh("for i in $(seq 20); do echo $i; echo e$i >&2; sleep 0.3; done"))
    for nth, action in ((1, silence()), (3, silence(5, frames=1)), (5, silence(2))):
        docker_proxy.add(Fault(action, "GET", LOGS, nth=nth))
    scheduler = docker_apps.another(timeout_s=1)

    with Follower(scheduler, app_id, poll_interval_s=0.2, log_drain_s=60) as follower:
        events = collect(follower, 60)

    told = texts(events, "main")
    assert [text for text in told if text[0] != "e"] == [f"{n}\n" for n in range(1, 21)]
    assert [text for text in told if text[0] == "e"] == [f"e{n}\n" for n in range(1, 21)]
    gaps = [event.message for event in events if isinstance(event, LogGap)]
    assert gaps
    assert all(gap.startswith("cannot read logs, retrying: ") for gap in gaps), gaps
