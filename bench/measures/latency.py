"""Delay from submit to the first log line, and from the end of the app to its report."""

from __future__ import annotations

import statistics
import time

from airflow_provider_launch.follow.events import Ended, LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

ROUNDS = 15
CODE = "date +%s.%N; sleep 0.7; date +%s.%N"
app = AppDef("quick", [Role("r", "", entrypoint="sh", args=["-c", CODE], resource=Resource(1, 0, 64))])
first: list[float] = []
known: list[float] = []
with Runner("bench") as runner:
    for _ in range(ROUNDS):
        info = runner.dryrun(app, "local", {})
        start = time.time()
        app_id = runner.schedule(info).rpartition("/")[2]
        seen: list[float] = []
        ended = 0.0
        for event in Follower(runner.scheduler("local"), app_id, roles=app.roles):
            if isinstance(event, LogLines):
                seen.append(time.time())
                ended = float(event.lines[-1].text)
            if isinstance(event, Ended):
                known.append(time.time() - ended)
        first.append(seen[0] - start)
row("submit -> first line", statistics.median(first), limit=0.5, note=f"worst of {ROUNDS}: {max(first):.3f} s")
row("end of the app -> reported", statistics.median(known), limit=0.5, note=f"worst of {ROUNDS}: {max(known):.3f} s")
