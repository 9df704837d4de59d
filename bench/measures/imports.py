"""Import cost of our operator and app in a DAG file; peer: BashOperator. User CPU in new processes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from rows import row

STATEMENTS = {
    "ours": (
        "from airflow_provider_launch.operators.launch import LaunchAppOperator\n"
        "from airflow_provider_launch.sensors.launch import AppStatusSensor\n"
        "from airflow_provider_launch.specs import AppDef, Role, Resource, RetryPolicy, macros"
    ),
    "bash": "from airflow.providers.standard.operators.bash import BashOperator",
}
# Measured inside the process: the import of airflow.sdk varies more than our part. That import reads the info of
# every installed provider, so ours is hidden from it and read in the measured part.
CODE = """
import importlib.metadata, importlib_metadata, resource
for finder in (importlib.metadata.MetadataPathFinder, importlib_metadata.MetadataPathFinder):
    finder.find_distributions = lambda *args, find=finder.find_distributions: (
        found for found in find(args[-1]) if not found.metadata["Name"].startswith({hidden!r})
    )
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator
assert not [name for name in __import__("sys").modules if name.startswith({module!r})]
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
{statement}
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
"""
INFO = "from {module}.get_provider_info import get_provider_info\nget_provider_info()\n"
ROUNDS = 7


def user_cpu(statement: str) -> tuple[float, float]:
    """Return the seconds of Airflow's SDK, and of the statement after it."""
    bash = "BashOperator" in statement
    module = "airflow.providers.standard" if bash else "airflow_provider_launch"
    hidden = "apache-airflow-providers-standard" if bash else "airflow-provider-launch"
    code = CODE.format(hidden=hidden, module=module, statement=INFO.format(module=module) + statement)
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
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
row("import operator, sensor and specs, above airflow.sdk", added["ours"], limit=0.02, peer=added["bash"], note=note)
