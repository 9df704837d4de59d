"""The scheduler imports what small tasks need before LocalExecutor forks them, and other processes do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from airflow_provider_launch._preload import MODULES
from tests.repo.test_imports import HEAVY

LOAD = """
import json, sys
sys.argv = ["airflow", *sys.argv[1:]]
from airflow import plugins_manager
plugins_manager.ensure_plugins_loaded()
loaded = {*sys.modules}
"""
STEP = """
from pathlib import Path
from tests.airflow.support import FakeExecutionApi, run_task
from airflow_provider_launch.pipelines import dag_from_file

text = "dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: echo 1, next: success}}}"
Path("one.yaml").write_text(text)
ran = run_task(dag_from_file(Path("one.yaml").resolve(), "one").get_task("a"), FakeExecutionApi())
assert ran.state == "success", ran.lines
print("\\n" + json.dumps(sorted({*sys.modules} - loaded)))
"""
SHOW = "print('\\n' + json.dumps(sorted(loaded)))"


def ours(code: str, *arguments: str, folder=None, executor: str = "LocalExecutor") -> set[str]:
    """Return the last line of a new process that has these arguments of the command `airflow`, as modules."""
    env = {"AIRFLOW__CORE__EXECUTOR": executor, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD + code, *arguments],
        env=os.environ | env, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_step_on_local_processes_imports_nothing_that_the_scheduler_has_not(tmp_path):
    """These imports are half of the CPU of a small step."""
    more = ours(STEP, "scheduler", folder=tmp_path)

    assert sorted(name for name in more if name.startswith("airflow_provider_launch.")) == []


VALIDATORS = """
from pathlib import Path
import pydantic
from airflow_provider_launch.pipelines import dag_from_file
made, make = [], pydantic.TypeAdapter.__init__
pydantic.TypeAdapter.__init__ = lambda self, kind, **more: (made.append(str(kind)), make(self, kind, **more))[1]
text = "dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: echo 1, next: success}}}"
Path("one.yaml").write_text(text)
dag_from_file(Path("one.yaml").resolve(), "one")
print("\\n" + json.dumps(made))
"""


def test_the_validators_of_a_small_pipeline_are_built_in_the_scheduler(tmp_path):
    """Each task process built them, in 10 ms of its CPU."""
    assert ours(VALIDATORS, "scheduler", folder=tmp_path) == set()
    assert ours(VALIDATORS, "triggerer", folder=tmp_path)  # the count works


def test_the_scheduler_loads_no_client_library():
    loaded = ours(SHOW, "scheduler")

    assert {f"airflow_provider_launch.{name}" for name in MODULES} <= loaded
    assert loaded.isdisjoint({*HEAVY} - {"fastapi", "starlette"})


@pytest.mark.parametrize(
    ("arguments", "executor"),
    [
        (["api-server"], "LocalExecutor"),
        (["triggerer"], "LocalExecutor"),
        (["tasks", "test", "scheduler"], "LocalExecutor"),
        (["scheduler"], "airflow.providers.celery.executors.celery_executor.CeleryExecutor"),
        ([], "LocalExecutor"),
    ],
)
def test_a_process_that_forks_no_tasks_loads_only_the_plug_in(arguments, executor):
    """Else each task process of the other executors would import it, those of other operators too."""
    loaded = ours(SHOW, *arguments, executor=executor)

    assert {name for name in loaded if name.startswith("airflow_provider_launch.")} <= {
        f"airflow_provider_launch.{name}" for name in ("_airflow", "_preload", "get_provider_info")
    }


def test_a_process_of_the_executor_does_not_import_again():
    """A process that was started and not forked has the arguments of the scheduler, too."""
    code = f"""
import multiprocessing
from airflow_provider_launch._preload import forks_tasks

assert forks_tasks()
with multiprocessing.get_context("fork").Pool(1) as pool:
    {SHOW.replace("sorted(loaded)", "[str(pool.apply(forks_tasks))]")}
"""
    assert ours(code, "scheduler") == {"False"}
