"""Dry run of an app with a thousand replicas, also of one made by a component."""

from __future__ import annotations

import statistics
import time

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role, macros
from rows import row

app = AppDef(
    "big",
    [
        Role(
            "worker",
            "",
            entrypoint="python3",
            args=["-m", "train", "--rank", macros.replica_id, "--app", macros.app_id],
            env={f"VARIABLE_{number}": f"value {number}" for number in range(10)},
            num_replicas=1000,
            resource=Resource(cpu=1, gpu=0, memMB=100),
        )
    ],
)
with Runner("bench") as runner:
    runner.dryrun(app, "local", {})
    times, texts = [], []
    for _ in range(15):
        start = time.perf_counter()
        info = runner.dryrun(app, "local", {})
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        str(info)
        texts.append(time.perf_counter() - start)
row("dry run of 1000 replicas", statistics.median(times), limit=0.05, note=f"worst {max(times):.3f} s")
row("its text", statistics.median(texts))

arguments = {"script": "train.py", "j": "1000x8", "env": {"SEED": "1"}, "script_args": ["--lr", "0.1"]}
with Runner("bench") as runner:
    runner.dryrun_component("dist.ddp", arguments, "local")
    times = []
    for _ in range(15):
        start = time.perf_counter()
        runner.dryrun_component("dist.ddp", arguments, "local")
        times.append(time.perf_counter() - start)
row(
    "dry run of component dist.ddp with 1000 nodes",
    statistics.median(times),
    limit=0.06,
    note=f"worst {max(times):.3f} s",
)
