"""Private parts of Airflow that this package uses: an Airflow without one of them fails here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import attrs
import pytest

from airflow_provider_launch import _airflow
from tests.airflow.versions import HAS_STORE

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_provider_launch"
PARTS = {
    "airflow.cli.cli_config": ["ActionCommand", "Arg", "GroupCommand"],
    "airflow.jobs.triggerer_job_runner": ["_USER_ACTION_CANCEL_MSG"],
    "airflow.listeners": ["hookimpl"],
    "airflow.models": ["Connection"],
    "airflow.sdk.bases.decorator": ["_TaskDecorator"],
    "airflow.sdk.execution_time": ["task_runner"],
    "airflow.sdk.execution_time.comms": ["DeleteXCom", "SetRenderedFields", "SetXCom", "_RequestFrame"],
    "airflow.sdk.execution_time.context": ["NEVER_EXPIRE"],
    "airflow.sdk.execution_time.task_runner": ["RuntimeTaskInstance", "SUPERVISOR_COMMS"],
    "airflow.sdk.log": ["redact"],
}
"""Module to its imported parts; parts that are used without an import are below."""
SINCE_3_3 = {"_USER_ACTION_CANCEL_MSG", "NEVER_EXPIRE"}
_PUBLIC = ("airflow.sdk", "airflow.triggers", "airflow.providers")
"""https://airflow.apache.org/docs/apache-airflow/stable/public-airflow-interface.html"""


def is_private(module: str, name: str) -> bool:
    parts = module.split(".")
    is_inside = "execution_time" in parts or not module.startswith(_PUBLIC)
    return (
        is_inside
        or any(part.startswith("_") for part in (*parts, name))
        or (module, name)
        == (
            "airflow.sdk.log",
            "redact",
        )
    )


def test_private_parts_are_listed():
    """Cure: add it to `PARTS`, so that it is known what a new Airflow may take away."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "from airflow" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "airflow":
                for alias in node.names:
                    if is_private(node.module, alias.name):
                        found.setdefault(node.module, set()).add(alias.name)

    assert {module: sorted(names) for module, names in found.items()} == PARTS


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PARTS.items() for name in names])
def test_airflow_has_the_imported_parts(module, name):
    if name in SINCE_3_3 and not HAS_STORE:
        pytest.skip("used by Airflow 3.3 and newer")
    loaded = importlib.import_module(module)

    # A variable that is set where a task runs is only declared.
    assert hasattr(loaded, name) or name in loaded.__annotations__


@pytest.mark.parametrize("name", _airflow.MODULES)
def test_airflow_has_the_names_that_moved(name):
    assert getattr(_airflow, name) is not None


def test_other_modules_take_names_that_moved_from_one_module():
    """Cure: import the name from `_airflow`; in older versions it is elsewhere."""
    for path in PACKAGE.rglob("*.py"):
        if path.name == "_airflow.py" or "example_dags" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "airflow":
                taken = {alias.name for alias in node.names} & {*_airflow.MODULES, "aget_one", "aset"}
                assert not taken, f"{path.name}:{node.lineno} imports {taken}"


def test_no_other_module_asks_for_a_version():
    names = ("apache-airflow-core", "airflow.__version__", "airflow.version", "AIRFLOW_V_")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "_airflow.py" or not [name for name in names if name in text], path


def test_airflow_has_the_parts_that_are_used():
    from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
    from airflow.sdk import BaseOperator, task
    from airflow.sdk.bases.decorator import DecoratedMappedOperator, _TaskDecorator
    from airflow.sdk.definitions.mappedoperator import MappedOperator
    from airflow.sdk.definitions.taskgroup import MappedTaskGroup
    from airflow.sdk.execution_time import task_runner

    # How a function that uses a task is recognized.
    assert task(lambda: None, task_id="t")._airflow_is_task_decorator
    # How the arguments of a mapped function are checked.
    assert callable(_TaskDecorator._expand)
    assert callable(task_runner._serialize_rendered_fields)
    assert callable(BaseOperator._do_render_template_fields)
    assert BaseOperator._BaseOperator__from_mapped is False
    # Where `_written` finds the values of a mapped task and group in the DAG file.
    assert "expand_input" in attrs.fields_dict(MappedOperator)
    assert "op_kwargs_expand_input" in attrs.fields_dict(DecoratedMappedOperator)
    assert "_expand_input" in attrs.fields_dict(MappedTaskGroup)
    assert callable(task_runner.RuntimeTaskInstance.get_task_states)
    assert "_async_writer" in attrs.fields_dict(TriggerCommsDecoder)
