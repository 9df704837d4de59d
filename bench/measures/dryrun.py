"""Dry run of an app with a thousand replicas for three backends, and of one made by a component. No engine runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role, macros
from rows import row

app = AppDef(
    "big",
    [
        Role(
            "worker",
            "image",
            entrypoint="python3",
            args=["-m", "train", "--rank", macros.replica_id, "--app", macros.app_id],
            env={f"VARIABLE_{number}": f"value {number}" for number in range(10)},
            num_replicas=1000,
            resource=Resource(cpu=1, gpu=0, memMB=100),
        )
    ],
)
arguments = {"script": "train.py", "j": "1000x8", "env": {"SEED": "1"}, "script_args": ["--lr", "0.1"]}


def measure(what: str, limit: float, make: Callable[[], object]) -> None:
    """Print the time of `make`; the first call imports and is dropped."""
    times = []
    for _ in range(16):
        start = time.perf_counter()
        make()
        times.append(time.perf_counter() - start)
    row(what, statistics.median(times[1:]), limit=limit, note=f"worst {max(times[1:]):.3f} s")


with Runner("bench") as runner:
    for backend, cfg in (("local", {}), ("kubernetes", {}), ("aws_batch", {"queue": "q"})):
        what = "dry run of 1000 replicas"
        measure(f"{what}, {backend}", 0.05, lambda backend=backend, cfg=cfg: runner.dryrun(app, backend, cfg))
    component = "dist.ddp"
    measure(
        f"dry run of component {component} with 1000 nodes",
        0.06,
        lambda: runner.dryrun_component(component, arguments, "local"),
    )
