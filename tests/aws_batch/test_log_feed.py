"""The lines of many streams: each is read once, despite cuts, late events, deletions, throttling and denials."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from airflow_provider_launch.schedulers.aws_batch.access import make_clients
from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.schedulers.aws_batch.jobs import AttemptLog
from airflow_provider_launch.schedulers.aws_batch.log_feed import LogFeed
from airflow_provider_launch.schedulers.aws_batch.log_reader import CloudWatchLogs, LogMarks
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import GROUP, REGION
from tests.faults import Fault, FaultProxy, error
from tests.faults.proxy import Exchange
from tests.faults.wire import Request

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(120)]

MARK = ":launch-0"


class Logs:
    """Streams that a test writes, and readers of them."""

    def __init__(self, url: str, params: dict[str, Any]) -> None:
        self.client = boto3.client(
            "logs", endpoint_url=url, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x"
        )
        # New clients for each new reader would take most of the time of a test.
        self._aws = Aws(AwsBatchConnection(**params), make_clients)
        self._prefix = f"feed-{time.monotonic_ns()}"
        self.stamps: dict[str, int] = {}
        self.now = int(time.time() * 1000)

    def reader(self) -> CloudWatchLogs:
        return CloudWatchLogs(self._aws)

    def new(self, number: int) -> str:
        name = f"{self._prefix}-{number}"
        self.client.create_log_stream(logGroupName=GROUP, logStreamName=name)
        return name

    def put(self, name: str, *texts: str, at: int | None = None) -> None:
        stamp = at if at is not None else self.stamps.get(name, self.now) + 1
        events = [{"timestamp": stamp + n // 4, "message": text} for n, text in enumerate(texts)]
        self.stamps[name] = max(self.stamps.get(name, 0), events[-1]["timestamp"])
        self.client.put_log_events(logGroupName=GROUP, logStreamName=name, logEvents=events)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_feed._MOST_S", 0.0)


@pytest.fixture
def logs(batch_server, batch_params) -> Logs:
    return Logs(batch_server.url, batch_params)


def operation(request: Request) -> str:
    """Return the number of requests to CloudWatch Logs."""
    return next((text for name, text in request.headers if name.lower() == "x-amz-target"), "").rpartition(".")[2]


def asked(proxy: FaultProxy) -> dict[str, int]:
    names = [operation(one) for one in proxy.requests]
    return {name: names.count(name) for name in ("GetLogEvents", "FilterLogEvents")}


def until_quiet(read: Callable[[str], list[str]], names: list[str], rounds: int = 3) -> None:
    quiet = 0
    while quiet < rounds:
        quiet = 0 if sum(len(read(name)) for name in names) else quiet + 1


@pytest.fixture
def follow(logs: Logs) -> Iterator[Any]:
    """Return a read function with its lines; the cursor passes through JSON each time."""
    got: dict[str, list[str]] = {}
    cursors: dict[str, str] = {}
    readers = [logs.reader()]

    def read(name: str, *, ended_at: float | None = None, anew: bool = False) -> list[str]:
        if anew:
            readers.append(logs.reader())
        state = json.loads(cursors.get(name, "{}"))
        lines, state = readers[-1].read(0, AttemptLog(LogGroup(GROUP), name, ended_at), LogMarks(MARK), state)
        cursors[name] = json.dumps(state)
        got.setdefault(name, []).extend(line.text.rstrip("\n") for line in lines)
        return [line.text for line in lines]

    read.got = got  # type: ignore[attr-defined]
    read.cursors = cursors  # type: ignore[attr-defined]
    return read


def test_one_stream_is_read_by_get_log_events(logs, follow, batch_proxy) -> None:
    name = logs.new(0)
    logs.put(name, "a")
    until_quiet(follow, [name])
    logs.put(name, "b")
    until_quiet(follow, [name])

    assert follow.got[name] == ["a", "b"]
    assert asked(batch_proxy)["FilterLogEvents"] == 0


def test_150_streams_take_two_requests_a_round(logs, follow, batch_proxy) -> None:
    names = [logs.new(n) for n in range(150)]
    for name in names:
        logs.put(name, f"first of {name}")
    until_quiet(follow, names)
    before = asked(batch_proxy)
    for name in names:
        logs.put(name, f"second of {name}")
    for name in names:
        assert follow(name) == [f"second of {name}\n"]
    used = {kind: count - before[kind] for kind, count in asked(batch_proxy).items()}

    assert used == {"GetLogEvents": 0, "FilterLogEvents": 2}


def test_streams_that_always_have_lines_join_the_others(logs, follow, batch_proxy) -> None:
    """Otherwise a thousand busy programs would cost a request each in every poll."""
    names = [logs.new(n) for n in range(10)]
    for turn in range(4):
        for name in names:
            logs.put(name, f"{turn}.0", f"{turn}.1")
        if turn == 2:
            before = asked(batch_proxy)
        for name in names:
            follow(name)
    until_quiet(follow, names)

    assert follow.got == {name: [f"{turn}.{n}" for turn in range(4) for n in range(2)] for name in names}
    assert asked(batch_proxy)["GetLogEvents"] == before["GetLogEvents"]


def test_a_stream_that_joins_is_not_asked_for_at_once(logs, follow, batch_proxy, monkeypatch) -> None:
    """It has just been read; otherwise a thousand joining streams would cost a request each."""
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_feed._LEAST_S", 60.0)
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_feed._MOST_S", 60.0)
    names = [logs.new(n) for n in range(10)]
    for name in names:
        logs.put(name, "a")
    for name in names * 3:
        follow(name)

    assert all("i" in json.loads(cursor) for cursor in follow.cursors.values())
    assert asked(batch_proxy)["FilterLogEvents"] == 0


def test_streams_with_a_long_backlog_are_read_alone_first(logs, follow, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_reader._BACKLOG", 20)
    names = [logs.new(n) for n in range(4)]
    texts = [f"line {n}" for n in range(100)]
    for name in names:
        logs.put(name, *texts)
    follow(names[0])  # no others are known yet
    for name in names[1:]:
        follow(name)
    assert "i" not in json.loads(follow.cursors[names[3]])
    until_quiet(follow, names)

    assert follow.got == dict.fromkeys(names, texts)
    assert all("i" in json.loads(cursor) for cursor in follow.cursors.values())


def test_each_line_comes_once_over_cuts_late_events_and_pages(logs, follow, batch_server) -> None:
    """Stamps are equal, or up to 40 ms earlier than what came before; pages are small; readers are cut off."""
    dice = random.Random(7)
    names = [logs.new(n) for n in range(12)]
    wanted: dict[str, list[str]] = {}
    at = logs.now
    with batch_server.settings(page=7, late_events=True):
        for turn in range(30):
            for name in names:
                for n in range(dice.randrange(4)):
                    text = f"{turn}.{n}"
                    # Before a stream is among many it is read by GetLogEvents, which cannot see late events.
                    late = dice.choice((0, 0, 40)) if turn > 4 else 0
                    logs.put(name, text, at=at - late)
                    wanted.setdefault(name, []).append(text)
            at += dice.choice((0, 1, 30, 500))
            for name in dice.sample(names, 8) if turn > 4 else names * 2:
                follow(name, anew=dice.random() < 0.2)
        until_quiet(follow, names, 2)

    assert {name: sorted(lines) for name, lines in follow.got.items()} == {
        name: sorted(lines) for name, lines in wanted.items()
    }
    assert all("i" in json.loads(cursor) for cursor in follow.cursors.values())


def test_more_than_a_round_takes_is_read_on(logs, follow, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_feed._EVENTS", 50)
    names = [logs.new(n) for n in range(4)]
    for name in names:
        logs.put(name, "begin")
    until_quiet(follow, names)
    texts = [f"line {n}" for n in range(300)]
    for name in names[1:]:  # one stays silent
        logs.put(name, *texts)
    until_quiet(follow, names)

    assert [follow.got[name] for name in names] == [["begin"], *[["begin", *texts]] * 3]


def test_a_log_of_many_ends_at_its_mark(logs, follow, batch_proxy) -> None:
    names = [logs.new(n) for n in range(4)]
    for name in names:
        logs.put(name, f"{MARK}-begin", "hi")
    until_quiet(follow, names)
    for name in names:
        logs.put(name, "bye", f"{MARK}-exit:0", f"{MARK}-exit:0", f"{MARK}-end")
    before = asked(batch_proxy)
    for name in names:
        follow(name, ended_at=time.time())

    assert all(lines == ["hi", "bye"] for lines in follow.got.values())
    assert all(json.loads(cursor)["d"] for cursor in follow.cursors.values())
    assert asked(batch_proxy)["FilterLogEvents"] - before["FilterLogEvents"] == 1


def test_without_a_mark_it_ends_by_time(logs, follow, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.log_reader._QUIET_S", 0.5)
    names = [logs.new(n) for n in range(4)]
    for name in names:
        logs.put(name, "hi")
    until_quiet(follow, names)
    assert follow(names[0], ended_at=time.time() - 20) == []

    assert json.loads(follow.cursors[names[0]])["d"]


def test_a_stream_that_was_deleted_hides_no_other(logs, follow) -> None:
    names = [logs.new(n) for n in range(5)]
    for name in names:
        logs.put(name, "hi")
    until_quiet(follow, names)
    logs.client.delete_log_stream(logGroupName=GROUP, logStreamName=names[2])
    for name in names[:2] + names[3:]:
        logs.put(name, "ho")
    until_quiet(follow, names)

    assert [follow.got[name] for name in names] == [["hi", "ho"]] * 2 + [["hi"]] + [["hi", "ho"]] * 2


def test_without_the_permission_streams_are_read_one_by_one(logs, follow, batch_proxy: FaultProxy, caplog) -> None:
    names = [logs.new(n) for n in range(4)]
    for name in names:
        logs.put(name, "a", "b", "c")
    until_quiet(follow, names)
    denied = error(403, body={"__type": "AccessDeniedException", "message": "not authorized: logs:FilterLogEvents"})

    def deny(exchange: Exchange) -> None:
        denied(exchange) if operation(exchange.request) == "FilterLogEvents" else exchange.relay(exchange.forward())

    batch_proxy.add(Fault(deny, "POST", r"^/$", times=None))
    for name in names:
        logs.put(name, "d", at=logs.stamps[name])
    until_quiet(follow, names)

    assert [follow.got[name] for name in names] == [["a", "b", "c", "d"]] * 4
    assert sum("FilterLogEvents" in one.message for one in caplog.records) == 4


def test_throttling_makes_rounds_rarer_and_fails_nothing(logs, follow, batch_server) -> None:
    names = [logs.new(n) for n in range(4)]
    for name in names:
        logs.put(name, "a")
    until_quiet(follow, names)
    with batch_server.settings(rates={"FilterLogEvents": 0.01}):
        for name in names:
            logs.put(name, "b")
        for name in names:
            follow(name)
    until_quiet(follow, names)

    assert [follow.got[name] for name in names] == [["a", "b"]] * 4


def test_an_outage_is_reported(logs, batch_params) -> None:
    feed = LogFeed(Aws(AwsBatchConnection(**params_for("http://127.0.0.1:1")), make_clients))
    with pytest.raises(SchedulerUnavailableError):
        feed.take(LogGroup(GROUP), "x", {"m": 1, "f": 1, "i": [[1, "a"]]}, is_over=False)


def test_large_events_are_read_ahead_up_to_a_limit() -> None:
    """20 000 events of 256 KB, an hour's backlog after a restart of the triggerer, would fill its memory."""
    text, pages = "x" * 250_000, 0

    class Backlog:
        """Answers as CloudWatch does: pages of up to 1 MB."""

        def now(self) -> float:
            return 1.0

        def filter_events(self, _group: LogGroup, names: list[str], **where: Any) -> dict[str, Any]:
            nonlocal pages
            pages += 1
            first = int(where.get("nextToken", where["startTime"]))
            events = [
                {"logStreamName": names[0], "timestamp": at, "eventId": f"e{at}", "message": f"{at} {text}"}
                for at in range(first, min(first + 4, 1_000))
            ]
            return {"events": events, **({"nextToken": str(first + 4)} if first + 4 < 1_000 else {})}

    feed = LogFeed(Backlog())  # type: ignore[arg-type]
    position: dict[str, Any] = {"m": 1, "f": 1, "i": []}
    got: list[int] = []
    while (found := feed.take(LogGroup(GROUP), "x", position, is_over=True))[0]:
        events, position = found
        assert sum(len(event["message"]) for event in events) < 20_000_000
        got += [int(event["message"].partition(" ")[0]) for event in events]

    assert got == [*range(1, 1_000)]
    assert pages < 2_000
