"""Imports are fast, because every parse of a DAG file pays for them."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import airflow_provider_launch
from tests.support.repeats import often

HEAVY = ["boto3", "botocore", "docker", "fastapi", "kubernetes", "kubernetes_asyncio", "paramiko", "starlette"]
CORE = ["specs", "specs.api", "schedulers", "schedulers.api", "runner", "follow"]


def modules_after(statement: str) -> set[str]:
    """The modules loaded in a fresh process after a statement."""
    code = f"{statement}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_dag_file_loads_no_heavy_module_and_no_backend():
    """Backends are imported by name on use."""
    loaded = modules_after(
        "from airflow_provider_launch.operators.launch import LaunchAppOperator\n"
        "from airflow_provider_launch.sensors.launch import AppStatusSensor\n"
        "from airflow_provider_launch.specs import AppDef, Role, Resource, RetryPolicy, macros"
    )
    backends = {name for name in loaded if name.startswith("airflow_provider_launch.schedulers.local")}

    assert loaded.isdisjoint(HEAVY)
    assert backends <= {
        "airflow_provider_launch.schedulers.local",
        "airflow_provider_launch.schedulers.local.options",
    }


STEP = """
from airflow_provider_launch._task import follow_app
from airflow_provider_launch.operators import _run
from airflow_provider_launch.pipelines import apps, attempt, dag_from_file, step_operator
from airflow_provider_launch.schedulers.local import scheduler
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs import AppDef, Role, check_app

resolve_options(scheduler.LocalOpts, {})
scheduler.LocalOpts.as_runopts()
check_app(AppDef("app", [Role("task", "", entrypoint="sh", args=["-c", "true"])]))
"""
NOT_FOR_A_STEP = {"pipelines.catalog", "specs.builders", "specs.peers", "triggers.pump", "util.docstrings"}


def test_a_step_on_local_processes_loads_only_what_it_needs():
    """A small step costs little more than a BashOperator; each module costs half a millisecond or more."""
    loaded = modules_after(STEP)

    assert "airflow_provider_launch.follow.follower" in loaded
    assert loaded.isdisjoint({f"airflow_provider_launch.{name}" for name in NOT_FOR_A_STEP})


@pytest.mark.parametrize("module", CORE)
def test_the_core_loads_no_airflow(module):
    loaded = modules_after(f"import airflow_provider_launch.{module}")

    assert not {name for name in loaded if name.partition(".")[0] in {"airflow", *HEAVY}}


def test_every_module_can_be_imported_first():
    """A cycle of imports shows only when the wrong module comes first."""
    names = [
        module.name
        for module in pkgutil.walk_packages(airflow_provider_launch.__path__, "airflow_provider_launch.")
        if ".example_dags" not in module.name and not module.name.endswith("__main__")
    ][:: often(4, 1)]
    # Airflow is imported once; each case starts without our modules.
    code = """
import importlib, sys
import airflow.sdk
from airflow.sdk import BaseOperator, BaseHook, BaseSensorOperator
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("airflow_provider_launch")]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error!r}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("airflow_provider_launch")] == []
