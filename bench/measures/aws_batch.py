"""Costs of following 1, 100 and 1000 jobs of AWS Batch: requests, and delay of an end; and lines per second.

The server is that of the tests with idle jobs instead of containers, so that a thousand need no machine. The peer is
`BatchOperator` on the same server, for as many jobs as the machine supports threads, because each polls its own job.
"""

from __future__ import annotations

import heapq
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import boto3  # noqa: TID253 - a measure of it
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.states import is_terminal
from rows import row, skip
from tests.engines.aws_batch.containers import IDLE_IMAGE
from tests.engines.aws_batch.engine import BatchServer
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import GROUP, QUEUE, REGION
from tests.engines.docker.engine import find

COUNTS, LIMITS = (1, 100, 1000), (10, 10, 70)
INTERVAL_S, SECONDS, SETTLE_S = 10.0, 60, 15
READERS, READS_PER_S = 8, 40.0
ENDS, PAUSE_S = 60, 0.37
LINES, PEERS = 100_000, 20
WINDOW_S, LONGEST_START_S = 15, 420
KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": REGION}


class Costs:
    """Requests in an interval."""

    def __init__(self, server: BatchServer, seconds: float = SECONDS) -> None:
        before = server.control()["calls"]
        time.sleep(seconds)
        after = server.control()["calls"]
        self.by_kind = {kind: (count - before.get(kind, 0)) * 60 / seconds for kind, count in after.items()}
        self.per_minute = sum(self.by_kind.values())


def read_in_turns(readers: list[LogReader], over: threading.Event) -> None:
    """Read logs as a triggerer does: several threads with a common limit of reads per second."""
    lock, due, at = threading.Lock(), [(0.0, n) for n in range(len(readers))], [0.0]
    heapq.heapify(due)

    def serve() -> None:
        while not over.is_set():
            with lock:
                when, n = due[0]
                pause = max(when, at[0]) - time.monotonic()
                if pause <= 0:
                    heapq.heappop(due)
                    at[0] = max(at[0], time.monotonic()) + 1 / READS_PER_S
            if pause > 0:
                time.sleep(min(pause, 0.1))
                continue
            readers[n].step()
            while (item := readers[n].pop()) is not None:
                readers[n].release(item)
            with lock:
                heapq.heappush(due, (time.monotonic() + (readers[n].due_in() or 0.0), n))

    for _ in range(READERS):
        threading.Thread(target=serve, daemon=True).start()


def until_joined(server: BatchServer) -> float:
    """Wait until logs are read together, because each is first read alone; return the seconds."""
    started = time.monotonic()
    while Costs(server, WINDOW_S).by_kind.get("GetLogEvents", 0) > 0 and time.monotonic() - started < LONGEST_START_S:
        pass
    return time.monotonic() - started - WINDOW_S


def measure_states(server: BatchServer, runner: Runner, ids: list[str]) -> list[float]:
    """Return the requests a minute for each count of jobs; print the rows of logs and ends."""
    scheduler = runner.scheduler("aws_batch")
    per_minute = []
    for count in COUNTS:
        poller = Poller(scheduler, INTERVAL_S)
        heard: dict[str, float] = {}

        def hear(answer: Any, heard: dict[str, float] = heard) -> None:
            if answer is not None and not isinstance(answer, Exception) and is_terminal(answer.state):
                heard.setdefault(answer.app_id, time.time())

        for app_id in ids[:count]:
            poller.subscribe(app_id, hear, INTERVAL_S)
        time.sleep(SETTLE_S)
        per_minute.append(Costs(server).per_minute)
        if count == COUNTS[-1]:
            over, changed = threading.Event(), threading.Condition()
            readers = [
                LogReader(scheduler, app_id, changed, cursors={}, streams=None, from_now=False, own_thread=False)
                for app_id in ids
            ]
            for reader in readers:
                reader.want([("main", 0)], existing=True)
            read_in_turns(readers, over)
            joined_s = until_joined(server)
            costs = Costs(server)
            kinds = ", ".join(f"{kind} {count:.0f}" for kind, count in sorted(costs.by_kind.items()) if count >= 1)
            note = f"when each log was read once alone, {joined_s:.0f} s after the start: {kinds}"
            row(f"states and logs of {count} jobs: requests", costs.per_minute, "/min", limit=140, note=note)
            over.set()
            delays(server, scheduler, ids, heard)
        for app_id in ids[:count]:
            poller.unsubscribe(app_id, hear)
        poller.join(20)
    return per_minute


def job_of(scheduler: Any, app_id: str) -> str:
    return next(str(job["jobId"]) for job in scheduler.aws.jobs_named(QUEUE, app_id) if job["jobName"] == app_id)


