"""What a DAG file pays for our operator, beside the standard BashOperator: user CPU of fresh processes."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from rows import row

SDK = "from airflow.sdk import DAG, BaseOperator, BaseSensorOperator"
STATEMENTS = {
    "sdk": SDK,
    "ours": f"{SDK}\nfrom airflow_provider_launch.operators.launch import LaunchAppOperator",
    "all": (
        f"{SDK}\nfrom airflow_provider_launch.operators.launch import LaunchAppOperator\n"
        "from airflow_provider_launch.sensors.launch import AppStatusSensor\n"
        "from airflow_provider_launch.specs import AppDef, Role, Resource, RetryPolicy, macros"
    ),
    "bash": f"{SDK}\nfrom airflow.providers.standard.operators.bash import BashOperator",
}
ROUNDS = 10


def user_cpu(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-c", statement], check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
for _ in range(ROUNDS + 1):
    for name, statement in STATEMENTS.items():
        times[name].append(user_cpu(statement))
# The first round writes byte code. Differences within a round: what disturbs the machine disturbs both.
added = {
    name: statistics.median(b - a for a, b in zip(times["sdk"][1:], times[name][1:], strict=True))
    for name in STATEMENTS
}
sdk = statistics.median(times["sdk"][1:])
row(
    "import LaunchAppOperator, above airflow.sdk",
    added["ours"],
    limit=0.02,
    peer=added["bash"],
    note=f"peer: BashOperator; airflow.sdk {sdk:.2f} s",
)
row("import operator, sensor and specs", added["all"])
