"""What a DAG file pays for our operator, beside the standard BashOperator: user CPU in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from rows import row

STATEMENTS = {
    "ours": "from airflow_provider_launch.operators.launch import LaunchAppOperator",
    "all": (
        "from airflow_provider_launch.operators.launch import LaunchAppOperator\n"
        "from airflow_provider_launch.sensors.launch import AppStatusSensor\n"
        "from airflow_provider_launch.specs import AppDef, Role, Resource, RetryPolicy, macros"
    ),
    "bash": "from airflow.providers.standard.operators.bash import BashOperator",
}
# Measured inside the process: the import of airflow.sdk varies by more than what we look for.
CODE = """
import resource
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
{statement}
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
"""
ROUNDS = 7


def user_cpu(statement: str) -> tuple[float, float]:
    """Seconds of Airflow's SDK, and of the statement after it."""
    text = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement)], check=True, capture_output=True, text=True
    ).stdout
    sdk, added = text.splitlines()[-1].split()
    return float(sdk), float(added)


times: dict[str, list[tuple[float, float]]] = {name: [] for name in STATEMENTS}
# The first round writes byte code and is dropped.
for _ in range(ROUNDS + 1):
    for name, statement in STATEMENTS.items():
        times[name].append(user_cpu(statement))
added = {name: statistics.median(value for _, value in times[name][1:]) for name in STATEMENTS}
sdk = statistics.median(value for name in STATEMENTS for value, _ in times[name][1:])
note = f"peer: BashOperator; airflow.sdk itself {sdk:.2f} s"
row("import LaunchAppOperator, above airflow.sdk", added["ours"], limit=0.02, peer=added["bash"], note=note)
row("import operator, sensor and specs", added["all"])