def delays(server: BatchServer, scheduler: Any, ids: list[str], heard: dict[str, float]) -> None:
    ended = {}
    for app_id in ids[-ENDS:]:
        server.control(end_idle={job_of(scheduler, app_id): 0})
        ended[app_id] = time.time()
        time.sleep(PAUSE_S)
    time.sleep(INTERVAL_S + 2)
    late = sorted(heard[app_id] - at for app_id, at in ended.items())
    note = f"the worst of {ENDS}; the state is polled each {INTERVAL_S:g} s"
    row("end -> reported", late[-1], limit=INTERVAL_S + 1, note=note)


def measure_lines(server: BatchServer, runner: Runner, app_id: str) -> None:
    scheduler = runner.scheduler("aws_batch")
    job_id = job_of(scheduler, app_id)
    stream = scheduler.aws.describe([job_id])[job_id]["container"]["logStreamName"]
    logs = boto3.client("logs", endpoint_url=server.url, **KEYS)
    now = int(time.time() * 1000)
    for begin in range(0, LINES, 10_000):
        events = [
            {"timestamp": now + n // 50, "message": f"line {n:06} {'x' * 80}"} for n in range(begin, begin + 10_000)
        ]
        logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)
    rounds = []
    for _ in range(3):
        started, cursor, count = time.perf_counter(), None, 0
        while count < LINES:
            chunk = scheduler.read_logs(app_id, "main", 0, cursor)
            cursor, count = chunk.cursor, count + len(chunk.lines)
        rounds.append(count / (time.perf_counter() - started))
    peer = None
    try:
        from airflow.providers.amazon.aws.hooks.logs import AwsLogsHook

        hook = AwsLogsHook(aws_conn_id="bench_aws", region_name=REGION)
        started = time.perf_counter()
        count = sum(1 for _ in hook.get_log_events(GROUP, stream))
        peer = count / (time.perf_counter() - started)
    except ImportError:
        pass
    row("lines of one log", statistics.median(rounds), "/s", peer=peer, note=f"{LINES} lines; peer: AwsLogsHook")


def peer_requests(server: BatchServer) -> float | None:
    """Return the requests a minute for one job of `BatchOperator`; None if it is not installed."""
    try:
        from airflow.providers.amazon.aws.operators.batch import BatchOperator
    except ImportError:
        skip("BatchOperator", "apache-airflow-providers-amazon is not installed")
        return None
    batch = boto3.client("batch", endpoint_url=server.url, **KEYS)
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    batch.register_job_definition(
        jobDefinitionName="peer",
        type="container",
        containerProperties={"image": IDLE_IMAGE, "resourceRequirements": needs},
    )

    def run(n: int) -> None:
        operator = BatchOperator(
            task_id=f"peer{n}", job_name=f"peer{n}", job_definition="peer", job_queue=QUEUE, aws_conn_id="bench_aws",
            region_name=REGION, container_overrides={},
        )  # fmt: skip
        operator.execute({"ti": type("Ti", (), {"xcom_push": lambda *_, **__: None})()})

    for n in range(PEERS):
        threading.Thread(target=run, args=(n,), daemon=True).start()
    time.sleep(SETTLE_S)
    return Costs(server).per_minute / PEERS


def main() -> None:
    docker, why = find()
    if not docker:
        skip("AWS Batch", str(why))
        return
    os.environ["DOCKER_HOST"] = docker
    with ExitStack() as stack:
        server = stack.enter_context(BatchServer())
        address = server.url.replace("http://", "http%3A%2F%2F").replace(":", "%3A")
        os.environ["AIRFLOW_CONN_BENCH_AWS"] = f"aws://x:x@/?region_name={REGION}&endpoint_url={address}"
        # The rates of a real account, except that of submissions.
        params = {**params_for(server.url), "requests_per_s": 50, "log_requests_per_s": 10}
        runner = stack.enter_context(Runner("bench", scheduler_params={"aws_batch": params}))
        role = Role("main", IDLE_IMAGE, entrypoint="x", resource=Resource(1, 0, 64))
        ids = [f"bench-{os.getpid()}-{n}" for n in range(max(COUNTS))]

        def submit(app_id: str) -> None:
            runner.schedule(runner.dryrun(AppDef("idle", [role]), "aws_batch", {"queue": QUEUE}, app_id=app_id))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(submit, ids))
        runner.scheduler("aws_batch").describe_many(ids)
        per_minute = measure_states(server, runner, ids)
        measure_lines(server, runner, ids[0])
        # Last, because its threads poll until this process ends.
        peer = peer_requests(server)
        note = f"one poller, each {INTERVAL_S:g} s; peer: BatchOperator, measured with {PEERS} of them"
        for count, limit, ours in zip(COUNTS, LIMITS, per_minute, strict=True):
            row(f"states of {count} jobs: requests", ours, "/min", limit=limit, peer=peer and count * peer, note=note)
        sys.stdout.flush()


main()
